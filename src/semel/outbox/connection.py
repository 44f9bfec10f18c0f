"""One connection to a broker for all tasks that publish at once: opened on first use, and anew after it was lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

from semel.errors import BrokerMisconfigured, BrokerUnavailable, Misuse
from semel.runtime.url import ServiceUrl

Connection = TypeVar("Connection")
TIMEOUT_MS, TIMEOUT_MS_MIN, TIMEOUT_MS_MAX = 10_000, 50, 600_000
CLOSE_S = 2.0
"""How long a broker may take to say goodbye."""


class SharedConnection(Generic[Connection]):
    """Reconnecting is left to the next message: a broker that is away says so at once, and nothing runs meanwhile.

    It belongs to one event loop of one process; used in another one, it opens another connection.
    """

    def __init__(
        self,
        shown: str,
        timeout_ms: int,
        connect: Callable[[], Awaitable[Connection]],
        disconnect: Callable[[Connection], Awaitable[object]],
        is_open: Callable[[Connection], bool] = lambda _: True,
    ) -> None:
        if not TIMEOUT_MS_MIN <= timeout_ms <= TIMEOUT_MS_MAX:
            raise ValueError(f"timeout_ms must be {TIMEOUT_MS_MIN} to {TIMEOUT_MS_MAX}, not {timeout_ms}")
        self.shown = shown
        self._timeout_ms = timeout_ms
        self._connect, self._disconnect, self._is_open = connect, disconnect, is_open
        self._connection: Connection | None = None
        self._opening: asyncio.Task[Connection] | None = None
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._uses: dict[asyncio.Timeout, Connection] = {}
        self._farewells: set[asyncio.Task[None]] = set()
        self._heard_s = 0.0
        self._closed = False

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[Connection]:
        """The connection, for one exchange that takes at most `timeout_ms`; connecting is part of that time.

        Raises `BrokerUnavailable` when the time is over or the connection is lost meanwhile. An error that means that
        the connection is of no more use must be followed by `lose`.
        """
        began_s = asyncio.get_running_loop().time()
        connection: Connection | None = None
        try:
            async with asyncio.timeout(self._timeout_ms / 1000) as limit:
                connection = await self._open()
                self._uses[limit] = connection
                try:
                    yield connection
                finally:
                    self._uses.pop(limit, None)
            self._heard_s = asyncio.get_running_loop().time()
        except TimeoutError:
            if connection is not None and connection is self._connection and self._heard_s <= began_s:
                self.lose(connection)  # it answers no exchange; otherwise only this one is stuck
            in_time = asyncio.get_running_loop().time() < began_s + self._timeout_ms / 1000
            why = "the connection was lost" if in_time else f"no confirmation within {self._timeout_ms} ms"
            raise BrokerUnavailable(f"{self.shown}: {why}") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # A client library cancelled the future of a reply, because its connection was lost.
            if connection is not None:
                self.lose(connection)
            raise BrokerUnavailable(f"{self.shown}: the connection was lost") from None

    def lose(self, connection: Connection) -> None:
        """Give up this connection, for every task that waits for a reply on it."""
        if self._connection is connection:
            self._connection = None
            self.dismiss(connection)
        now_s = asyncio.get_running_loop().time()
        for limit, used in self._uses.items():
            if used is connection and not limit.expired():
                limit.reschedule(now_s)

    def dismiss(self, connection: Connection) -> None:
        """Close a connection in the background: a broker that stands still would take its time."""
        self._farewells.add(task := asyncio.ensure_future(self._say_goodbye(connection)))
        task.add_done_callback(self._farewells.discard)

    async def close(self) -> None:
        self._closed = True
        if self._home is not None and self._home != _here():
            return  # its loop is gone, and the connection with it
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self.lose(self._connection)
        await asyncio.gather(*self._farewells)

    async def _open(self) -> Connection:
        if self._closed:
            raise Misuse(f"the publisher of {self.shown} is closed: open another one with open_publisher")
        if self._home != (here := _here()):
            self._home, self._connection, self._opening = here, None, None
        if self._connection is not None:
            if self._is_open(self._connection):
                return self._connection
            self.lose(self._connection)
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._connect_in_time())
            self._opening.add_done_callback(self._keep)
        return await asyncio.shield(self._opening)

    async def _connect_in_time(self) -> Connection:
        async with asyncio.timeout(self._timeout_ms / 1000):
            return await self._connect()

    def _keep(self, opening: asyncio.Task[Connection]) -> None:
        if self._opening is opening:
            self._opening = None
            if not opening.cancelled() and opening.exception() is None:
                self._connection = opening.result()

    async def _say_goodbye(self, connection: Connection) -> None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_S):
                await self._disconnect(connection)


def check_trust(shown: str, error: BaseException) -> None:
    """Client libraries wrap the error of a certificate that is not trusted in errors of their own."""
    if "CERTIFICATE_VERIFY_FAILED" in f"{error} {error!r}":
        raise BrokerMisconfigured(f"{shown}: {error}: name the certificates to trust with ?ca_file=") from error


def take_timeout(url: ServiceUrl) -> int:
    return url.number("timeout_ms", TIMEOUT_MS, least=TIMEOUT_MS_MIN, most=TIMEOUT_MS_MAX)


def _here() -> tuple[int, asyncio.AbstractEventLoop]:
    return os.getpid(), asyncio.get_running_loop()
