"""One question and its answer on a connection, through psycopg's own generators but past its cursors.

A cursor converts, describes and remembers more than our statements need: that was half of what a call cost here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Sequence
from typing import TypeVar

import psycopg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

from semel.stores.postgres.arrays import packed
from semel.stores.sql.statements import Rows, Statement

RV = TypeVar("RV")
W = TypeVar("W")
GOOD = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class Silent(psycopg.OperationalError):
    """The server said nothing until the time of the call was used up."""


class Exchange:
    """Asks statements whose parameters are lists (and the time): batches of calls. Both faces drive its generators."""

    def __init__(self, pgconn: PGconn) -> None:
        self.prepares = False
        self._pgconn = pgconn
        self._reader = Transformer()
        self._names: dict[str, bytes] = {}

    @staticmethod
    def takes(statement: Statement) -> bool:
        params = statement.params
        return isinstance(params, list) and bool(params) and isinstance(params[0], list)

    def ask(self, statement: Statement) -> PQGen[Rows]:
        given = [packed(value) for value in statement.params]
        formats = [Format.BINARY] * len(given)
        if self.prepares:
            name = self._names.get(statement.sql) or (yield from self._prepared(statement.sql))
            self._pgconn.send_query_prepared(name, given, formats, Format.BINARY)
        else:
            self._pgconn.send_query_params(statement.sql.encode(), given, None, formats, Format.BINARY)
        result = _good((yield from generators.execute(self._pgconn)))
        self._reader.set_pgresult(result)
        rows = self._reader.load_rows(0, result.ntuples, tuple)
        self._reader.set_pgresult(None)  # an idle connection keeps nobody's answers
        return rows

    def _prepared(self, sql: str) -> PQGen[bytes]:
        name = b"semel_%d" % len(self._names)
        self._pgconn.send_prepare(name, sql.encode())
        _good((yield from generators.execute(self._pgconn)))
        self._names[sql] = name
        return name


def _good(results: Sequence[PGresult]) -> PGresult:
    for result in results:
        if result.status not in GOOD:
            raise error_from_result(result)
    return results[-1]


def bounded(exchange: Generator[W, Ready | int, RV], due_s: float, timeout_s: float) -> Generator[W, Ready | int, RV]:
    """Pass on what the driver waits for, and give up when the server says nothing until `due_s`."""
    try:
        wanted = next(exchange)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() >= due_s:
                raise Silent(f"no answer within {timeout_s:g} s")
            wanted = exchange.send(ready)
    except StopIteration as stop:
        value: RV = stop.value
        return value


async def answered(exchange: PQGen[RV], fileno: int, due_s: float, timeout_s: float) -> RV:
    """The same for a batch of a coroutine, with one timer: psycopg's own wait has one for each tenth of a second.

    Nor does it ask the server to stop when it is cancelled. Batches have a task of their own, which nobody cancels
    before the event loop ends.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + due_s - time.monotonic()
    try:
        wanted = next(exchange)
        while True:
            woken = loop.create_future()
            timer = loop.call_at(deadline, _wake, woken, Ready.NONE)
            if wanted & Wait.R:
                loop.add_reader(fileno, _wake, woken, Ready.R)
            if wanted & Wait.W:
                loop.add_writer(fileno, _wake, woken, Ready.W)
            try:
                ready = await woken
            finally:
                timer.cancel()
                if wanted & Wait.R:
                    loop.remove_reader(fileno)
                if wanted & Wait.W:
                    loop.remove_writer(fileno)
            if not ready:
                raise Silent(f"no answer within {timeout_s:g} s")
            wanted = exchange.send(ready)
    except StopIteration as stop:
        value: RV = stop.value
        return value


def _wake(woken: asyncio.Future[Ready], ready: Ready) -> None:
    if not woken.done():
        woken.set_result(ready)
