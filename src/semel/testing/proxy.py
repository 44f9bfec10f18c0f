"""A TCP proxy that breaks connections on purpose, in front of any server: a database, Redis, an HTTP service.

    with FaultProxy("redis://127.0.0.1:6379/0") as proxy:
        store = open_store(proxy.url)
        lost = proxy.inject(Fault.CUT_AFTER)        # the next request arrives, its reply does not
        with pytest.raises(StoreUnavailable):
            store.claim(…)
        assert lost.hits == 1

An exchange begins with the bytes that a client sends; `when` looks at them and says whether the fault is meant for
them. A request that comes in several pieces is several exchanges. The proxy runs in a thread of its own, on a port that
the system chose, and is controlled from any other thread.
"""

from __future__ import annotations

import asyncio
import enum
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from semel.testing.loop_thread import LoopThread

CHUNK = 65_536
PATIENCE_S = 30.0


class Fault(enum.Enum):
    """What happens to one exchange."""

    CUT_BEFORE = "cut before the request reaches the server"
    CUT_AFTER = "cut after the request, when the reply begins"
    DELAY = "the request arrives late"
    HOLD_REQUEST = "the request is kept back until let_go, also if its client has left"
    HOLD_REPLY = "the reply is kept back until let_go"
    HALF_CLOSE = "the server's side is closed instead of the reply; the client's stays open"
    GARBLE = "every bit of the reply is turned over"


@dataclass(frozen=True, slots=True)
class ProxyExchange:
    """Bytes from a client. Connections, and the exchanges of each, are counted from 1."""

    connection: int
    number: int
    request: bytes


def always(exchange: ProxyExchange) -> bool:
    return True


class Injection:
    """A fault that waits for its exchange. `hits` says how many it met."""

    def __init__(self, fault: Fault, when: Callable[[ProxyExchange], bool], times: int | None, delay_s: float) -> None:
        self.fault = fault
        self.delay_s = delay_s
        self.hits = 0
        self._when = when
        self._left = times
        self._hit = threading.Event()

    def wait(self, timeout_s: float = PATIENCE_S) -> bool:
        """Sleep until it met an exchange; False when the time ran out first."""
        return self._hit.wait(timeout_s)

    def cancel(self) -> None:
        """It meets nothing any more."""
        self._left = 0

    def takes(self, exchange: ProxyExchange) -> bool:
        if self._left == 0 or not self._when(exchange):
            return False
        self._left = None if self._left is None else self._left - 1
        self.hits += 1
        self._hit.set()
        return True


class FaultProxy:
    """Listens while the `with` block runs. `url` is the server's URL by way of the proxy."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if not parts.hostname or not parts.port:
            raise ValueError(f"the proxy must know where to connect: name the host and the port in {url!r}")
        self._upstream = (parts.hostname, parts.port)
        self._parts = parts
        self.port = 0
        self.connections = 0
        """How many were opened so far."""
        self._injections: list[Injection] = []
        self._open: set[ProxiedConnection] = set()
        self._passing = asyncio.Event()
        self._passing.set()
        self._held = asyncio.Event()

    @property
    def url(self) -> str:
        """The server's URL by way of the proxy."""
        user, at, _ = self._parts.netloc.rpartition("@")
        return self._parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}").geturl()

    def __enter__(self) -> Self:
        self._loop = LoopThread()
        self._loop.run(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._close())
        self._loop.close()

    def inject(
        self,
        fault: Fault,
        *,
        when: Callable[[ProxyExchange], bool] = always,
        times: int | None = 1,
        delay_s: float = 0.1,
    ) -> Injection:
        """Let `fault` happen to the next exchange that `when` accepts, `times` times (None: until `clear`)."""
        injection = Injection(fault, when, times, delay_s)
        self._loop.run(self._change(lambda: self._injections.append(injection)))
        return injection

    def clear(self) -> None:
        """Forget all faults and let go of what is held."""
        self._loop.run(self._change(self._injections.clear))
        self.let_go()

    def cut(self) -> int:
        """Reset all connections now; says how many there were."""
        return self._loop.run(self._end_all())

    def hold(self) -> None:
        """Let nothing pass any more, in either direction, without closing a connection."""
        self._loop.run(self._change(self._passing.clear))

    def let_go(self) -> None:
        """Let everything pass that was held."""
        self._loop.run(self._change(self._go))

    async def _change(self, change: Callable[[], object]) -> None:
        change()

    async def _end_all(self) -> int:
        tasks = [connection.task for connection in self._open]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return len(tasks)

    def _go(self) -> None:
        self._passing.set()
        self._held.set()
        self._held = asyncio.Event()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        await self._end_all()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = ProxiedConnection(self, self.connections, reader, writer)
        self._open.add(connection)
        try:
            await connection.run(*self._upstream)
        except asyncio.CancelledError:
            pass  # it was cut, or the proxy is closed; asyncio would report it as an error
        finally:
            self._open.discard(connection)

    def fault_for(self, exchange: ProxyExchange) -> Injection | None:
        """The first fault that is meant for this exchange; None if none is."""
        return next((injection for injection in self._injections if injection.takes(exchange)), None)

    async def passing(self) -> None:
        """Wait while exchanges are held back."""
        await self._passing.wait()

    async def held(self) -> None:
        """Wait until an exchange is held back."""
        await self._held.wait()


class ProxiedConnection:
    """One connection: two pumps, and the fault that the reply of the current exchange is to meet."""

    def __init__(
        self, proxy: FaultProxy, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self._proxy = proxy
        self._number = number
        self._client = (reader, writer)
        self._writers = [writer]
        self._fault: Fault | None = None

    async def run(self, host: str, port: int) -> None:
        try:
            server = await asyncio.open_connection(host, port)
            self._writers.append(server[1])
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._requests(self._client[0], server[1]))
                pumps.create_task(self._replies(server[0], self._client[1]))
        except* OSError:
            pass
        finally:
            self._reset()

    def _reset(self) -> None:
        """Reset both sides, without the orderly end of a connection."""
        for writer in self._writers:
            with suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _requests(self, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        number = 0
        while request := await client.read(CHUNK):
            number += 1
            injection = self._proxy.fault_for(ProxyExchange(self._number, number, request))
            self._fault = injection.fault if injection else None
            match self._fault:
                case Fault.CUT_BEFORE:
                    raise ConnectionAbortedError("on purpose")
                case Fault.DELAY if injection is not None:
                    await asyncio.sleep(injection.delay_s)
                case Fault.HOLD_REQUEST:
                    await self._proxy.held()
                case _:
                    pass
            await self._proxy.passing()
            server.write(request)
            await server.drain()
        server.write_eof()

    async def _replies(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while reply := await server.read(CHUNK):
            match self._fault:
                case Fault.CUT_AFTER:
                    raise ConnectionAbortedError("on purpose")
                case Fault.HALF_CLOSE:
                    client.write_eof()
                    while await server.read(CHUNK):
                        pass
                    return
                case Fault.HOLD_REPLY:
                    await self._proxy.held()
                case Fault.GARBLE:
                    reply = bytes(byte ^ 0xFF for byte in reply)
                case _:
                    pass
            await self._proxy.passing()
            with suppress(ConnectionError):  # the client has left: what it sent may still be on its way to the server
                client.write(reply)
                await client.drain()
        client.write_eof()
