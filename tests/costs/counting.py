"""Counters that know nothing of what they watch: round trips on the wire, statements in SQLite, passes of a loop."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any

import hiredis
import pytest

from semel.testing.proxy import Fault, FaultProxy, ProxyExchange


class RoundTrips:
    """How often a client has asked since the last look. Pieces of one message are put together first."""

    def __init__(self) -> None:
        self.count = 0

    def taken(self) -> int:
        count, self.count = self.count, 0
        return count

    def __call__(self, exchange: ProxyExchange) -> bool:
        """For the proxy, which asks whether this exchange is to fail: never, but we have seen it."""
        self.see(exchange.connection, exchange.request)
        return False

    def see(self, connection: int, data: bytes) -> None:
        raise NotImplementedError


class PostgresRoundTrips(RoundTrips):
    """A client waits after each Sync and each simple Query."""

    def __init__(self) -> None:
        super().__init__()
        self._rest: dict[int, bytes] = {}

    def see(self, connection: int, data: bytes) -> None:
        data = self._rest.get(connection, b"") + data
        while len(data) >= 5:
            typed = data[0] != 0  # the first messages of a connection have no type
            size = int.from_bytes(data[1:5] if typed else data[:4]) + typed
            if len(data) < size:
                break
            self.count += data[:1] in (b"S", b"Q")
            data = data[size:]
        self._rest[connection] = data


class RedisRoundTrips(RoundTrips):
    """Commands; none of ours are pipelined, so each is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._readers: dict[int, hiredis.Reader] = {}

    def see(self, connection: int, data: bytes) -> None:
        reader = self._readers.setdefault(connection, hiredis.Reader())
        reader.feed(data)
        while reader.gets() is not False:
            self.count += 1


@contextmanager
def watched(url: str) -> Iterator[tuple[str, RoundTrips]]:
    """The same server by way of a proxy, and how often it is asked."""
    counter = PostgresRoundTrips() if url.startswith("postgresql") else RedisRoundTrips()
    with FaultProxy(url) as proxy:
        proxy.inject(Fault.DELAY, when=counter, times=None)
        yield proxy.url, counter


def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement that any connection to SQLite runs from now on."""
    statements: list[str] = []
    connect = sqlite3.connect

    def connect_traced(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **options)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_traced)
    return statements


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts what is put off to a later pass of the loop: new tasks, woken waiters, callbacks."""

    put_off = 0

    def call_soon(  # type: ignore[override]  # typeshed has a type variable here that a wrapper cannot repeat
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        self.put_off += 1
        return super().call_soon(callback, *args, context=context)
