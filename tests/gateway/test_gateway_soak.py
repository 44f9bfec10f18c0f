"""A small soak; the long one is `PYTHONPATH=tests python -m gateway.soak`."""

from gateway import soak


def test_no_effect_is_doubled_and_no_key_is_stuck_while_workers_are_killed() -> None:
    figures = soak.main(400, callers=16, kill_every_s=0.7, kills_min=3)
    assert int(str(figures["kills"])) >= 3
    assert int(str(figures["requests"])) >= 400
