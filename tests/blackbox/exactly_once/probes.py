"""What is asked when all faults are over: twins that wait, requests that are late, handlers that are cut off."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from blackbox.exactly_once.callers import HERD, Callers
from blackbox.exactly_once.connections import POOL
from blackbox.exactly_once.deployment import Deployment, ask
from blackbox.exactly_once.nemesis import is_commit
from blackbox.exactly_once.orders import LEASE_S, WAIT_S, Arm, Kind
from semel.testing.proxy import Fault

Verdict = tuple[str, bool]
PROBE_S = 20.0
"""How long one may take on a busy machine."""
HELD_S = 2.2
"""How long the first of the twins takes."""
LATE_S = 1.2
FAR_HELD_S = 9.0
EXCHANGE_S = 0.1
LOOKS = 10
OTHERS = 2


async def use_connections(callers: Callers, deployment: Deployment) -> None:
    """Use every connection, so that pools drop those which were cut while they lay there."""
    for _ in range(2):
        orders = [(arm, port) for arm in deployment.arms for port in deployment.ports(arm.name) for _ in range(POOL)]
        await asyncio.gather(*(callers.ask(callers.order(arm.name, Kind.PLAIN), port=port) for arm, port in orders))


async def lose_commits(callers: Callers, deployment: Deployment) -> None:
    """One commit of each arm does not arrive, and the reply to another one is lost. What is told must be true."""
    for arm in deployment.arms:
        if arm.database == "postgres":
            for fault in (Fault.CUT_BEFORE, Fault.CUT_AFTER):
                lost = deployment.links[arm.name].inject(fault, when=is_commit)
                await callers.ask(callers.order(arm.name, Kind.PLAIN))
                lost.cancel()


async def ask_beside_twins(callers: Callers, deployment: Deployment) -> list[Verdict]:
    """SQLite has one writer: there everything waits for everything."""
    arms = [arm for arm in deployment.arms if arm.database == "postgres"]
    probes = (_within_bound(arm, _beside_twins(callers, deployment, arm)) for arm in arms)
    return [*await asyncio.gather(*probes)]


async def ask_far_twins(callers: Callers, deployment: Deployment) -> list[Verdict]:
    """Twins on another server, where every exchange with the database takes a while."""
    arms = [arm for arm in deployment.arms if arm.database == "postgres" and len(deployment.ports(arm.name)) > 1]
    probes = (_within_bound(arm, _far_twin(callers, deployment, arm)) for arm in arms)
    return [*await asyncio.gather(*probes)]


async def ask_late(callers: Callers, deployment: Deployment) -> list[Verdict]:
    """Requests that outlast the lease while their event loop stands still, and others that come then."""
    probes = [asyncio.create_task(_within_bound(arm, _late(callers, deployment, arm))) for arm in deployment.arms]
    await asyncio.sleep(0.5 * LEASE_S)
    for server in deployment.servers:
        if not server.in_threads:
            await asyncio.to_thread(ask, server.port, "block")
    return [*await asyncio.gather(*probes)]


async def ask_after_cuts(callers: Callers, deployment: Deployment) -> list[Verdict]:
    """Each handler is cut off in every run; afterwards nothing may be left, without any other request."""
    return [
        await _within_bound(arm, _after_cuts(callers, deployment, arm, kind))
        for arm in deployment.arms
        for kind in (Kind.UNKNOWN, Kind.CUT_OFF)
    ]


async def _within_bound(arm: Arm, probe: Coroutine[Any, Any, Verdict]) -> Verdict:
    try:
        return await asyncio.wait_for(probe, PROBE_S)
    except TimeoutError:
        return f"{arm.name}: not answered within {PROBE_S} s", False


async def _beside_twins(callers: Callers, deployment: Deployment, arm: Arm) -> Verdict:
    """Only the first of the twins has a connection, and requests with other keys are served meanwhile."""
    port, lent = deployment.ports(arm.name)[0], list[int]()
    twins = callers.order(arm.name, Kind.SLOW, HELD_S)
    first = asyncio.create_task(callers.ask(twins, port=port))
    await asyncio.sleep(0.1)
    herd = [asyncio.create_task(callers.ask(twins, port=port)) for _ in range(HERD)]
    await asyncio.sleep(0.2)
    while not first.done() and len(lent) < LOOKS:
        lent.append((await asyncio.to_thread(ask, port, "lent"))[arm.name])
        await asyncio.sleep(0.05)
    others = [(await callers.ask(callers.order(arm.name, Kind.PLAIN), port=port)).said for _ in range(OTHERS)]
    await asyncio.gather(first, *herd)
    what = f"{arm.name}: connections in use while {HERD} twins wait for one {lent}, other keys were told {others}"
    return what, min(lent, default=0) <= 1 and others == ["201"] * OTHERS


async def _far_twin(callers: Callers, deployment: Deployment, arm: Arm) -> Verdict:
    """The first one runs for much longer than `wait`, so a twin that keeps to `wait` is told that it still runs."""
    near, far = deployment.ports(arm.name)[:2]
    order = callers.order(arm.name, Kind.SLOW, FAR_HELD_S)
    first = asyncio.create_task(callers.ask(order, port=near))
    await asyncio.sleep(0.5)
    slow = deployment.links[arm.name].inject(Fault.DELAY, times=None, delay_s=EXCHANGE_S)
    begun = time.monotonic()
    said = (await callers.ask(order, port=far)).said
    took_s = time.monotonic() - begun
    slow.cancel()
    await first
    return f"{arm.name}: told {said} after {took_s:.1f} s, wait is {WAIT_S} s", said == "409 in-progress"


async def _late(callers: Callers, deployment: Deployment, arm: Arm) -> Verdict:
    """Those that come later use all connections of the pool, also one that a late request might still write on."""
    port = deployment.ports(arm.name)[0]
    late = asyncio.create_task(callers.ask(callers.order(arm.name, Kind.SLOW, LATE_S), port=port))
    await asyncio.sleep(1.5 * LEASE_S)
    for count in (2, POOL):
        await asyncio.gather(*(callers.ask(callers.order(arm.name, Kind.PLAIN), port=port) for _ in range(count)))
        await late
    said = (await late).said
    return f"{arm.name}: {said}", said == "201"


async def _after_cuts(callers: Callers, deployment: Deployment, arm: Arm, kind: Kind) -> Verdict:
    order = callers.order(arm.name, kind, odds=1.0)
    del callers.orders[order.key]  # it never ends
    said = [(await callers.ask(order, port=deployment.ports(arm.name)[0])).said for _ in range(3)]
    left = await left_open(deployment)
    return f"{arm.name}, {kind}: said {said}, left {left}", "409 in-progress" not in said and not left


async def left_open(deployment: Deployment, patience_s: float = 2.0) -> list[str]:
    """Transactions that are open, and connections that are out, after a moment."""
    deadline = time.monotonic() + patience_s
    while left := [*await asyncio.to_thread(deployment.open_transactions), *await asyncio.to_thread(deployment.lent)]:
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(0.05)
    return left
