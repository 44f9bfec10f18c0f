"""One run of the exactly-once arm: traffic under the nemesis, then quiet, then the last questions, then the judge."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path

from blackbox.exactly_once.callers import FINAL, Callers
from blackbox.exactly_once.deployment import Deployment, deployed
from blackbox.exactly_once.journal import read_journal
from blackbox.exactly_once.judge import Evidence, findings
from blackbox.exactly_once.nemesis import Nemesis
from blackbox.exactly_once.orders import ARMS, CONTROL, Order
from blackbox.exactly_once.probes import ask_after_cuts, ask_beside_twins, left_open
from blackbox.run import Outcome, Profile

CALLERS = {"postgres": 7, "sqlite": 3}
"""Of each arm: SQLite has one writer."""
ASKERS = 12
QUIET_S = 20.0
"""How long orders may take to end when all faults are over, on a busy machine."""
SHORT = Profile(requests_least=600, faults_least=20, seconds_least=8, seconds_most=12)
FULL = Profile(requests_least=20_000, faults_least=200, seconds_least=120, seconds_most=900)


def run(profile: Profile, seed: int, fault: str = "", logs: Path | None = None) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="semel-box-") as folder, deployed(Path(folder), seed, fault) as deployment:
        started = time.monotonic()
        callers = Callers(deployment.ports, seed)
        nemesis = Nemesis(deployment, seed)
        nemesis.start()
        try:
            asyncio.run(_traffic(callers, nemesis, profile))
        finally:
            nemesis.stop()
        evidence = asyncio.run(_aftermath(callers, deployment))
        faults = nemesis.faults + read_journal(deployment.journal)[1]
        faults["caller left in the middle"] = callers.left
        if logs is not None:
            deployment.keep_logs(logs)
        return _outcome(callers, faults, evidence, seed, time.monotonic() - started)


async def _traffic(callers: Callers, nemesis: Nemesis, profile: Profile) -> None:
    started = time.monotonic()
    tasks = [asyncio.create_task(callers.run(arm)) for arm in ARMS for _ in range(CALLERS[arm.database])]
    tasks.append(asyncio.create_task(callers.run_unprotected()))
    while (passed_s := time.monotonic() - started) < profile.seconds_most and not nemesis.failed:
        enough = callers.answered >= profile.requests_least and nemesis.faults.total() >= profile.faults_least
        if enough and nemesis.went_around and passed_s >= profile.seconds_least:
            break
        await asyncio.sleep(0.05)
    callers.ended = True
    await asyncio.gather(*tasks)


async def _aftermath(callers: Callers, deployment: Deployment) -> Evidence:
    beside_twins = await ask_beside_twins(callers, deployment)
    after_cuts = await ask_after_cuts(callers, deployment)
    last = await _ask_all(callers)
    left = await left_open(deployment, patience_s=5.0)
    runs, _ = read_journal(deployment.journal)
    return Evidence(
        rows=deployment.rows(),
        asked=callers.asked,
        polled=callers.polled,
        runs=runs,
        last=last,
        left_open=left,
        beside_twins=beside_twins,
        after_cuts=after_cuts,
    )


async def _ask_all(callers: Callers) -> dict[Order, str]:
    waiting = [order for order in callers.orders.values() if order.arm != CONTROL]
    said: dict[Order, str] = {}
    deadline = time.monotonic() + QUIET_S

    async def asker() -> None:
        while waiting:
            order = waiting.pop()
            while True:
                said[order] = (await callers.ask(order)).said
                if said[order] in FINAL or time.monotonic() > deadline:
                    break
                await asyncio.sleep(0.05)

    await asyncio.gather(*(asker() for _ in range(ASKERS)))
    return said


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
