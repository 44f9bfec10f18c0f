"""What is unknown is judged by the store's clock, which may not be this machine's."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from cli.calls import HOUR_MS, SCOPE, claimed, run, run_json
from semel import Key, open_store
from semel.cli import options
from semel.runtime.clock import wall_ms
from semel.store import Store

KEY = Key("shop", SCOPE, "order-1")


@pytest.fixture(params=[-1, 1], ids=["slow", "fast"])
def shifted(request: pytest.FixtureRequest, url: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The same store for the command line and for the test, with a clock half an hour behind or ahead."""

    def clock() -> int:
        return wall_ms() + int(request.param) * HOUR_MS // 2

    def opened(url: str) -> Any:
        return open_store(url, clock=clock)

    monkeypatch.setattr(options, "open_store", opened)
    with closing(opened(url)) as other:
        yield other


@pytest.mark.parametrize("lease_ms", [1, HOUR_MS])
def test_every_command_goes_by_the_store(url: str, shifted: Store, lease_ms: int) -> None:
    """One lease has ended for a clock that is right, the other has not. Both were given by a clock that is not."""
    claimed(shifted, KEY, lease_ms=lease_ms)
    while shifted.scan().records[0].lapsed(shifted.scan().now_ms) is (lease_ms != 1):  # type: ignore[attr-defined]
        pass
    state = "unknown" if lease_ms == 1 else "in_progress"
    listed = run_json("keys", "list", store=url)["records"]
    assert [record["state"] for record in listed] == [state]
    assert run_json("keys", "list", "--state", state, store=url)["records"] == listed
    for words in (("order-1",), ("order-1", "--tenant", "shop", "--scope", SCOPE)):
        assert run_json("keys", "show", *words, store=url)["state"] == state
    assert run_json("stuck", store=url, status=1 if lease_ms == 1 else 0)["more"] is False
    table = run("keys", "list", store=url).stdout.splitlines()[1].split()
    assert (table[1], table[3][-1], table[4]) == (state, "s", "59m" if table[4] == "59m" else "1h"), "ages are its, too"
    tailed = run("tail", "--from-start", "--events", "1", store=url).stdout
    assert f"  {state} " in tailed
    deleted = run("keys", "delete", "--tenant", "shop", "--yes", store=url).output
    assert ("Deleted 1 record." in deleted) is (lease_ms == 1)


@pytest.mark.parametrize("command", ["release", "delete", "resolve"])
def test_a_lease_that_is_live_there_is_told(url: str, shifted: Store, command: str) -> None:
    claimed(shifted, KEY, lease_ms=60_000)
    words = ("--nothing-done",) if command == "resolve" else ()
    refused = run("keys", command, "order-1", *words, "--yes", store=url)
    assert refused.exit_code == 1
    assert "lease is live" in refused.stderr
