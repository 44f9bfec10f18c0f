"""What is asked when all faults are over: twins that wait, requests that are late, handlers that are cut off."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from blackbox.exactly_once.callers import BOUND_S, HERD, Callers
from blackbox.exactly_once.connections import POOL
from blackbox.exactly_once.deployment import Deployment, ask
from blackbox.exactly_once.orders import LEASE_S, Arm, Kind

Verdict = tuple[str, bool]
HELD_S = 1.6
"""How long the first of the twins takes."""
AT_ONCE_S = 1.0
"""A request beside them is answered by then."""
LATE_S = 1.2
OTHERS = 4
TRIES = 3
"""A machine may stand still for a moment: only what is late every time counts."""


async def ask_beside_twins(callers: Callers, deployment: Deployment) -> list[Verdict]:
    """SQLite has one writer: there everything waits for everything."""
    arms = [arm for arm in deployment.arms if arm.database == "postgres"]
    probes = (_within_bound(arm, _beside_twins(callers, deployment, arm)) for arm in arms)
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
        return await asyncio.wait_for(probe, BOUND_S)
    except TimeoutError:
        return f"{arm.name}: not answered within {BOUND_S} s", False


async def _beside_twins(callers: Callers, deployment: Deployment, arm: Arm) -> Verdict:
    port, took_s = deployment.ports(arm.name)[0], []
    for _ in range(TRIES):
        twins = callers.order(arm.name, Kind.SLOW, HELD_S)
        herd = [asyncio.create_task(callers.ask(twins, port=port)) for _ in range(HERD)]
        await asyncio.sleep(0.3)
        begun = time.monotonic()
        asked = [await callers.ask(callers.order(arm.name, Kind.PLAIN), port=port) for _ in range(OTHERS)]
        took_s.append(time.monotonic() - begun)
        await asyncio.gather(*herd)
        if took_s[-1] < AT_ONCE_S and all(each.said == "201" for each in asked):
            return f"{arm.name}: {took_s}", True
    return f"{arm.name}: {OTHERS} requests took {took_s} s", False


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


async def left_open(deployment: Deployment, patience_s: float = 1.0) -> list[str]:
    """Transactions that are open, and connections that are out, after a moment."""
    deadline = time.monotonic() + patience_s
    while left := [*await asyncio.to_thread(deployment.open_transactions), *await asyncio.to_thread(deployment.lent)]:
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(0.05)
    return left
