"""Unknown outcomes that are about to be forgotten are told by the commands that an operator runs anyway."""

from cli.calls import HOUR_MS, SCOPE, run, run_json, unknown
from semel import Key
from semel.store import Store

MONTH_MS = 30 * 24 * HOUR_MS


def test_outcomes_near_their_end_are_counted(url: str, store: Store) -> None:
    for name in ("first", "second"):  # whose retention ends within an hour
        unknown(store, Key("shop", SCOPE, name))
    later = Key("shop", SCOPE, "later")
    store.claim(later, "v1:x", owner="owner", lease_ms=1, retention_ms=MONTH_MS, takeover=False)
    told = "2 unknown outcomes are forgotten within 7 days, the first at 20"
    for command in ("stuck", "purge"):
        assert told in run(command, store=url).stderr, command
    [finding] = [each for each in run_json("doctor", store=url)["findings"] if each["title"] == "outcomes"]
    assert finding["level"] == "warning"
    assert finding["detail"].startswith(f"3 outcomes are unknown; {told}")


def test_an_outcome_far_from_its_end_is_counted_by_doctor_alone(url: str, store: Store) -> None:
    key = Key("shop", SCOPE, "later")
    store.claim(key, "v1:x", owner="owner", lease_ms=1, retention_ms=MONTH_MS, takeover=False)
    unknown(store, Key("shop", SCOPE, "near"))
    assert store.release(store.get(Key("shop", SCOPE, "near")).lease)  # type: ignore[union-attr]
    for command in ("stuck", "purge"):
        assert "forgotten" not in run(command, store=url).output, command
    details = {each["title"]: each["detail"] for each in run_json("doctor", store=url)["findings"]}
    assert details["outcomes"] == "the outcome of 1 operation is unknown"


def test_doctor_says_nothing_of_outcomes_where_all_are_known(url: str, store: Store) -> None:
    assert "outcomes" not in {each["title"] for each in run_json("doctor", store=url)["findings"]}
