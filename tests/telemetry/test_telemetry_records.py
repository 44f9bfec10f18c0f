"""The gauge of records by state: right without any caller, cheap, and no burden while the store is away."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import semel
from semel import Key
from semel.store import Counts
from semel.stores.memory import AsyncMemoryStore, MemoryStore
from semel.telemetry import census
from semel.telemetry.census import Census
from semel.telemetry.prometheus import RecordsCollector
from telemetry.promtool import check_alerts

WORKER = """
import sys, semel
def charge():
    print("working", flush=True)
    sys.stdin.read()
semel.run("order-1", charge, scope="charge", store=sys.argv[1], policy=semel.Policy(lease=0.2))
"""


class Away(MemoryStore):
    """Counts when it is told to, and how often."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.answer = threading.Event()

    def counts(self) -> Counts:
        self.asked += 1
        assert self.answer.wait(10)
        return super().counts()


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def states(registry: CollectorRegistry) -> dict[str, float]:
    found = [sample for family in registry.collect() for sample in family.samples if sample.name == "semel_records"]
    return {sample.labels["state"]: sample.value for sample in found}


def test_a_killed_executor_is_seen_without_a_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in this process has heard of the key: only the store knows."""
    monkeypatch.setattr(census, "EVERY_S", 0)
    monkeypatch.setattr(census, "SHARE", 0)
    url = f"sqlite:///{tmp_path}/semel.db"
    registry = CollectorRegistry()
    RecordsCollector(url, registry=registry)
    quiet = generate_latest(registry).decode()
    assert states(registry) == dict.fromkeys(census.STATES, 0)
    worker = subprocess.Popen([sys.executable, "-c", WORKER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"working\n"
        assert states(registry)["in_progress"] == 1
    finally:
        worker.kill()
        worker.communicate()
    until_s = time.monotonic() + 10
    while states(registry)["unknown"] == 0 and time.monotonic() < until_s:
        time.sleep(0.02)
    assert states(registry) == dict.fromkeys(census.STATES, 0) | {"unknown": 1}
    lost = generate_latest(registry).decode()
    check_alerts(tmp_path, [quiet] * 5 + [lost] * 20, {5: set(), 15: {"SemelOutcomesUnresolved"}})


def test_a_store_that_is_away_delays_one_scrape_shortly_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census, "PATIENCE_S", 0.02)
    store = Away()
    registry = CollectorRegistry()
    RecordsCollector(store, registry=registry)
    assert store.asked == 0, "registering counts nothing"
    began_s = time.monotonic()
    for _ in range(100):
        assert states(registry) == {}
    assert time.monotonic() - began_s < 5
    assert store.asked == 1
    store.answer.set()
    for thread in threading.enumerate():
        if thread.name == "semel-census":
            thread.join()
    assert states(registry) == dict.fromkeys(census.STATES, 0)


def test_a_count_is_used_for_a_while_and_then_renewed() -> None:
    store, clock = Away(), Clock()
    store.answer.set()
    taken = Census(store, clock_s=clock)
    assert taken.latest() == Counts(0, 0, 0, 0)
    store.claim(Key("", "charge", "order-1"), "f", owner="o", lease_ms=10_000, retention_ms=20_000, takeover=False)
    assert taken.latest() == Counts(0, 0, 0, 0)
    clock.now_s += census.EVERY_S
    assert taken.latest() == Counts(1, 0, 0, 0)
    assert store.asked == 2


def test_a_long_count_is_used_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    class Slow(Away):
        def counts(self) -> Counts:
            clock.now_s += 3
            return super().counts()

    store = Slow()
    store.answer.set()
    taken = Census(store, clock_s=clock)
    taken.latest()
    clock.now_s += 3 * census.SHARE - 1
    taken.latest()
    assert store.asked == 1
    clock.now_s += 1
    taken.latest()
    assert store.asked == 2


def test_an_old_count_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census, "PATIENCE_S", 0.02)
    store, clock = Away(), Clock()
    store.answer.set()
    taken = Census(store, clock_s=clock)
    assert taken.latest() is not None
    store.answer.clear()
    clock.now_s += census.STALE_S - 1
    assert taken.latest() is not None, "the next count is under way"
    clock.now_s += 1
    assert taken.latest() is None
    store.answer.set()


def test_a_store_that_fails_is_logged_and_counted_again_later(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    taken = Census("postgresql://nobody@127.0.0.1:1/none", clock_s=clock)
    assert taken.latest() is None
    assert taken.latest() is None
    [line] = caplog.messages
    assert "cannot be counted" in line


@pytest.mark.parametrize(
    ("store", "problem"),
    [
        ("memory://", "give the store"),
        (AsyncMemoryStore(), "give its URL"),
        (object(), "cannot count"),
    ],
)
def test_what_cannot_be_counted_is_refused_at_once(store: semel.Store, problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        RecordsCollector(store, registry=CollectorRegistry())
