"""`semel tail` and `semel stats` in a store with more records than they read."""

import json
from collections.abc import Callable

import pytest

from cli.calls import SCOPE, claimed, finished, run, run_json, unknown
from semel import Key
from semel.cli import tail
from semel.store import Store

MANY = 60
LIMIT = "50"


def record(name: str) -> Key:
    return Key(f"tenant-{name[-1]}", SCOPE, name)


@pytest.fixture
def many(store: Store) -> Store:
    for number in range(MANY):
        finished(store, record(f"old-{number}"))
    return store


def tailed(url: str, monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object]) -> str:
    """What `tail` prints when each step happens while it sleeps, and Ctrl-C after the last. Also what it says."""
    left = list(steps)

    def sleep(_: float) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop(0)()

    monkeypatch.setattr(tail, "sleep", sleep)
    done = run("tail", "--json", "--names", "--limit", LIMIT, store=url)
    assert done.exit_code == 0, done.output
    return done.output


def events(printed: str) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return [(each["event"], each["name"]) for each in lines]


def test_new_keys_are_shown_however_many_there_are(url: str, many: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def some(first: int) -> Callable[[], object]:
        return lambda: [finished(many, record(f"new-{first + number}")) for number in range(20)]

    printed = tailed(url, monkeypatch, some(0), some(20), lambda: None)
    assert sorted(events(printed)) == sorted(("succeeded", f"new-{number}") for number in range(40)), "each once"
    assert printed.count("More than 50 records match") == 1
    assert "not that a finished record goes" in printed


def test_unfinished_ones_are_followed(url: str, many: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that were created long before, which no look for new keys would find."""
    monkeypatch.setattr("semel.cli.changes.LATE_MS", 0)
    old, lost = claimed(many, record("running")), unknown(many, record("lost"))
    new: list[object] = []
    printed = tailed(
        url,
        monkeypatch,
        lambda: new.append(claimed(many, record("new"))),
        lambda: many.release(old),
        lambda: many.resolve(lost, None, retention_ms=1000),  # type: ignore[attr-defined]
        lambda: many.release(new[0]),  # type: ignore[arg-type]
        lambda: None,
    )
    assert events(printed) == [("in_progress", "new"), ("gone", "running"), ("gone", "lost"), ("gone", "new")]


def test_a_store_that_grows_while_it_is_followed(url: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    held = claimed(store, record("held"))
    printed = tailed(
        url,
        monkeypatch,
        lambda: [finished(store, record(f"a-{number}")) for number in range(30)],
        lambda: [finished(store, record(f"b-{number}")) for number in range(30)],
        lambda: store.release(held),
    )
    expected = [("succeeded", f"{which}-{number}") for which in "ab" for number in range(30)]
    assert sorted(events(printed)) == sorted([*expected, ("gone", "held")])


def test_more_new_keys_than_a_look_reads(url: str, many: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = tailed(
        url, monkeypatch, lambda: [finished(many, record(f"new-{number}")) for number in range(60)], lambda: None
    )
    assert sorted(events(printed)) == sorted(("succeeded", f"new-{number}") for number in range(60)), (
        "some of them late"
    )
    assert "keys were new at once" in printed
    assert "--limit" in printed


def test_a_slow_store_has_a_rest(file_url: str, file_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(file_store, record("order-1"))
    slept: list[float] = []
    times = iter([0.0, 7.0, 20.0, 21.0])

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(tail, "monotonic", lambda: next(times))
    monkeypatch.setattr(tail, "sleep", sleep)
    done = run("tail", "--every", "2s", store=file_url)
    assert slept == [7.0, 2.0]
    assert done.stderr.count("Reading the records takes 7.0s") == 1


def test_stats_rank_only_what_was_counted_as_a_whole(url: str, store: Store) -> None:
    for number in range(30):
        for tenant in range(5):
            finished(store, Key(f"tenant-{tenant}", SCOPE, f"{number}"))
    part = run_json("stats", "--scan-max", "40", store=url)
    assert (part["scanned"], part["scanned_all"], part["ranked"]) == (40, False, False)
    assert [each["value"] for each in part["tenants"]] == sorted(each["value"] for each in part["tenants"])
    shown = run("stats", "--scan-max", "40", store=url)
    assert "OF THE FIRST 40" in shown.stdout
    assert "No ranking: only the first 40 of 150 records" in shown.stderr
    whole = run_json("stats", "--scan-max", "150", store=url)
    assert (whole["scanned_all"], whole["ranked"]) == (True, True)
    assert {each["records"] for each in whole["tenants"]} == {30}
