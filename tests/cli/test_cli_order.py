"""Sorted lists, which say what was sorted."""

import time

import pytest

from cli.calls import HOUR_MS, SCOPE, claimed, finished, run, run_json, unknown
from semel import Key
from semel.store import Store


@pytest.fixture
def orders(store: Store) -> Store:
    """Made in an order that is not that of their names or digests."""
    for number, name in enumerate(("m", "a", "z")):
        store.claim(
            Key(f"tenant-{name}", SCOPE, name),
            "v1:x",
            owner="owner",
            lease_ms=HOUR_MS,
            retention_ms=HOUR_MS * (3 - number),
            takeover=False,
        )
        time.sleep(0.003)
    finished(store, Key("tenant-b", "GET /", "b"))
    return store


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("created",), ["m", "a", "z", "b"]),
        (("created", "--reverse"), ["b", "z", "a", "m"]),
        (("expires",), [*"zb", "a", "m"]),
        (("tenant",), ["a", "b", "m", "z"]),
        (("scope",), ["b", "a", "m", "z"]),
        (("state",), ["a", "m", "z", "b"]),
        (("state", "--reverse"), ["b", "a", "m", "z"]),
        (("attempt",), ["a", "b", "m", "z"]),
        (("completed",), ["b", "a", "m", "z"]),
        (("created", "--limit", "2"), ["m", "a"]),
        (("created", "--limit", "1", "--reverse"), ["b"]),
    ],
    ids=" ".join,
)
def test_lists_are_sorted(url: str, orders: Store, words: tuple[str, ...], names: list[str]) -> None:
    found = run_json("keys", "list", "--names", "--sort", *words, store=url)
    assert [record["name"] for record in found["records"]] == names
    assert (found["sorted_by"], found["scanned"], found["scanned_all"]) == (words[0], 4, True)
    assert found["more"] is (len(names) < 4)
    table = run("keys", "list", "--names", "--sort", *words, store=url).stdout.splitlines()
    assert [line.split()[0] for line in table[1:]] == names


def test_what_was_not_read_is_not_passed_off_as_sorted(url: str, orders: Store) -> None:
    found = run_json("keys", "list", "--sort", "created", "--scan-max", "3", store=url)
    assert (len(found["records"]), found["more"], found["scanned"], found["scanned_all"]) == (3, True, 3, False)
    shown = run("keys", "list", "--sort", "created", "--scan-max", "3", store=url)
    assert "Only the first 3 records" in shown.stderr
    assert "--scan-max" in shown.stderr
    assert run("keys", "list", "--sort", "created", "--scan-max", "4", store=url).stderr == ""


def test_stuck_is_sorted_too(url: str, store: Store) -> None:
    for name in ("m", "z", "a"):
        unknown(store, Key("shop", SCOPE, name))
    claimed(store, Key("shop", SCOPE, "held"))
    words = ("stuck", "--older-than", "0s", "--names", "--sort", "created")
    found = run_json(*words, store=url, status=1)
    assert [record["name"] for record in found["records"]] == ["m", "z", "a", "held"]
    found = run_json(*words, "--reverse", "--limit", "2", store=url, status=1)
    assert ([record["name"] for record in found["records"]], found["more"]) == (["held", "a"], True)


@pytest.mark.parametrize("words", [("--reverse",), ("--scan-max", "5"), ("--sort", "name")])
def test_nothing_that_was_said_is_ignored(file_url: str, file_store: Store, words: tuple[str, ...]) -> None:
    claimed(file_store, Key("shop", SCOPE, "order-1"))
    for command in (("keys", "list"), ("stuck",)):
        assert run(*command, *words, store=file_url).exit_code == 2
