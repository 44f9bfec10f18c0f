"""Connections to Redis, for threads and for tasks, and the one place where a driver's error becomes ours.

redis-py is used through its public names only: connections are made, asked and closed one by one. Its client and its
pool do more for each command (retries, events, metrics) than the exchange itself costs.

redis-py never repeats a command for us: a failed exchange is reported ("may have happened"), its connection is closed,
and the caller repeats, with the same owner. A connection that was left half-way is closed, too: the next caller would
read the reply that is still to come. An idle connection that the server closed, or that holds a reply to no call, is
noticed before anything is sent on it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.retry
from hiredis import pack_command
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from semel.errors import StoreTimeout, StoreUnavailable
from semel.stores.redis.commands import Command
from semel.stores.redis.failures import Connecting, Failures
from semel.stores.redis.settings import RedisSettings, Topology

NEARLY_WHOLE = 0.8
"""A call that has this part of its time left is not worth a limit of its own."""
LEAST_S = 0.01


class AnyRedisConnections:
    """The connections to one server that were opened, and the idle ones among them."""

    def __init__(self, settings: RedisSettings, pool: Any, readers: Mapping[Any, Any]) -> None:
        self._pool = pool
        self._settings = settings
        self._readers = readers
        self._failures = Failures(settings)
        self._connecting = self._failures if settings.topology is Topology.SINGLE else Connecting(settings)
        self._opened: list[Any] = []
        self._idle: list[Any] = []

    def make(self) -> Any:
        """A connection that is not connected yet."""
        return self._pool.connection_class(**self._pool.connection_kwargs)

    def _take(self) -> Any:
        """An idle connection, else a new one."""
        try:
            return self._idle.pop()
        except IndexError:
            connection = self.make()
            self._opened.append(connection)
            return connection

    def _read(self, command: Command, reply: Any) -> Any:
        read = self._readers.get(command.words[0])
        return reply if read is None or isinstance(reply, Exception) else read(reply)

    def _waits(self, commands: Sequence[Command], replies: Sequence[Any]) -> bool:
        """Whether replicas have to confirm something of this before it counts."""
        return self._settings.wait_replicas > 0 and any(map(_needs_replicas, commands, replies))

    def _wait(self, left_s: float) -> tuple[str | int, ...]:
        """The server answers later than this only if it is late with everything."""
        return "WAIT", self._settings.wait_replicas, max(1, min(self._settings.wait_ms, int(left_s * 900)))

    def _confirmed(self, commands: Sequence[Command], replies: list[Any], count: Any) -> list[Any]:
        """The replies, of which those that too few replicas confirmed are failures: it may have happened."""
        wanted = self._settings.wait_replicas
        if isinstance(count, int) and count >= wanted:
            return replies
        said = f"{count} of {wanted} replicas confirmed a write within {self._settings.wait_ms} ms"
        failure = f"{self._settings.shown} may lose what it was asked for: {said}"
        return [
            StoreUnavailable(failure) if _needs_replicas(command, reply) else reply
            for command, reply in zip(commands, replies, strict=True)
        ]


class RedisConnections(AnyRedisConnections):
    """For threads: each exchange has a connection to itself, of at most `pool_max`."""

    def __init__(self, settings: RedisSettings) -> None:
        options = _options(settings, Retry(NoBackoff(), 0), socket_timeout=settings.timeout_s)
        pool = redis.ConnectionPool.from_url(settings.url, **options, **_greeting(settings, _greet))
        super().__init__(settings, pool, redis.Redis(connection_pool=pool).response_callbacks)
        self._free = threading.BoundedSemaphore(settings.pool_max)

    def exchange(self, commands: Sequence[Command], due_s: float) -> list[Any]:
        """Send commands in one piece, and return their replies, by `due_s` at the latest.

        What the server refused has its error in the place of a reply.
        """
        if not self._free.acquire(timeout=max(0.0, due_s - time.monotonic())):
            raise StoreTimeout(
                f"{self._settings.shown}: all {self._settings.pool_max} connections were busy for "
                f"{self._settings.timeout_ms} ms: raise pool_max"
            )
        try:
            with self._failures:
                replies = self._exchange(commands, due_s)
        finally:
            self._free.release()
        return [self._read(*each) for each in zip(commands, replies, strict=True)]

    def close(self) -> None:
        for connection in self._opened:
            connection.disconnect()

    def _exchange(self, commands: Sequence[Command], due_s: float) -> list[Any]:
        connection = self._take()
        try:
            _limit(connection, due_s - time.monotonic(), self._settings.timeout_s)
            with self._connecting:
                _ensure(connection)
            packed = [part for command in commands for part in connection.pack_command(*command.words)]
            connection.send_packed_command(packed, check_health=False)
            replies = [_reply(connection) for _ in commands]
            if self._waits(commands, replies):
                wait = connection.pack_command(*self._wait(due_s - time.monotonic()))
                connection.send_packed_command(wait, check_health=False)
                replies = self._confirmed(commands, replies, _reply(connection))
            return replies
        except BaseException:
            connection.disconnect()
            raise
        finally:
            self._idle.append(connection)


class AsyncRedisConnections(AnyRedisConnections):
    """The same for the tasks of one event loop."""

    def __init__(self, settings: RedisSettings) -> None:
        # redis-py's own time-out costs a task for each command and, before Python 3.12, can swallow a cancellation.
        options = _options(settings, redis.asyncio.retry.Retry(NoBackoff(), 0), socket_timeout=None)
        pool = redis.asyncio.ConnectionPool.from_url(settings.url, **options, **_greeting(settings, _agreet))
        super().__init__(settings, pool, redis.asyncio.Redis(connection_pool=pool).response_callbacks)
        self._free = asyncio.Semaphore(settings.pool_max)

    async def exchange(self, commands: Sequence[Command], due_s: float) -> list[Any]:
        """Send commands in one piece, and return their replies, in time or not at all."""
        with self._failures:
            async with asyncio.timeout_at(due_s), self._free:
                replies = await self._exchange(commands, due_s)
        return [self._read(*each) for each in zip(commands, replies, strict=True)]

    async def close(self) -> None:
        for connection in self._opened:
            await connection.disconnect()

    async def _exchange(self, commands: Sequence[Command], due_s: float) -> list[Any]:
        connection = self._take()
        try:
            with self._connecting:
                await self._pool.ensure_connection(connection)
            packed = [pack_command(command.words) for command in commands]  # type: ignore[arg-type]
            await connection.send_packed_command(b"".join(packed), check_health=False)
            replies = [await _areply(connection) for _ in commands]
            if self._waits(commands, replies):
                wait = pack_command(self._wait(due_s - asyncio.get_running_loop().time()))  # type: ignore[arg-type]
                await connection.send_packed_command(wait, check_health=False)
                replies = self._confirmed(commands, replies, await _areply(connection))
            return replies
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            self._idle.append(connection)


def _needs_replicas(command: Command, reply: Any) -> bool:
    return command.confirms is not None and command.confirms(reply)


REFUSALS = (redis.ResponseError, exceptions.BusyLoadingError)
"""What a server answers instead of a reply, on a connection that stays as good as it was."""


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except REFUSALS as error:
        return error


async def _areply(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except REFUSALS as error:
        return error


def _greeting(settings: RedisSettings, greet: Any) -> dict[str, Any]:
    """Sentinels may name a server that is not the master any more, or not yet: ask it before it is asked to write."""
    masters = settings.topology is Topology.SENTINEL and not settings.asks_sentinel
    return {"redis_connect_func": greet} if masters else {}


def _greet(connection: Any) -> None:
    connection.on_connect()
    connection.send_command("ROLE", check_health=False)
    _check_role(connection.read_response())


async def _agreet(connection: Any) -> None:
    await connection.on_connect()
    await connection.send_command("ROLE", check_health=False)
    _check_role(await connection.read_response())


def _check_role(found: Any) -> None:
    if found[0] != b"master":
        raise exceptions.ReadOnlyError(f"its role is {found[0].decode()}")


def _options(settings: RedisSettings, retry: Any, *, socket_timeout: float | None) -> dict[str, Any]:
    """What both faces give to redis-py. `retry` is the face's kind of "never"."""
    network = {"socket_connect_timeout": settings.timeout_s, "socket_keepalive": True}
    place = {} if settings.url.startswith("unix:") else network
    return {"socket_timeout": socket_timeout, **place, "protocol": 2, "retry": retry, **settings.tls}


def _limit(connection: Any, left_s: float, timeout_s: float) -> None:
    """Let `connection` wait for `left_s` at most, in each of its steps. Nearly always that is the whole time."""
    limit_s = timeout_s if left_s > NEARLY_WHOLE * timeout_s else max(left_s, LEAST_S)
    if connection.socket_timeout != limit_s:
        connection.socket_timeout = limit_s
        if hasattr(connection, "socket_connect_timeout"):
            connection.socket_connect_timeout = limit_s
        connection.disconnect()  # what is open keeps the limit that it was opened with


def _ensure(connection: Any) -> None:
    """Connect, or connect again if the server closed it meanwhile."""
    connection.connect()
    try:
        if not connection.can_read():
            return
    except (redis.RedisError, OSError):
        pass
    connection.disconnect()
    connection.connect()
