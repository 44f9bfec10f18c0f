"""One command, one reply. The driver opens and closes the connection; in between, its streams are not in the way.

They cost more than the exchange itself. Here the transport hands what comes to the driver's parser (hiredis), and the
reply goes to whoever waits for it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from hiredis import Reader, pack_command
from redis import exceptions
from redis.asyncio import ConnectionPool


class Replies(asyncio.Protocol):
    """What comes on an open connection. It is of no use any more once an exchange failed, or something else came."""

    def __init__(self, connection: Any, transport: Any, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = Reader(protocolError=exceptions.InvalidResponse, replyError=connection._parser.parse_error)
        self._waiting: asyncio.Future[Any] | None = None
        self._timeout_s = timeout_s
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._transport = transport
        self._driver = transport.get_protocol()
        transport.set_protocol(self)
        self.usable = True

    def to(self, command: bytes) -> asyncio.Future[Any]:
        """The reply to `command`, in time or not at all. Who does not wait for it must not use this again."""
        self._transport.write(command)
        self._waiting = waiting = self._loop.create_future()
        self._due_s = self._loop.time() + self._timeout_s
        if self._timer is None:  # one for many exchanges: a timer for each would cost 4 to 8 % of a lone call
            self._timer = self._loop.call_at(self._due_s, self._look)
        return waiting

    def data_received(self, data: bytes) -> None:
        waiting = self._waiting
        if waiting is None or waiting.done():
            self._fail(exceptions.InvalidResponse("a reply that nobody waits for"))
            return
        try:
            self._reader.feed(data)
            reply = self._reader.gets()
        except exceptions.RedisError as error:
            self._fail(error)
            return
        if reply is not False:  # the parser's word for "more is to come"; the server has no such word
            self._waiting = None
            self.usable = not self._reader.has_data()
            waiting.set_result(reply)

    def eof_received(self) -> None:
        self.usable = False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fail(exceptions.ConnectionError(str(exc) if exc else "Connection closed by server."))
        self._driver.connection_lost(exc)  # the driver waits for this when it closes

    def _look(self) -> None:
        """Is what is waited for now late?"""
        self._timer = None
        if self._waiting is None:
            return
        if self._loop.time() < self._due_s:
            self._timer = self._loop.call_at(self._due_s, self._look)
        else:
            self._fail(TimeoutError())

    def _fail(self, error: Exception) -> None:
        self.usable = False
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)


class Wire:
    """A connection that opens when it is used, and opens again when it was lost."""

    __slots__ = ("_connection", "_pool", "_replies", "_timeout_s")

    def __init__(self, pool: ConnectionPool, timeout_s: float) -> None:
        self._pool = pool
        self._timeout_s = timeout_s
        self._connection: Any = None
        self._replies: Replies | None = None

    @property
    def ready(self) -> bool:
        """There is nothing to wait for but the reply, and that is bounded."""
        return self._replies is not None and self._replies.usable

    async def ask(self, words: Any) -> Any:
        """One command. A connection that failed or was left half-way is closed: a late reply is nobody else's."""
        try:
            replies = self._replies
            if replies is None or not replies.usable:
                replies = await self._open()
            command = pack_command(words)
            reply = await (self._streamed(command) if replies is None else replies.to(command))
            if isinstance(reply, Exception):
                raise reply
            return reply
        except exceptions.ResponseError:
            raise
        except BaseException:
            await self.close(nowait=True)
            raise

    async def close(self, *, nowait: bool = False) -> None:
        self._replies = None
        if self._connection is not None:
            await self._connection.disconnect(nowait=nowait)

    async def _open(self) -> Replies | None:
        if self._replies is not None:
            await self.close(nowait=True)
        if self._connection is None:
            self._connection = self._pool.connection_class(**self._pool.connection_kwargs)
        await self._pool.ensure_connection(self._connection)  # it refuses one that has something to read already
        transport = _transport(self._connection)
        self._replies = None if transport is None else Replies(self._connection, transport, self._timeout_s)
        return self._replies

    async def _streamed(self, command: bytes) -> Any:
        await self._connection.send_packed_command(command, check_health=False)
        return await self._connection.read_response()


def _transport(connection: Any) -> asyncio.Transport | None:
    """The driver does not promise to show it. If it does not, its streams do the same, and take longer."""
    shown = hasattr(connection, "_parser") and hasattr(connection, "_writer")
    return getattr(connection._writer, "transport", None) if shown else None
