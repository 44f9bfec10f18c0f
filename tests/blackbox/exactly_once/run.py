"""One run of the exactly-once arm: traffic under the nemesis, then quiet, then the last questions, then the judge."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from blackbox.exactly_once.callers import FINAL, LEFT, Callers
from blackbox.exactly_once.deployment import Deployment, deployed
from blackbox.exactly_once.journal import read_journal
from blackbox.exactly_once.judge import Evidence, findings
from blackbox.exactly_once.nemesis import Nemesis
from blackbox.exactly_once.orders import ARMS, CONTROL, Arm, Order
from blackbox.exactly_once.probes import (
    ask_after_cuts,
    ask_beside_twins,
    ask_far_twins,
    ask_late,
    left_open,
    lose_commits,
    use_connections,
)
from blackbox.exactly_once.seeded import Fault
from blackbox.run import Outcome, Profile

CALLERS = {"postgres": 7, "sqlite": 3}
"""Of each arm: SQLite has one writer."""
ASKERS = 12
CONTROL_LEFT = 5
"""Callers of the control that left: their repeats make the duplicates without which a run is void."""
QUIET_S = 20.0
"""How long an order may take to end when all faults are over, on a busy machine."""
SEEDED_QUIET_S = 3.0
"""How long what still runs may take on a server with a fault, which may never come to its end."""
WITHOUT_END_MAX = 20
"""So many orders that do not end are enough: the others are then asked for once."""
SHORT = Profile(requests_least=600, faults_least=20, seconds_least=6, seconds_most=60)
SEEDED = Profile(requests_least=100, faults_least=3, seconds_least=2, seconds_most=6)
FULL = Profile(requests_least=20_000, faults_least=200, seconds_least=120, seconds_most=900)


def run(profile: Profile, seed: int, *, logs: Path | None = None) -> Outcome:
    """All arms, all kinds of orders. `logs` is a folder for what the servers logged."""
    with tempfile.TemporaryDirectory(prefix="semel-box-") as folder, deployed(Path(folder), seed) as deployment:
        outcome = _play(deployment, Callers(deployment.ports, seed), profile, seed)
        if logs is not None:
            deployment.keep_logs(logs)
        return outcome


def run_seeded(fault: Fault, seed: int) -> Outcome:
    """One arm on one server that has a fault, and orders that may meet it. The run ends when the fault is noticed."""
    arms = [arm for arm in ARMS if arm.name == fault.arm]
    with (
        tempfile.TemporaryDirectory(prefix="semel-box-") as folder,
        deployed(Path(folder), seed, arms, fault.breaks) as deployment,
    ):
        callers = Callers(deployment.ports, seed, fault.kinds)
        return _play(deployment, callers, SEEDED, seed, until=fault.noticed_by)


def _play(deployment: Deployment, callers: Callers, profile: Profile, seed: int, until: str = "") -> Outcome:
    started = time.monotonic()
    nemesis = Nemesis(deployment, seed)
    nemesis.start(restarting=not until)
    try:
        asyncio.run(_traffic(callers, deployment.arms, nemesis, profile, patient=not until))
    finally:
        nemesis.stop()
    evidence = asyncio.run(_aftermath(callers, deployment, until))
    faults = nemesis.faults + read_journal(deployment.journal)[1]
    faults["caller left in the middle"] = callers.left
    return _outcome(callers, faults, evidence, seed, time.monotonic() - started)


async def _traffic(callers: Callers, arms: Sequence[Arm], nemesis: Nemesis, profile: Profile, *, patient: bool) -> None:
    started = time.monotonic()
    tasks = [asyncio.create_task(callers.run(arm)) for arm in arms for _ in range(CALLERS[arm.database])]
    tasks.append(asyncio.create_task(callers.run_unprotected()))
    while (passed_s := time.monotonic() - started) < profile.seconds_most and not nemesis.failed:
        enough = callers.answered >= profile.requests_least and nemesis.faults.total() >= profile.faults_least
        lost = callers.said[CONTROL][LEFT] >= CONTROL_LEFT
        thorough = lost and nemesis.went_around
        if enough and (thorough or not patient) and passed_s >= profile.seconds_least:
            break
        await asyncio.sleep(0.05)
    callers.ended = True
    if not patient:  # a server with a fault may keep its callers waiting
        for task in tasks:
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=not patient)


async def _aftermath(callers: Callers, deployment: Deployment, until: str) -> Evidence:
    """All faults are over. Ask what remains to be asked, or as much as it takes until an invariant is violated."""
    await left_open(deployment, SEEDED_QUIET_S if until else QUIET_S)  # servers still run what their callers have left
    for step in (use_connections, lose_commits):
        if _is_violated(until, _look(callers, deployment)):
            break
        await step(callers, deployment)
    evidence = _look(callers, deployment)
    for what, ask in QUESTIONS.items():
        if _is_violated(until, evidence):
            break
        answers = {what: await ask(callers, deployment)}
        evidence = replace(evidence, **answers, rows=deployment.rows(), runs=read_journal(deployment.journal)[0])
    return evidence


def _is_violated(invariant: str, evidence: Evidence) -> bool:
    return any(finding.invariant == invariant and finding.violations for finding in findings(evidence))


def _look(callers: Callers, deployment: Deployment) -> Evidence:
    runs, _ = read_journal(deployment.journal)
    return Evidence(deployment.rows(), callers.asked, callers.polled, runs)


async def _ask_all(callers: Callers, _: Deployment) -> dict[Order, str]:
    """Repeat each order until it ends: some handlers give up in every second run. Patience with many ends early."""
    waiting = [order for order in callers.orders.values() if order.arm != CONTROL]
    said: dict[Order, str] = {}
    without_end: set[Order] = set()

    async def asker() -> None:
        while waiting:
            order = waiting.pop()
            deadline = time.monotonic() + QUIET_S
            while (end := (await callers.ask(order)).said) not in FINAL:
                if time.monotonic() > deadline or len(without_end) >= WITHOUT_END_MAX:
                    without_end.add(order)
                    break
                await asyncio.sleep(0.05)
            said[order] = end

    await asyncio.gather(*(asker() for _ in range(ASKERS)))
    return said


QUESTIONS: Mapping[str, Callable[[Callers, Deployment], Awaitable[Any]]] = {
    "late": ask_late,
    "beside_twins": ask_beside_twins,
    "far_twins": ask_far_twins,
    "after_cuts": ask_after_cuts,
    "last": _ask_all,
    "left_open": lambda _, deployment: left_open(deployment, patience_s=5.0),
}
"""By what the evidence calls their answers, in the order in which they are asked."""


def _outcome(callers: Callers, faults: Counter[str], evidence: Evidence, seed: int, seconds: float) -> Outcome:
    runs = {of: len({run for run, _ in found}) for of, found in evidence.rows.items()}
    control = {of: count for of, count in runs.items() if of[0] == CONTROL}
    return Outcome(
        seed=seed,
        seconds=round(seconds, 1),
        requests=callers.answered,
        answers={arm: dict(said.most_common()) for arm, said in sorted(callers.said.items())},
        faults=dict(sorted(faults.items())),
        keys=len(evidence.last),
        effects=sum(runs.values()) - sum(control.values()),
        control_keys=len(control),
        control_duplicates=sum(count > 1 for count in control.values()),
        findings=findings(evidence),
    )
