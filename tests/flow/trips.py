"""A trip is booked in four steps, of every kind. What they do is a line in a ledger, or a row in a database.

`python -m flow.trips COMMAND …` does it in a process that may be killed or stopped.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg

import semel
from semel.core.effects import Emit
from semel.flow import AsyncFlow, Flow, FlowOperation, Step, keyed, tx, unsafe
from semel.flow.course import Keep, LetGo
from semel.flow.executors import AsyncExecutor, Executor
from semel.runtime.clock import wall_ms
from semel.transaction import units
from waiting import until

LEASE_MS = 30_000
PATIENCE_S = 60.0
TESTS = Path(__file__).parents[1]
Op = FlowOperation["Trip"]


@dataclass(frozen=True)
class Trip:
    traveller: str
    declined: bool = False


class Declined(Exception):
    """The last step says no."""


class Killed(BaseException):
    """As close to kill -9 as one process gets."""


class Clock:
    """The wall clock, moved forward: leases lapse when a test says so, and what lapses at once has at the next look."""

    def __init__(self, ahead_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms

    def __call__(self) -> int:
        self.ahead_ms += 2
        return wall_ms() + self.ahead_ms

    def lapse(self) -> None:
        self.ahead_ms += LEASE_MS + 1_000


class World:
    """What is outside of the flow: a ledger, and the table of orders where the store has a database."""

    def __init__(self, url: str, ledger: Path) -> None:
        self.url = url
        self.ledger = ledger
        self.hook: Callable[[str], None] = lambda place: None
        """Called in a step, after its effect."""
        self._connections: dict[int, psycopg.Connection] = {}
        self._async_connection: psycopg.AsyncConnection | None = None

    @property
    def path(self) -> str:
        return self.url.removeprefix("sqlite:///")

    @property
    def has_database(self) -> bool:
        return self.url.startswith(("sqlite", "postgres"))

    def set_up(self) -> None:
        if self.has_database:
            store = semel.open_store(self.url)
            store.migrate()  # type: ignore[attr-defined]
            store.close()
            with self.begin() as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS orders (at BIGINT, place TEXT, key TEXT, attempt INT)")

    @contextmanager
    def begin(self) -> Iterator[Any]:
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.path, timeout=PATIENCE_S)) as connection, connection:
                yield connection
            return
        here = threading.get_ident()
        if here not in self._connections:
            self._connections[here] = psycopg.connect(self.url)
        with self._connections[here].transaction():
            yield self._connections[here]

    @asynccontextmanager
    async def abegin(self) -> AsyncIterator[Any]:
        if self.url.startswith("sqlite"):
            async with aiosqlite.connect(self.path, timeout=PATIENCE_S) as connection:
                yield connection
                await connection.commit()
            return
        if self._async_connection is None:
            self._async_connection = await psycopg.AsyncConnection.connect(self.url)
        async with self._async_connection.transaction():
            yield self._async_connection

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    async def aclose(self) -> None:
        if self._async_connection is not None:
            await self._async_connection.close()

    def insert(self, place: str, op: Op) -> tuple[str, tuple[object, ...]]:
        mark = "?" if self.url.startswith("sqlite") else "%s"
        row = (time.monotonic_ns(), place, op.key.name, op.attempt)
        return f"INSERT INTO orders VALUES ({mark}, {mark}, {mark}, {mark})", row

    def write(self, kind: str, place: str, op: Op) -> None:
        with self.ledger.open("a") as file:  # one short write with O_APPEND: whole, whoever else writes
            file.write(f"{time.monotonic_ns()} {kind} {place} {op.key.name} {op.step_key}\n")

    def effects(self, key: str) -> list[str]:
        """What happened, in order, by the clock that all processes share.

        Whoever is called with a key does it once for that key; nobody else does.
        """
        found: list[tuple[int, str]] = []
        seen: dict[str, str] = {}
        for line in self.ledger.read_text().splitlines() if self.ledger.exists() else []:
            at, kind, place, name, step_key = line.split()
            if name == key:
                assert seen.setdefault(place, step_key) == step_key, "the key of a step must not change"
                if kind == "unsafe" or place not in {other for _, other in found}:
                    found.append((int(at), place))
        if self.has_database:
            with self.begin() as connection:
                found += [
                    (at, place)
                    for at, place, name in connection.execute("SELECT at, place, key FROM orders").fetchall()
                    if name == key
                ]
        return [place for _, place in sorted(found)]

    # The steps, sync and async

    def steps(self) -> list[Step[Trip]]:
        def hold(op: Op) -> str:
            self.write("keyed", "do/hold", op)
            self.hook("do/hold")
            return f"seat for {op.input.traveller}"

        def drop(op: Op) -> None:
            self.write("keyed", "undo/hold", op)
            assert op.results["hold"] == f"seat for {op.input.traveller}"
            self.hook("undo/hold")

        def order(op: Op, connection: Any) -> int:
            connection.execute(*self.insert("do/order", op))
            self.hook("do/order")
            return 17

        def cancel(op: Op, connection: Any) -> None:
            connection.execute(*self.insert("undo/order", op))

        def mail(op: Op) -> None:
            self.write("unsafe", "do/mail", op)
            self.hook("do/mail")

        def apologise(op: Op) -> None:
            self.write("unsafe", "undo/mail", op)

        def charge(op: Op) -> str:
            if op.input.declined:
                raise Declined(op.input.traveller)
            self.write("keyed", "do/charge", op)
            return f"{op.results['hold']}, order {op.results.get('order')}"

        def refund(op: Op) -> None:
            self.write("keyed", "undo/charge", op)
            assert "charge" not in op.results

        steps = [keyed("hold", hold, drop), tx("order", order, cancel)]
        return [
            *steps[: 2 if self.has_database else 1],
            unsafe("mail", mail, apologise),
            keyed("charge", charge, refund),
        ]

    def asteps(self) -> list[Step[Trip]]:
        def colored(step: Step[Trip]) -> Step[Trip]:
            if step.kind != "tx":
                return Step(step.name, step.kind, coroutine(step.do), step.undo and coroutine(step.undo))

            async def order(op: Op, connection: Any) -> int:
                await connection.execute(*self.insert("do/order", op))
                return 17

            async def cancel(op: Op, connection: Any) -> None:
                await connection.execute(*self.insert("undo/order", op))

            return tx("order", order, cancel)

        def coroutine(function: Callable[..., Any]) -> Callable[..., Any]:
            async def called(op: Op) -> Any:
                await asyncio.sleep(0)
                return function(op)

            return called

        return [colored(step) for step in self.steps()]

    def flow(self, store: semel.Store, **options: Any) -> Flow[Trip, str]:
        transaction = self.begin if self.has_database else None
        return Flow(
            "trips", self.steps(), store=store, input=Trip, returns=str, transaction=transaction, **common(options)
        )

    def aflow(self, store: semel.AsyncStore, **options: Any) -> AsyncFlow[Trip, str]:
        transaction = self.abegin if self.has_database else None
        return AsyncFlow(
            "trips", self.asteps(), store=store, input=Trip, returns=str, transaction=transaction, **common(options)
        )


def common(options: dict[str, Any]) -> dict[str, Any]:
    return {"final_errors": [Declined], "policy": semel.Policy(lease=LEASE_MS / 1000, wait=PATIENCE_S), **options}


class Boundaries:
    """Counts what flows do to the world, down to the statements of their transactions, and dies after number `at`."""

    def __init__(self, patch: Any, die: Callable[[], None]) -> None:
        self.count = 0
        self.at = -1
        self._die = die
        patch.setattr(Executor, "_perform", self._counted(Executor._perform))
        patch.setattr(units, "perform", self._counted(units.perform))
        patch.setattr(AsyncExecutor, "_perform", self._acounted(AsyncExecutor._perform))
        patch.setattr(units, "aperform", self._acounted(units.aperform))

    def arm(self, at: int) -> None:
        self.count, self.at = 0, at

    def _passed(self, effect: object) -> None:
        if not isinstance(effect, (Emit, Keep, LetGo)):  # they leave no trace
            self.count += 1
            if self.count == self.at:
                self._die()

    def _counted(self, perform: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            reply = perform(*args)
            self._passed(args[-1])
            return reply

        return counted

    def _acounted(self, perform: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(*args: Any) -> Any:
            reply = await perform(*args)
            self._passed(args[-1])
            return reply

        return counted


# In another process


def start(command: str, world: World, *args: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "flow.trips", command, world.url, str(world.ledger), *map(str, args)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


class Patch:
    setattr = staticmethod(setattr)


def main(command: str, url: str, ledger: str, *args: str) -> None:
    world = World(url, Path(ledger))
    if command == "die":  # KEY DECLINED BOUNDARY
        Boundaries(Patch, lambda: os.kill(os.getpid(), signal.SIGKILL)).arm(int(args[2]))
        world.flow(semel.open_store(url)).run(args[0], Trip(args[0], args[1] == "declined"))
    elif command == "wait":  # KEY DECLINED PLACE GATE
        gate = Path(args[3])

        def wait(place: str) -> None:
            if place == args[2]:
                print(f"in {place}", flush=True)
                until(lambda: not gate.exists())

        world.hook = wait
        try:
            print(world.flow(semel.open_store(url)).run(args[0], Trip(args[0], args[1] == "declined")))
        except (semel.SemelError, Declined) as error:
            print(type(error).__name__)
    elif command == "recover":  # AHEAD_MS
        clock = Clock(int(args[0]))
        print("ready", flush=True)
        sys.stdin.readline()
        report = world.flow(semel.open_store(url, clock=clock)).recover()
        assert not report.left, report.left
        print(" ".join(key.name for key in report.ended))


if __name__ == "__main__":
    main(*sys.argv[1:])
