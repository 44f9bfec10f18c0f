"""Each alert in examples/ fires on its first event, from a fresh process: real scrapes, and Prometheus' own tool."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client import CollectorRegistry, generate_latest

from semel.telemetry.prometheus import PrometheusListener
from telemetry.promtool import RULES, check_alerts
from telemetry.shop import Shop

CAPTURE = "POST /payments/{id}/capture"
QUIET = 5
"""For so many minutes nothing happens."""


class Service(Shop):
    """A service from its start, and what may happen to it."""

    def __init__(self, folder: Path) -> None:
        self.registry = CollectorRegistry()
        self.listener = PrometheusListener(registry=self.registry, operations=[CAPTURE])
        super().__init__(folder, self.listener, lease=0.05)
        self._file = folder / "semel.db"

    def scrape(self) -> str:
        return generate_latest(self.registry).decode()

    def sql(self, statement: str) -> None:
        with closing(sqlite3.connect(self._file)) as connection, connection:
            connection.execute(statement)

    async def leave(self) -> None:
        assert (await self.capture("another", do="lose")).status_code == 504

    async def find_unknown(self) -> None:
        self.sql("UPDATE semel_records SET lease_until_ms = 1")
        assert (await self.capture(do="lose")).status_code == 409

    async def break_record(self) -> None:
        self.sql("UPDATE semel_records SET state = 7")
        assert (await self.capture()).status_code == 500

    async def lose_store(self) -> None:
        self.sql("ALTER TABLE semel_records RENAME TO gone")

    async def not_store(self) -> None:
        self.meanwhile = self.lose_store
        assert (await self.capture("another")).headers["Idempotency-Stored"] == "false"

    async def not_claim(self) -> None:
        await self.lose_store()
        assert (await self.capture("another")).status_code == 503

    async def take_over(self) -> None:
        self.sql("UPDATE semel_records SET owner = 'another', attempt = 2")

    async def be_superseded(self) -> None:
        self.meanwhile = self.take_over
        assert (await self.capture("another")).status_code == 409

    async def replay(self) -> None:
        assert (await self.capture()).headers["Idempotent-Replayed"] == "true"

    async def mismatch(self) -> None:
        assert (await self.capture(do="another request")).status_code == 422

    async def ask_meanwhile(self) -> None:
        self.meanwhile, key = None, f"key-{len(self.ledger)}"
        assert (await self.capture(key)).status_code == 409

    async def collide(self) -> None:
        key = f"key-{len(self.ledger) + 1}"
        self.meanwhile = self.ask_meanwhile
        assert (await self.capture(key)).status_code == 201

    async def be_slow(self) -> None:
        self.listener.called("claim", "ok", 0.7)


Act = Callable[[Service], Awaitable[None]]
ONE_EVENT: list[tuple[str, str, Act]] = [
    ("SemelAttemptsLeft", "pay", Service.leave),
    ("SemelUnknownOutcomes", "lose", Service.find_unknown),
    ("SemelRecordsUnreadable", "pay", Service.break_record),
    ("SemelAnswersNotStored", "pay", Service.not_store),
    ("SemelLeasesLost", "pay", Service.be_superseded),
    ("SemelStoreFailing", "pay", Service.not_claim),
]
MANY_EVENTS: list[tuple[str, Act]] = [
    ("SemelMismatches", Service.mismatch),
    ("SemelConflicts", Service.collide),
    ("SemelStoreSlow", Service.be_slow),
    ("SemelReplaysRising", Service.replay),
]


def scrapes_of(folder: Path, acts: Sequence[Act | None], *, before: str = "pay", quiet: int = QUIET) -> list[str]:
    """One scrape for each minute: some of a fresh process, then one after each act. An earlier process did `before`."""

    async def main() -> list[str]:
        earlier = Shop(folder, lambda event: None, lease=0.05)
        try:
            await earlier.capture(do=before)
        finally:
            await earlier.app.store.close()
        service = Service(folder)
        found = [service.scrape()] * quiet
        try:
            for act in acts:
                if act is not None:
                    await act(service)
                found.append(service.scrape())
        finally:
            await service.app.store.close()
        return found

    return asyncio.run(main())


@pytest.mark.parametrize(("alert", "before", "act"), ONE_EVENT)
def test_the_first_event_of_a_fresh_process_fires(alert: str, before: str, act: Act, tmp_path: Path) -> None:
    scrapes = scrapes_of(tmp_path, [act, *[None] * 40], before=before)
    later = QUIET + (3 if alert == "SemelStoreFailing" else 1)
    check_alerts(tmp_path, scrapes, {QUIET - 1: set(), later: {alert}, QUIET + 30: set()})


@pytest.mark.parametrize(("alert", "before", "act"), ONE_EVENT[:-1])
def test_an_event_before_the_first_scrape_fires(alert: str, before: str, act: Act, tmp_path: Path) -> None:
    scrapes = scrapes_of(tmp_path, [act, *[None] * 40], before=before, quiet=0)
    check_alerts(tmp_path, scrapes, {0: {alert}, 10: {alert}, 30: set()})


@pytest.mark.parametrize(("alert", "act"), MANY_EVENTS)
def test_what_goes_on_for_long_fires(alert: str, act: Act, tmp_path: Path) -> None:
    scrapes = scrapes_of(tmp_path, [act] * 20)
    check_alerts(tmp_path, scrapes, {QUIET - 1: set(), QUIET + 2: set(), QUIET + 18: {alert}})


def test_every_alert_is_tested() -> None:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    tested = [*(case[0] for case in ONE_EVENT), *(case[0] for case in MANY_EVENTS)]
    tested.append("SemelOutcomesUnresolved")  # in test_telemetry_records.py
    tested += ["SemelDeadLetters", "SemelOutboxBehind", "SemelRelayPaused"]  # in test_telemetry_outbox.py
    tested += ["SemelCallsInDoubt", "SemelRetryBudgetSpent"]  # in test_telemetry_calls.py
    assert sorted(tested) == sorted(rule["alert"] for rule in rules if "alert" in rule)
