"""All that we use of psycopg's internals. `pyproject.toml` bounds its version.

- `generators.execute`, `waiting.wait_async`, `errors.error_from_result`, `Transformer.set_pgresult`,
  `Transformer.load_rows` and `Connection.wait`: with them `Exchange` asks batches past psycopg's cursors. Without one
  of them cursors ask.
- Generators of psycopg are sent 0 when nothing came: `bounded` looks at the time then.
- psycopg itself calls `Connection.wait` and `Connection._connect_gen`, so that ours can give up a server that says
  nothing. If it stops calling them, libpq's `connect_timeout` and the server's `statement_timeout` are left.

Two fast paths, measured on the client's processor (docs/measurements.md). Both of them, and the public interface
that they equal, are asked the same in tests/stores/test_postgres_driver.py.

- `Exchange` equals `execute` and `fetchall` of a cursor: with `array`, 59 to 44 us for a claim and its completion.
- `array` equals psycopg's own arrays, written as text item by item: that was a third of the cost of a batch.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import chain
from struct import pack
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.adapt import Dumper
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

from semel.stores.postgres.failures import Silent
from semel.stores.sql.statements import Rows, Statement

if TYPE_CHECKING:
    from psycopg.abc import PQGen, PQGenConn

RV = TypeVar("RV")
W = TypeVar("W")
Row = tuple[Any, ...]
LOOK_S = 0.1
"""How often psycopg looks at the time while it waits. It does so for threads, too."""
GOOD = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class Internals(NamedTuple):
    """What `Exchange` uses."""

    execute: Callable[[PGconn], PQGen[list[PGresult]]]
    wait_async: Callable[[PQGen[Rows], int, float], Awaitable[Rows]]
    error_from_result: Callable[[PGresult], psycopg.Error]
    make_reader: Callable[[], Any]


def find_internals() -> Internals | None:
    """None if this psycopg lacks one of them."""
    try:
        from psycopg.adapt import Transformer
        from psycopg.errors import error_from_result
        from psycopg.generators import execute
        from psycopg.waiting import wait_async
    except ImportError:
        return None
    needed = ((Transformer, "set_pgresult"), (Transformer, "load_rows"), (Connection, "wait"))
    has_all = all(hasattr(owner, name) for owner, name in needed)
    return Internals(execute, wait_async, error_from_result, Transformer) if has_all else None


class Exchange:
    """Asks statements whose parameters are lists (and the time): batches of calls. Both faces drive its generators.

    A cursor converts, describes and remembers more than our statements need: that was half of what a call cost here.
    """

    def __init__(self, pgconn: PGconn, internals: Internals) -> None:
        self.prepares = False
        self._pgconn = pgconn
        self._internals = internals
        self._reader = internals.make_reader()
        self._names: dict[str, bytes] = {}

    @classmethod
    def of(cls, pgconn: PGconn) -> Exchange | None:
        """None where cursors have to do it."""
        internals = find_internals()
        return None if internals is None else cls(pgconn, internals)

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
        result = yield from self._result()
        self._reader.set_pgresult(result)
        rows: Rows = self._reader.load_rows(0, result.ntuples, tuple)
        self._reader.set_pgresult(None)  # an idle connection keeps no answer of an earlier call
        return rows

    def aask(self, statement: Statement, due_s: float, timeout_s: float) -> Awaitable[Rows]:
        """For tasks. `AsyncConnection.wait`, when cancelled, would ask the server to stop, and wait for that."""
        look_s = max(0.0, min(LOOK_S, due_s - time.monotonic()))
        return self._internals.wait_async(bounded(self.ask(statement), due_s, timeout_s), self._pgconn.socket, look_s)

    def _prepared(self, sql: str) -> PQGen[bytes]:
        name = b"semel_%d" % len(self._names)
        self._pgconn.send_prepare(name, sql.encode())
        yield from self._result()
        self._names[sql] = name
        return name

    def _result(self) -> PQGen[PGresult]:
        results = yield from self._internals.execute(self._pgconn)
        for result in results:
            if result.status not in GOOD:
                raise self._internals.error_from_result(result)
        return results[-1]


def bounded(exchange: Generator[W, int, RV], due_s: float, timeout_s: float) -> Generator[W, int, RV]:
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


CONNECT_BY_S: ContextVar[float] = ContextVar("semel_postgres_connect_by", default=float("inf"))
"""When a connection that is being made is given up. libpq counts in whole seconds, and anew for each address."""


@contextmanager
def connecting_by(due_s: float) -> Iterator[None]:
    token = CONNECT_BY_S.set(due_s)
    try:
        yield
    finally:
        CONNECT_BY_S.reset(token)


def _connected(connecting: PQGenConn[RV]) -> PQGenConn[RV]:
    by_s = CONNECT_BY_S.get()
    return bounded(connecting, by_s, max(0.0, round(by_s - time.monotonic(), 1)))


class Patience:
    """How long a connection waits for the server."""

    timeout_s = 5.0
    due_s: float | None = None
    """When the call that uses this connection now must have ended; None gives each statement its whole time."""

    @property
    def give_up_s(self) -> float:
        return time.monotonic() + self.timeout_s if self.due_s is None else self.due_s


class BoundedConnection(Patience, Connection[Row]):
    """Gives up a server that says nothing. Without these methods of psycopg, nothing calls ours."""

    @classmethod
    def _connect_gen(cls, *args: Any, **kwargs: Any) -> PQGenConn[Any]:
        return _connected(super()._connect_gen(*args, **kwargs))

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        return super().wait(bounded(gen, self.give_up_s, self.timeout_s), *args, **kwargs)


class AsyncBoundedConnection(Patience, AsyncConnection[Row]):
    """The same for coroutines."""

    @classmethod
    def _connect_gen(cls, *args: Any, **kwargs: Any) -> PQGenConn[Any]:
        return _connected(super()._connect_gen(*args, **kwargs))

    async def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        return await super().wait(bounded(gen, self.give_up_s, self.timeout_s), *args, **kwargs)


TEXT, BYTEA, INT8, BOOL = 25, 17, 20, 16
SHORT = 128
"""Below this, the four bytes of a size are characters that UTF-8 writes as they are."""


class ArrayDumper(Dumper):
    """Register it for `list` on connections that run our statements and nothing else."""

    format = Format.BINARY
    oid = 0

    def dump(self, obj: list[Any]) -> bytes:
        return array(obj)


def packed(value: Any) -> bytes | None:
    """A parameter of a batch: a list, or the time."""
    match value:
        case list():
            return array(value)
        case int():
            return pack("!q", value)
        case None:
            return None
        case other:
            raise TypeError(f"no {type(other).__name__} is a parameter of a batch")


def array(items: list[Any]) -> bytes:
    """Most columns of a batch have one value, or values of one size: those need no Python for each item."""
    first = items[0]
    kind = KINDS.get(type(first))
    if kind is None:
        raise TypeError(f"no array of {type(first).__name__} is part of our statements")
    oid, one, many = kind
    count = len(items)
    if count == 1:
        return HEADS_OF_ONE[oid] + one(first)
    if items.count(first) == count:
        return _head(oid, count) + one(first) * count
    return _head(oid, count) + many(items)


def _text(item: str) -> bytes:
    return _bytes(item.encode())


def _texts(items: list[str]) -> bytes:
    size = len(items[0])
    if size < SHORT:
        before = f"\0\0\0{chr(size)}"
        joined = before + before.join(items)
        if len(set(map(len, items))) == 1 and joined.isascii():
            return joined.encode()
    return b"".join([_text(item) for item in items])


def _bytes(item: bytes) -> bytes:
    return pack("!i", len(item)) + item


def _all_bytes(items: list[bytes]) -> bytes:
    if len(set(map(len, items))) == 1:
        before = pack("!i", len(items[0]))
        return before + before.join(items)
    return b"".join([part for item in items for part in (pack("!i", len(item)), item)])


def _all_of(code: str, size: int, items: list[int]) -> bytes:
    return pack("!" + code * len(items), *chain.from_iterable((size, item) for item in items))


def _head(oid: int, size: int) -> bytes:
    """One dimension, no NULLs, the type of the items, how many, counted from 1."""
    return pack("!iiiii", 1, 0, oid, size, 1)


HEADS_OF_ONE = {oid: _head(oid, 1) for oid in (TEXT, BYTEA, INT8, BOOL)}
KINDS: dict[type, tuple[int, Callable[[Any], bytes], Callable[[list[Any]], bytes]]] = {
    str: (TEXT, _text, _texts),
    bytes: (BYTEA, _bytes, _all_bytes),
    int: (INT8, partial(pack, "!iq", 8), partial(_all_of, "iq", 8)),
    bool: (BOOL, partial(pack, "!i?", 1), partial(_all_of, "i?", 1)),
}
"""How one item is written, and how many different ones are, by the type of the first."""
