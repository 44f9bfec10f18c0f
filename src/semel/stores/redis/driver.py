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
import re
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

from semel.errors import RecordUnreadable, StoreError, StoreMisconfigured, StoreTimeout, StoreUnavailable
from semel.stores.redis.commands import LoginRefused, ScriptMissing, Word
from semel.stores.redis.settings import RedisSettings

NEARLY_WHOLE = 0.8
"""A call that has this part of its time left is not worth a limit of its own."""
LEAST_S = 0.01


class AnyRedisConnections:
    """The connections that were opened, and the idle ones among them."""

    def __init__(self, settings: RedisSettings, pool: Any, readers: Mapping[Any, Any]) -> None:
        self.pool = pool
        self._settings = settings
        self._readers = readers
        self._failures = Failures(settings)
        self._opened: list[Any] = []
        self._idle: list[Any] = []

    def _take(self) -> Any:
        """An idle connection, else a new one, which is not connected yet."""
        try:
            return self._idle.pop()
        except IndexError:
            connection = self.pool.connection_class(**self.pool.connection_kwargs)
            self._opened.append(connection)
            return connection


class RedisConnections(AnyRedisConnections):
    """For threads: each command has a connection to itself, of at most `pool_max`."""

    def __init__(self, settings: RedisSettings) -> None:
        options = _options(settings, Retry(NoBackoff(), 0), socket_timeout=settings.timeout_s)
        pool = redis.ConnectionPool.from_url(settings.url, **options)
        super().__init__(settings, pool, redis.Redis(connection_pool=pool).response_callbacks)
        self._free = threading.BoundedSemaphore(settings.pool_max)

    def ask(self, words: Sequence[Word], due_s: float) -> Any:
        """Send one command, and return its reply, by `due_s` at the latest."""
        if not self._free.acquire(timeout=max(0.0, due_s - time.monotonic())):
            raise StoreTimeout(
                f"{self._settings.shown}: all {self._settings.pool_max} connections were busy for "
                f"{self._settings.timeout_ms} ms: raise pool_max"
            )
        try:
            with self._failures:
                reply = self._exchange(words, due_s)
        finally:
            self._free.release()
        read = self._readers.get(words[0])
        return reply if read is None else read(reply)

    def close(self) -> None:
        for connection in self._opened:
            connection.disconnect()

    def _exchange(self, words: Sequence[Word], due_s: float) -> Any:
        connection = self._take()
        try:
            _limit(connection, due_s - time.monotonic(), self._settings.timeout_s)
            _ensure(connection)
            connection.send_packed_command(connection.pack_command(*words), check_health=False)
            return connection.read_response()
        except redis.ResponseError:
            raise
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
        pool = redis.asyncio.ConnectionPool.from_url(settings.url, **options)
        super().__init__(settings, pool, redis.asyncio.Redis(connection_pool=pool).response_callbacks)
        self._free = asyncio.Semaphore(settings.pool_max)

    async def ask(self, words: Sequence[Word]) -> Any:
        """Send one command, and return its reply, in time or not at all."""
        with self._failures:
            async with asyncio.timeout(self._settings.timeout_s), self._free:
                reply = await self._exchange(words)
        read = self._readers.get(words[0])
        return reply if read is None else read(reply)

    async def close(self) -> None:
        for connection in self._opened:
            await connection.disconnect()

    async def _exchange(self, words: Any) -> Any:
        connection = self._take()
        try:
            await self.pool.ensure_connection(connection)
            await connection.send_packed_command(pack_command(words), check_health=False)
            return await connection.read_response()
        except redis.ResponseError:
            raise
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            self._idle.append(connection)


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


class Failures:
    """Turns whatever the driver raises into an error of ours, in words for the person who runs the server."""

    __slots__ = ("_settings",)

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, exceptions.NoScriptError):
            raise ScriptMissing(str(error)) from error
        if isinstance(error, exceptions.RedisError | OSError | RuntimeError):  # uvloop's word for a lost connection
            raise ours(self._settings, error) from error


def ours(settings: RedisSettings, error: Exception) -> StoreError:
    """The error of ours that says what the driver, or the server, said."""
    silence = f"nothing within {settings.timeout_ms} ms"
    said = f"{type(error).__name__}: {str(error) or silence}"  # the driver turns some of the server's words into types
    for words, kind, text in MEANINGS:
        if re.search(words, said):
            return kind(f"{settings.shown} {text.format(prefix=settings.prefix)} ({error})")
    silent = isinstance(error, TimeoutError | exceptions.TimeoutError)
    return (StoreTimeout if silent else StoreUnavailable)(f"{settings.shown} did not answer: {said}")


MEANINGS: tuple[tuple[str, type[StoreError], str], ...] = (
    (
        r"OutOfMemory|\bOOM\b",
        StoreUnavailable,
        "has used up its maxmemory and takes no new keys: raise maxmemory, or purge",
    ),
    (r"\bMISCONF\b", StoreUnavailable, "cannot write to its disk and so refuses writes: see its log"),
    (
        r"ReadOnlyError|\bREADONLY\b",
        StoreUnavailable,
        "is a read-only replica: name its primary, or wait for the failover to end",
    ),
    (r"BusyLoading|\bLOADING\b", StoreUnavailable, "is still loading its data"),
    (
        r"^AuthenticationError|WRONGPASS|NOAUTH",
        LoginRefused,
        "refuses the login: check the user name and password in the URL",
    ),
    (
        r"NoPermission|\bNOPERM\b",
        StoreMisconfigured,
        "does not allow this user what semel needs: "
        "ACL SETUSER … ~{prefix}:* &{prefix}:* +@read +@write +@scripting +@pubsub +@connection +info +time",
    ),
    (
        r"WRONGTYPE",
        RecordUnreadable,
        "holds something else than a record under a name of ours: choose another option prefix",
    ),
    (r"DB index|invalid DB", StoreMisconfigured, "has no database of that number"),
    (r"unknown command", StoreMisconfigured, "does not know, or was told to hide, a command that semel needs"),
)
