"""One run: traffic, kills and restarts, then quiet until everything is drained, then the judge."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg

from chain.brokers import queue_of
from chain.callers import Callers
from chain.deployment import Deployment, deployed
from chain.judge import Evidence, Judgement, judge_run
from chain.setting import ARMS, AUDIT, DEAD, DIRECT, INBOX

CALLERS = 6
START_S, PAUSE_S, QUIET_S = 60.0, 20.0, 120.0


@dataclass(frozen=True)
class Profile:
    kills: int
    restarts: int
    """How often the broker and the database are each killed and started again."""
    orders: int
    """How many orders are answered between two kills."""


SHORT = Profile(kills=24, restarts=1, orders=4)
LONG = Profile(kills=240, restarts=5, orders=10)


@dataclass(frozen=True)
class Outcome:
    broker: str
    seed: int
    seconds: float
    orders: int
    direct: int
    faults: dict[str, int]
    judgement: Judgement

    def report(self) -> dict[str, object]:
        return asdict(self)


def run(profile: Profile, broker: str, seed: int, *, logs: Path | None = None) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="semel-chain-") as folder, deployed(Path(folder), broker) as deployment:
        try:
            return asyncio.run(_play(deployment, profile, broker, seed))
        finally:
            if logs is not None:
                deployment.keep_logs(logs)


async def _play(deployment: Deployment, profile: Profile, broker: str, seed: int) -> Outcome:
    started = time.monotonic()
    await deployment.broker.prepare()
    for worker in deployment.workers:
        worker.start()
    await _until(lambda: asyncio.to_thread(_all_answer, deployment), START_S, "the services did not start")
    callers = Callers([service.port for service in deployment.services], seed)
    traffic = asyncio.create_task(callers.run(CALLERS))
    faults = await _rage(deployment, callers, profile, random.Random(seed))
    callers.is_ending = True
    await asyncio.wait_for(traffic, QUIET_S)
    with contextlib.suppress(TimeoutError):  # the judge says what is left
        await _until(lambda: _is_drained(deployment), QUIET_S, "")
    for worker in deployment.workers:
        await asyncio.to_thread(worker.stop)
    evidence = await _evidence(deployment, callers)
    counted = {path: len(names) for path, names in callers.answered.items()}
    seconds = round(time.monotonic() - started, 1)
    return Outcome(broker, seed, seconds, counted["orders"], counted["direct"], dict(faults), judge_run(evidence))


async def _rage(deployment: Deployment, callers: Callers, profile: Profile, chance: random.Random) -> Counter[str]:
    """Kill processes one after the other; at even distances the broker and the database, too.

    Between two kills some orders are answered, however slow the machine is.
    """
    faults: Counter[str] = Counter()
    each = profile.kills // (profile.restarts + 1)
    for number in range(1, profile.kills + 1):
        wanted = callers.count() + round(profile.orders * chance.uniform(0, 2))
        with contextlib.suppress(TimeoutError):
            await _until(lambda: _has_answered(callers, wanted), PAUSE_S, "")  # noqa: B023  # it is awaited here
        worker = chance.choice(deployment.workers)
        await asyncio.to_thread(worker.kill)
        worker.start()
        faults[f"{worker.name.partition('-')[0]} killed (SIGKILL)"] += 1
        if number % each == 0 and number // each <= profile.restarts:
            for name, server in (("broker", deployment.broker_server), ("database", deployment.database)):
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.restart)
                faults[f"{name} killed (SIGKILL) and restarted"] += 1
    return faults


async def _has_answered(callers: Callers, wanted: int) -> bool:
    return callers.count() >= wanted


def _all_answer(deployment: Deployment) -> bool:
    return all(service.answers() for service in deployment.services)


async def _is_drained(deployment: Deployment) -> bool:
    """Nothing waits, and every effect of an order that is going to come has come."""
    with psycopg.connect(deployment.database.url) as connection:
        [(waiting,)] = connection.execute("SELECT count(*) FROM semel_outbox WHERE state = 0").fetchall()
        [(missing,)] = connection.execute(
            "SELECT count(*) FROM orders o WHERE NOT EXISTS "
            "(SELECT FROM ledger l WHERE l.name = o.name AND l.arm = 'inbox')"
        ).fetchall()
    arms = ARMS if deployment.broker.has_controls else (INBOX,)
    counts = [await deployment.broker.count(queue_of(arm)) for arm in arms]
    return waiting == missing == 0 and not any(counts)


async def _evidence(deployment: Deployment, callers: Callers) -> Evidence:
    with psycopg.connect(deployment.database.url) as connection:
        orders = connection.execute("SELECT name, customer, number FROM orders").fetchall()
        ledger = defaultdict(list)
        for arm, name in connection.execute("SELECT arm, name FROM ledger").fetchall():
            ledger[arm].append(name)
        runs = {run for (run,) in connection.execute("SELECT run FROM direct_orders").fetchall()}
        states: dict[int, int] = dict(
            connection.execute("SELECT state, count(*) FROM semel_outbox GROUP BY state").fetchall()
        )
    broker = deployment.broker
    return Evidence(
        answered=callers.answered["orders"],
        refusals=callers.refusals,
        orders={name: (customer, number) for name, customer, number in orders},
        ledger=ledger,
        audit=await broker.read(AUDIT),
        direct=await broker.read(DIRECT),
        direct_runs=runs,
        waiting=states.get(0, 0),
        dead=states.get(2, 0),
        letters=await broker.count(DEAD),
        has_controls=broker.has_controls,
        drops_repeats=broker.drops_repeats,
    )


async def _until(ready: Callable[[], Awaitable[bool]], bound_s: float, otherwise: str) -> None:
    deadline = time.monotonic() + bound_s
    while not await ready():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        await asyncio.sleep(0.05)
