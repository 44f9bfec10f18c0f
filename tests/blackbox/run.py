"""One run: traffic under the nemesis, then quiet, then the last questions, then the judge."""

import asyncio
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from blackbox.clients import BODY, OTHER_BODY, Clients, Operation
from blackbox.deployment import CONTROL, LEASE_S, Deployment, deployed
from blackbox.judge import Evidence, Finding, duplicates, findings, read_ledger
from blackbox.nemesis import Nemesis

CLIENTS = 24
QUIET_S = 60.0
"""How long it may take until nobody works any more, on a busy machine."""
ASKERS = 16
OTHERS_MAX = 300
NOT_YET = ("no answer", "503 store-unavailable", "409 in-progress")


@dataclass(frozen=True)
class Profile:
    """When a run ends: all of the least are reached, with faults of every kind, or the time is used up."""

    requests_least: int
    faults_least: int
    seconds_least: float
    seconds_most: float


QUICK = Profile(requests_least=6_000, faults_least=40, seconds_least=25, seconds_most=240)


@dataclass(frozen=True)
class Outcome:
    """What a run showed. It is void when its faults made no duplicates where nothing was protected."""

    seed: int
    seconds: float
    requests: int
    """Answered requests on protected arms; `answers` has all of them, by arm."""
    answers: dict[str, dict[str, int]]
    faults: dict[str, int]
    keys: int
    effects: int
    control_keys: int
    control_duplicates: int
    findings: list[Finding]

    @property
    def void(self) -> bool:
        return self.control_duplicates == 0

    @property
    def violations(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.violations]


def run(profile: Profile, seed: int) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="semel-box-") as folder, deployed(Path(folder)) as deployment:
        started = time.monotonic()
        clients = Clients([door.port for door in deployment.doors], deployment.arms, seed)
        nemesis = Nemesis(deployment, seed)
        nemesis.start()
        try:
            asyncio.run(_traffic(clients, nemesis, profile))
        finally:
            nemesis.stop()
        evidence = asyncio.run(ask_again(clients, deployment, seed))
        return outcome_of(clients, nemesis.faults, evidence, seed, time.monotonic() - started)


async def _traffic(clients: Clients, nemesis: Nemesis, profile: Profile) -> None:
    started = time.monotonic()
    tasks = [asyncio.create_task(clients.run()) for _ in range(CLIENTS)]
    while (passed_s := time.monotonic() - started) < profile.seconds_most and not nemesis.failed:
        requests = clients.answered + len(clients.protected)  # each key is asked for once more in the end
        enough = requests >= profile.requests_least and nemesis.faults.total() >= profile.faults_least
        if enough and nemesis.thorough and passed_s >= profile.seconds_least:
            break
        await asyncio.sleep(0.05)
    clients.ended = True
    await asyncio.gather(*tasks)


async def ask_again(clients: Clients, deployment: Deployment, seed: int) -> Evidence:
    """All faults are over. Wait until every lease is, too, then ask once more for everything."""
    stuck = await _quiet(deployment)
    operations = clients.protected
    last = await _ask_all(clients, operations, BODY)
    others = random.Random(seed).sample(operations, min(len(operations), OTHERS_MAX))
    last_others = await _ask_all(clients, others, OTHER_BODY)
    return Evidence(clients.told, last, last_others, read_ledger(deployment.ledger), stuck)


async def _quiet(deployment: Deployment) -> int:
    """Says how many keys are in progress beyond their leases."""
    deadline = time.monotonic() + QUIET_S
    await asyncio.sleep(LEASE_S)
    while (left := await asyncio.to_thread(deployment.in_progress)) and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    return left


async def _ask_all(clients: Clients, operations: list[Operation], body: str) -> dict[Operation, str]:
    waiting = list(operations)
    said: dict[Operation, str] = {}

    async def asker() -> None:
        while waiting:
            operation = waiting.pop()
            said[operation] = await _answer(clients, operation, body)

    await asyncio.gather(*(asker() for _ in range(ASKERS)))
    return said


async def _answer(clients: Clients, operation: Operation, body: str) -> str:
    """A store or a server that has just come back may break an exchange or two, and a key may only now be run."""
    deadline = time.monotonic() + QUIET_S
    while True:
        reply = await clients.ask(operation, body)
        said = "no answer" if reply is None else reply.said
        if said not in NOT_YET or time.monotonic() > deadline:
            return said
        await asyncio.sleep(0.1)


def outcome_of(clients: Clients, faults: Counter[str], evidence: Evidence, seed: int, seconds: float) -> Outcome:
    return Outcome(
        seed=seed,
        seconds=round(seconds, 1),
        requests=clients.answered,
        answers={arm: dict(said.most_common()) for arm, said in sorted(clients.said.items())},
        faults=dict(sorted(faults.items())),
        keys=len(clients.protected),
        effects=sum(len(found) for (arm, _), found in evidence.effects.items() if arm != CONTROL),
        control_keys=sum(arm == CONTROL for arm, _ in evidence.effects),
        control_duplicates=duplicates(evidence.effects, CONTROL),
        findings=findings(evidence),
    )
