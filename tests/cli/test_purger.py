"""The background purger: alone, in several processes at once, and on a store that fails."""

import asyncio
import os
import subprocess
import sys
import threading
from datetime import timedelta
from typing import Any

import pytest

from cli.calls import ANSWER, SCOPE, claimed, finished
from semel import Key, open_async_store
from semel.errors import StoreUnavailable
from semel.purger import AsyncPurger, PurgePace, Purger
from semel.store import Store
from semel.stores.memory import MemoryStore
from waiting import until

KEPT = Key("shop", SCOPE, "kept")


def expired(store: Store, number: int) -> None:
    finished(store, KEPT)
    for each in range(number):
        assert store.complete(claimed(store, Key("shop", SCOPE, f"old-{each}")), ANSWER, retention_ms=1)


def test_what_is_past_retention_goes_and_the_rest_stays(url: str, store: Store) -> None:
    expired(store, 12)
    gone: list[int] = []
    with Purger(store, every=0.01, batch=5, on_purged=gone.append):
        until(lambda: sum(gone) == 12)
    assert max(gone) <= 5
    assert store.get(KEPT) is not None


def test_an_async_store_is_purged_by_a_task(url: str, store: Store) -> None:
    expired(store, 12)

    async def purge() -> list[int]:
        gone: list[int] = []
        async_store = open_async_store(url)
        async with AsyncPurger(async_store, every=timedelta(milliseconds=10), batch=5, on_purged=gone.append):
            while sum(gone) < 12:
                await asyncio.sleep(0.01)
        await async_store.close()
        return gone

    assert sum(asyncio.run(asyncio.wait_for(purge(), 30))) == 12
    assert store.get(KEPT) is not None


PURGING = """
import os, sys, time, semel
from semel.purger import Purger
tell = lambda number: os.write(1, f"{number}\\n".encode())
Purger(semel.open_store(sys.argv[1]), every=0.005, batch=7, on_purged=tell).start()
tell(0)
time.sleep(300)
"""


def test_several_processes_purge_together(url: str, store: Store) -> None:
    """Everything goes exactly once, whoever takes it, while new keys are claimed and completed."""
    ours, theirs = os.pipe()
    command = [sys.executable, "-c", PURGING, url]
    processes = [subprocess.Popen(command, stdout=theirs) for _ in range(2)]
    os.close(theirs)
    with open(ours) as told:
        try:
            assert [told.readline() for _ in processes] == ["0\n"] * 2, "all are running"
            expired(store, 60)
            purged = 0
            while purged < 60:
                purged += int(told.readline())
        finally:
            for process in processes:
                process.kill()
                process.wait()
        purged += sum(map(int, told.read().splitlines()))
    assert purged + store.purge(limit=1_000) == 60
    assert store.get(KEPT) is not None


class Away(MemoryStore):
    """A store that fails at first."""

    failures = 3

    def purge(self, *, limit: int) -> int:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("away")
        return super().purge(limit=limit)


def test_a_store_that_was_away_is_purged_when_it_is_back() -> None:
    store, purged = Away(), threading.Event()
    expired(store, 3)
    with Purger(store, every=0.005, on_purged=lambda number: purged.set()):
        assert purged.wait(30)
    assert store.get(KEPT) is not None


def test_a_closed_purger_purges_no_more() -> None:
    store = MemoryStore()
    purger = Purger(store, every=0.001)
    purger.start()
    purger.start()
    purger.close()
    expired(store, 1)
    assert not [thread for thread in threading.enumerate() if thread.name == "semel-purger"]
    until(lambda: store.get(Key("shop", SCOPE, "old-0")) is None)
    assert store.purge(limit=10) == 1


def test_processes_look_at_times_of_their_own() -> None:
    early, late = PurgePace(60, 10, lambda: 0.0), PurgePace(60, 10, lambda: 1.0)
    assert (early.pause_s(0), late.pause_s(0)) == (30, 90)
    assert early.pause_s(9) == 30
    assert late.pause_s(10) < 1, "there is more"


@pytest.mark.parametrize("settings", [{"every": 0}, {"every": 90_000}, {"batch": 0}, {"batch": 10_001}])
def test_settings_have_bounds(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        Purger(MemoryStore(), **settings)
