"""`make trace`: the way of one operation, as a reader of the code follows it: which functions it enters, in order.

It prints a line for each way: functions of semel entered, coroutines and generators resumed, modules. With the name of
a way (`make trace ARGS=sqlite-first`) it prints every step, indented by depth.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from sqlalchemy import create_engine, text
from sqlalchemy.orm import sessionmaker

import semel
from benchmarks.in_process import KNOWN, least, post
from benchmarks.places import STORES, Places, places
from semel.asgi import IdempotencyMiddleware
from semel.stores.open import open_async_store
from semel.transaction import within

ROOT = str(Path(semel.__file__).parent)
PREPARED = 3
"""How many operations come before the one that is traced."""
Operation = Callable[[], Awaitable[object]]


class Step(NamedTuple):
    depth: int
    module: str
    function: str
    resumed: bool


class Trace:
    """The steps of one operation, in the thread of the event loop."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._seen: set[FrameType] = set()

    def __enter__(self) -> Trace:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(ROOT):
            return
        module = frame.f_code.co_filename[len(ROOT) + 1 :]
        self.steps.append(Step(_depth(frame), module, frame.f_code.co_qualname, frame in self._seen))
        self._seen.add(frame)

    def summary(self) -> str:
        resumed = sum(step.resumed for step in self.steps)
        modules = len({step.module for step in self.steps})
        return f"{len(self.steps) - resumed:>8}{resumed:>9}{modules:>9}"

    def page(self) -> str:
        return "\n".join(
            f"{'  ' * step.depth}{step.function}{' (resumed)' if step.resumed else ''}  {step.module}"
            for step in self.steps
        )


def _depth(frame: FrameType) -> int:
    """How many functions of semel this one is called from."""
    depth, outer = 0, frame.f_back
    while outer is not None:
        depth += outer.f_code.co_filename.startswith(ROOT)
        outer = outer.f_back
    return depth


@asynccontextmanager
async def ways(where: Places) -> AsyncIterator[dict[str, Operation]]:
    """Every way, by its name."""
    found: dict[str, Operation] = {}
    async with AsyncExitStack() as stack:
        for name in STORES:
            store: Any = open_async_store(where.url(name))
            stack.push_async_callback(store.close)
            middleware = IdempotencyMiddleware(least, store=store, identify=lambda scope: "shop-1")
            found[f"{name}-first"] = partial(_post_new, middleware)
            found[f"{name}-replay"] = partial(post, middleware, KNOWN)
            found[f"{name}-function"] = _function(store)
        found["postgres-within"] = _within(where.fresh_database())
        yield found


async def _post_new(middleware: IdempotencyMiddleware) -> int:
    return await post(middleware, secrets.token_hex(16))


def _function(store: Any) -> Operation:
    @semel.idempotent(key="order_id", store=store)
    async def charge(order_id: str) -> dict[str, int]:
        return {"amount": 10}

    return lambda: charge(secrets.token_hex(8))


def _within(url: str) -> Operation:
    """Rows and record in one transaction of SQLAlchemy's."""
    sessions = sessionmaker(create_engine(url.replace("postgresql://", "postgresql+psycopg://")))
    with sessions.begin() as connection:
        connection.execute(text("CREATE TABLE payments (amount INTEGER)"))

    async def pay() -> None:
        with sessions.begin() as session, within(session).operation(secrets.token_hex(8), scope="pay") as op:
            if not op.replayed:
                session.execute(text("INSERT INTO payments VALUES (10)"))
                op.result = {"amount": 10}

    return pay


async def trace(operation: Operation) -> Trace:
    for _ in range(PREPARED):
        await operation()
        await asyncio.sleep(0.05)  # each in a pass of the event loop of its own, as a lone request comes
    with Trace() as found:
        await operation()
    return found


async def show(where: Places, chosen: str | None) -> None:
    async with ways(where) as operations:
        if chosen is not None:
            print((await trace(operations[chosen])).page())
            return
        print(f"{'':<20}{'entered':>8}{'resumed':>9}{'modules':>9}")
        for name, operation in operations.items():
            print(f"{name:<20}{(await trace(operation)).summary()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trace", description=__doc__)
    parser.add_argument("way", nargs="?", help="print every step of this way, such as sqlite-first")
    chosen = parser.parse_args().way
    with places() as where:
        asyncio.run(show(where, chosen))
