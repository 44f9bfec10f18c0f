"""A process whose children each consume one delivery, and are killed at a chosen point of it.

It prints `killed ARM MODE ID` for each, and goes on to the next arm when a child lived to its end. The arms
`mark-first` and `no-inbox` are the controls: what services do without an inbox.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from semel.inbox import AsyncInbox, Delivery, Inbox
from semel.transaction import within
from transaction.modes import MODES, Mode
from transaction.victims import Points

HANDLER = "orders.projector"
ARMS = ("handled", "raised", "batch", "mark-first", "no-inbox")
CONTROLS = ("mark-first", "no-inbox")
CHOSEN = ("psycopg", "asyncpg", "sqlite3", "aiosqlite")
POINTS_MAX = 60


def deliveries(arm: str, name: str) -> list[Delivery]:
    names = [f"{name}-1", f"{name}-2"] if arm == "batch" else [name]
    return [Delivery(each.encode(), id=each) for each in names]


def opener(mode: Mode, url: str, points: Points) -> Callable[[], Any]:
    """Begins and commits, with a point before and after the COMMIT."""

    @contextmanager
    def begin() -> Iterator[Any]:
        with mode.begin(url, "") as connection:
            yield connection
            points.here()
        points.here()

    @asynccontextmanager
    async def abegin() -> AsyncIterator[Any]:
        async with mode.begin(url, "") as connection:
            yield connection
            points.here()
        points.here()

    return abegin if mode.is_async else begin


def consumer(mode: Mode, url: str, points: Points, *, fails: bool = False) -> Any:
    def handle(connection: Any, delivery: Delivery) -> None:
        points.here()
        mode.write(connection, delivery.payload.decode())
        points.here()
        if fails:
            raise ValueError("the printer is on fire")

    async def ahandle(connection: Any, delivery: Delivery) -> None:
        points.here()
        await mode.write(connection, delivery.payload.decode())
        points.here()
        if fails:
            raise ValueError("the printer is on fire")

    begin = opener(mode, url, points)
    if mode.is_async:
        return AsyncInbox(HANDLER).consumer(ahandle, begin=begin)
    return Inbox(HANDLER).consumer(handle, begin=begin)


def consume(mode: Mode, url: str, arm: str, name: str, points: Points) -> None:
    """One delivery, as this arm handles it."""
    if arm in CONTROLS:
        end(without_inbox(mode, url, arm, name, points))
        return
    found = consumer(mode, url, points, fails=arm == "raised")
    end(found.handle_batch(deliveries(arm, name)))
    points.here()


async def without_inbox(mode: Mode, url: str, arm: str, name: str, points: Points) -> None:
    begin = opener(mode, url, points)
    if arm == "mark-first" and not await mark(mode, begin, name):
        return
    points.here()
    if mode.is_async:
        async with begin() as connection:
            await mode.write(connection, name)
            points.here()
    else:
        with begin() as connection:
            mode.write(connection, name)
            points.here()


async def mark(mode: Mode, begin: Callable[[], Any], name: str) -> bool:
    """Record the id in a transaction of its own; False if it was there."""
    if mode.is_async:
        async with begin() as connection, within(connection).operation(name, scope="mark") as op:
            return not op.replayed
    with begin() as connection, within(connection).operation(name, scope="mark") as op:
        return not op.replayed


def end(reply: Any) -> None:
    if inspect.iscoroutine(reply):
        asyncio.run(reply)


def main(urls: dict[str, str]) -> None:
    for mode in [mode for mode in MODES if mode.name in CHOSEN]:
        for arm in ARMS:
            for point in range(POINTS_MAX):
                name = uuid.uuid4().hex
                child = os.fork()
                if child == 0:
                    points = Points(point)
                    points.watch()
                    consume(mode, urls[mode.database], arm, name, points)
                    os._exit(0)
                _, status = os.waitpid(child, 0)
                if os.waitstatus_to_exitcode(status) == 0:
                    break
                print("killed", arm, mode.name, name, flush=True)
            else:
                raise AssertionError(f"{arm} on {mode.name} has more than {POINTS_MAX} points")
    print("done", flush=True)


if __name__ == "__main__":
    main({"postgres": sys.argv[1], "sqlite": sys.argv[2]})
