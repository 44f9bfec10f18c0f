"""The service for event loops: `POST /{arm}/pay` writes four rows through `store.current()` and answers.

`GET /block` blocks the event loop for longer than the lease, `GET /lent` tells how many connections are out.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from blackbox.exactly_once.connections import Connections, connections_of
from blackbox.exactly_once.orders import (
    ARMS,
    CONTROL,
    LEASE_S,
    WAIT_S,
    Block,
    Change,
    Give,
    Kind,
    Order,
    Part,
    Pause,
    Step,
    Write,
    answer_of,
    parts_of,
    status_of,
    steps,
)
from blackbox.exactly_once.setting import POLICY, SECRET, URLS, Attempt, raised
from semel.asgi import IdempotencyMiddleware
from semel.transaction import AsyncTransactionStore

JSON = (b"content-type", b"application/json")


class Payments:
    """The handler on one kind of connection."""

    def __init__(self, connections: Connections, store: AsyncTransactionStore[Any] | None) -> None:
        self._connections = connections
        self._store = store

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        order = Order.read((await receive())["body"])
        with Attempt(order) as attempt:
            if self._store is not None:
                await self._pay(attempt, self._store.current(), send)
                return
            async with self._connections.begin() as connection:
                await self._pay(attempt, connection, send)

    async def _pay(self, attempt: Attempt, connection: Any, send: Any) -> None:
        order, is_begun = attempt.order, False
        for step in steps(order, attempt.run, attempt.chance):
            if isinstance(step, Part):
                if not is_begun:
                    await self._start(order, sum(map(len, parts_of(order, attempt.run))), send)
                is_begun = True
                await send({"type": "http.response.body", "body": step.data, "more_body": True})
            else:
                await self._perform(step, attempt, connection)
        if is_begun:
            await send({"type": "http.response.body", "body": b""})
            return
        answer = answer_of(order, attempt.run)
        await self._start(order, len(answer), send)
        await send({"type": "http.response.body", "body": answer})

    async def _start(self, order: Order, size: int, send: Any) -> None:
        headers = [JSON, (b"content-length", b"%d" % size)]
        await send({"type": "http.response.start", "status": status_of(order), "headers": headers})

    async def _perform(self, step: Step, attempt: Attempt, connection: Any) -> None:
        match step:
            case Write() | Change():
                asked_s = time.monotonic()
                await self._connections.execute(connection, *attempt.statement(step))
                attempt.wrote(asked_s)
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case Block(seconds):
                attempt.fault("blocked the event loop past the lease")
                time.sleep(seconds)  # on purpose
            case Give(up=Kind.CUT_OFF):
                attempt.fault("was cancelled")
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)
            case Give(up=kind):
                attempt.fault(kind)
                raise raised(kind)
            case _:
                raise TypeError(step)


pools = {arm.name: connections_of(arm.name, URLS[arm.name]) for arm in ARMS if not arm.in_threads}
stores = {arm: AsyncTransactionStore(pool.begin, wait=WAIT_S) for arm, pool in pools.items()}
fronts = {
    arm: IdempotencyMiddleware(
        Payments(pools[arm], store),
        store=store,
        policy=POLICY,
        secret=SECRET,
        publish=f"/{arm}/.well-known/idempotency",
        identify=lambda scope: "shop",
    )
    for arm, store in stores.items()
}
unprotected = Payments(connections_of(CONTROL, URLS[CONTROL]), None)


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await _live(receive, send)
        return
    arm = scope["path"].split("/")[1]
    if arm in fronts:
        await fronts[arm](scope, receive, send)
    elif arm == CONTROL:
        await unprotected(scope, receive, send)
    else:
        if arm == "block":
            time.sleep(1.5 * LEASE_S)  # on purpose: the loop stands still
        told = json.dumps({arm: pool.lent() for arm, pool in pools.items()}).encode()
        headers = [JSON, (b"content-length", b"%d" % len(told))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": told})


async def _live(receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    for front in fronts.values():
        await front.close()
    await send({"type": "lifespan.shutdown.complete"})
