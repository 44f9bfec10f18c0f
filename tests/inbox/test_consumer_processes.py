"""Several consumer processes on one database: effects and attempts are counted across all of them."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import uuid
from collections.abc import Mapping
from multiprocessing.synchronize import Barrier
from typing import Any

import pytest

import semel
from inbox.shop import HANDLER
from inbox.victims import consumer
from semel.inbox import Delivery, Handling, Inbox, Settling
from transaction.modes import MODES, Mode, ledger
from transaction.victims import Points

PROCESSES, EACH = 4, 6
ALIVE = Points(None)
FEW = [mode for mode in MODES if mode.name in ("psycopg", "asyncpg", "sqlite3")]
Told = list[tuple[str, str, int]]


def worker(name: str, url: str, ids: list[str], fails: bool, barrier: Barrier, told: Any) -> None:
    [mode] = [each for each in MODES if each.name == name]
    consume = consumer(mode, url, ALIVE, fails=fails)
    barrier.wait(60)
    found: Told = []
    for id in ids:
        verdict = consume(Delivery(id.encode(), id=id))
        verdict = asyncio.run(verdict) if inspect.iscoroutine(verdict) else verdict
        found.append((id, verdict.handling.name, verdict.attempt))
    told.put(found)


def leased_worker(url: str, ids: list[str], barrier: Barrier, told: Any) -> None:
    sent: list[str] = []
    store = semel.open_store(url)
    consume = Inbox(HANDLER, store=store).consumer(lambda delivery: sent.append(str(delivery.id)))
    barrier.wait(60)
    found: Told = []
    for id in ids:
        verdict = consume(Delivery(id.encode(), id=id))
        while verdict.settling is Settling.DELIVER_AGAIN:
            verdict = consume(Delivery(id.encode(), id=id))
        found.append((id, verdict.handling.name, sent.count(id)))
    store.close()
    told.put(found)


def in_processes(target: Any, *args: Any) -> Told:
    context = multiprocessing.get_context("fork")
    barrier, told = context.Barrier(PROCESSES), context.Queue()
    processes = [context.Process(target=target, args=(*args, barrier, told)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    found = [verdict for _ in processes for verdict in told.get(timeout=120)]
    for process in processes:
        process.join(60)
    return found


@pytest.mark.parametrize("mode", FEW, ids=lambda mode: mode.name)
def test_every_message_that_all_processes_get_takes_effect_once(mode: Mode, urls: Mapping[str, str]) -> None:
    ids = [uuid.uuid4().hex for _ in range(EACH)]
    told = in_processes(worker, mode.name, urls[mode.database], ids, False)
    took = ledger(urls[mode.database])
    assert [took[id] for id in ids] == [1] * EACH
    assert sum(handling == Handling.HANDLED.name for _, handling, _ in told) == EACH


@pytest.mark.parametrize("mode", FEW, ids=lambda mode: mode.name)
def test_attempts_are_counted_across_processes(mode: Mode, urls: Mapping[str, str]) -> None:
    """Every fifth failure makes a dead letter, whichever process sees it."""
    poison = uuid.uuid4().hex
    told = in_processes(worker, mode.name, urls[mode.database], [poison] * EACH, True)
    failed = {attempt: handling for _, handling, attempt in told if handling in ("RAISED", "EXHAUSTED")}
    assert sorted(failed) == list(range(1, len(failed) + 1)), "no attempt is lost or counted twice"
    assert [attempt for attempt, handling in sorted(failed.items()) if handling == "EXHAUSTED"] == [
        attempt for attempt in sorted(failed) if attempt % 5 == 0
    ]
    assert {handling for _, handling, _ in told} <= {"RAISED", "EXHAUSTED", "IN_PROGRESS", "UNCOMMITTED"}
    assert ledger(urls[mode.database])[poison] == 0


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "redis"])
def test_under_a_lease_every_message_is_handled_by_one_process(
    kind: str, urls: Mapping[str, str], request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("redis_url") if kind == "redis" else urls[kind]
    ids = [uuid.uuid4().hex for _ in range(EACH)]
    told = in_processes(leased_worker, url, ids)
    for id in ids:
        assert sum(sent for each, _, sent in told if each == id) == 1
