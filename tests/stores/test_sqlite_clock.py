"""The clock of a file: shared by processes, taken anew after a start of the machine, and what happens without one."""

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from semel import Key, Occupied
from semel.runtime.clock import boot_ms, find_boot, steady_clock, wall_ms
from semel.stores.sqlite import clock
from semel.stores.sqlite.store import SqliteStore
from semel.testing.calls import claim, complete, granted, held, occupied
from semel.testing.samples import ANSWER
from servers.faketime import faked
from servers.needing import needed

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
KEY = Key("t", "POST /payments", "key")
SLACK_MS = 60_000

CLAIM = """
import sys, time
path, hours, takeover, patched = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "takeover", sys.argv[4] == "patched"
real_ns = time.time_ns
if patched:
    time.time_ns = lambda: real_ns() + int(hours * 3_600_000_000_000)
from semel import Acquired, Key, open_store
claimed = open_store("sqlite:///" + path).claim(
    Key("t", "POST /payments", "key"), "v1:same", owner="other process", lease_ms=9000, retention_ms=9000,
    takeover=takeover)
if isinstance(claimed, Acquired):
    print("entered")
else:
    print(claimed.record.state.value, "lapsed" if claimed.record.lapsed(claimed.now_ms) else "live", time.time())
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "a.db")


def ask(path: str, hours: float, *, takeover: bool, environment: dict[str, str] | None = None) -> list[str]:
    """What a process is told that is started with another wall clock: a patched one, or one of its environment."""
    how = "patched" if environment is None else "as it is"
    command = [sys.executable, "-c", CLAIM, path, str(hours), "takeover" if takeover else "no", how]
    environment = os.environ | (environment or {})
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()


@pytest.mark.parametrize("hours", [25, 1, -1])
@pytest.mark.parametrize("takeover", [False, True], ids=["at most once", "at least once"])
def test_a_process_with_another_wall_clock_does_not_enter_running_work(path: str, hours: float, takeover: bool) -> None:
    store = SqliteStore(path)
    lease = granted(claim(store, KEY, "first", lease_ms=SLACK_MS, retention_ms=DAY_MS))
    assert ask(path, hours, takeover=takeover)[:2] == ["in_progress", "live"]
    assert complete(store, lease, retention_ms=DAY_MS)
    assert ask(path, hours, takeover=takeover)[0] == "succeeded"


@pytest.mark.parametrize("monotonic", ["monotonic clocks real", "all clocks faked"])
@pytest.mark.parametrize("hours", [25, 1, -1])
def test_with_a_real_tool_that_sets_the_clock_of_a_process(path: str, hours: int, monotonic: str) -> None:
    """libfaketime, in both of its ways. The process believes the other time of day; the store does not."""
    environment = needed("faketime", lambda: faked(hours, all_clocks=monotonic == "all clocks faked"))
    store = SqliteStore(path)
    lease = granted(claim(store, KEY, "first", lease_ms=SLACK_MS, retention_ms=DAY_MS))
    state, lapse, seen_s = ask(path, hours, takeover=True, environment=environment)
    assert abs(float(seen_s) - time.time() - hours * 3600) < 60, "the clock was not faked"
    assert (state, lapse) == ("in_progress", "live")
    assert complete(store, lease, retention_ms=DAY_MS)
    assert ask(path, hours, takeover=True, environment=environment)[0] == "succeeded"


def test_processes_that_begin_a_file_at_once_agree(path: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        stores = [SqliteStore(path) for _ in range(8)]
        clocks = list(threads.map(lambda store: store._database.get()._clock, stores))
    times = [now_ms() for now_ms in clocks]
    assert max(times) - min(times) < 1_000
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM semel_clock").fetchone() == (1,)


@pytest.fixture
def restart(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """The machine was started anew, with a wall clock that is so many hours on."""
    real_ns, starts = time.time_ns, iter(range(1_000))

    def restarted(hours: float) -> None:
        boot = f"start {next(starts)}"
        monkeypatch.setattr(clock, "find_boot", lambda: boot)
        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(hours * HOUR_MS) * 1_000_000)

    return restarted


def test_the_wall_clock_is_taken_anew_after_a_start(path: str, restart: Callable[[float], None]) -> None:
    store = SqliteStore(path)
    granted(claim(store, KEY, "dead", retention_ms=DAY_MS))
    store.close()
    restart(3)
    late = SqliteStore(path)
    claimed = claim(late, KEY, "b")
    assert occupied(claimed).lapsed(claimed.now_ms)  # type: ignore[union-attr]
    granted(claim(late, other := Key("t", "s", "other"), "b"))
    assert abs(held(late, other).created_ms - wall_ms()) < SLACK_MS


@pytest.mark.parametrize("hours", [-1, -24 * 365 * 30])
def test_a_wall_clock_that_was_set_back_does_not_keep_the_keys_of_dead_executors(
    path: str, restart: Callable[[float], None], hours: float
) -> None:
    store = SqliteStore(path)
    granted(claim(store, KEY, "dead", lease_ms=SLACK_MS, retention_ms=DAY_MS))
    finished = Key("t", "s", "finished")
    assert complete(store, granted(claim(store, finished, "a")), retention_ms=DAY_MS)
    store.close()
    restart(hours)
    late = SqliteStore(path)
    claimed = claim(late, KEY, "b")
    assert occupied(claimed).lapsed(claimed.now_ms)  # type: ignore[union-attr]
    replay = claim(late, finished, "b")
    assert isinstance(replay, Occupied)
    assert replay.record.result == ANSWER
    assert 0 < replay.record.expires_ms - replay.now_ms <= DAY_MS


def test_only_so_many_starts_are_kept(path: str, restart: Callable[[float], None]) -> None:
    for _ in range(clock.STARTS_MAX + 3):
        restart(0)
        store = SqliteStore(path)
        granted(claim(store, Key("t", "s", os.urandom(4).hex()), "a"))
        store.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM semel_clock").fetchone() == (clock.STARTS_MAX,)


def test_without_a_start_to_name_a_file_goes_by_the_wall_clock(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "find_boot", lambda: None)
    store = SqliteStore(path)
    granted(claim(store, KEY, "a", lease_ms=SLACK_MS, retention_ms=DAY_MS))
    real_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + HOUR_MS * 1_000_000)
    claimed = claim(store, KEY, "b")
    assert occupied(claimed).lapsed(claimed.now_ms)  # type: ignore[union-attr]


@pytest.mark.parametrize("missing", ["the clock", "the number of the start"])
def test_a_machine_that_does_not_say_which_start_it_is_in(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    name, value = ("BOOT_CLOCK", None) if missing == "the clock" else ("BOOT_ID", Path("/nowhere"))
    monkeypatch.setattr(f"semel.runtime.clock.{name}", value)
    find_boot.cache_clear()
    try:
        assert find_boot() is None
        before_ms, now_ms = boot_ms(), steady_clock()
        assert 0 <= boot_ms() - before_ms < SLACK_MS
        assert abs(now_ms() - wall_ms()) < SLACK_MS
    finally:
        find_boot.cache_clear()


def test_a_container_with_a_time_of_its_own_is_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for link in ("time:[1]", "time:[2]", None):
        monkeypatch.setattr(os, "readlink", lambda _, link=link: link or os.stat("/nowhere"))
        find_boot.cache_clear()
        names.append(find_boot())
    find_boot.cache_clear()
    assert len(set(names)) == 3


def finding(store: SqliteStore) -> tuple[str, str]:
    [found] = [found for found in store.examine() if found.title == "clock"]
    return found.level, found.detail


def test_an_examination_tells_how_far_the_clocks_are_apart(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(path)
    assert finding(store) == ("ok", "the store's clock is this machine's, and does not jump")
    granted(claim(store, KEY, "a"))
    assert finding(store)[0] == "ok"
    real_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + HOUR_MS * 1_000_000)
    level, detail = finding(store)
    assert level == "info"
    assert detail.startswith("the store's clock is -3")
    assert "leases and retention are not affected" in detail
    monkeypatch.setattr("semel.stores.sqlite.doctor.find_boot", lambda: None)
    assert finding(store)[0] == "warning"
