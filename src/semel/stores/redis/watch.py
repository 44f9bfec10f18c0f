"""Hearing of changes that other processes make: one connection listens for all who wait, and only while somebody does.

A waiter registers, follows its record's channel, reads the record, then sleeps. The confirmation of the subscription
wakes it to read again, as every message does, so no change falls in between. A lost connection wakes everybody, and a
slow poll covers the rest.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import redis
import redis.asyncio

from semel.core.records import Key
from semel.stores.waiters import AsyncWaiters, Waiters

POLL_S = 0.25
"""How often a waiter looks by itself."""
LINGER_S = 1.0
"""How long the connection stays when nobody waits."""
CONNECT_S = 5.0
RETRY_S = 0.1
LOUD = (b"message", b"subscribe")


class Followed(dict[bytes, tuple[Key, int]]):
    """The channels that are followed, with their keys and by how many. The first and the last one matter."""

    def join(self, name: bytes, key: Key) -> bool:
        _, count = self.get(name, (key, 0))
        self[name] = key, count + 1
        return count == 0

    def leave(self, name: bytes) -> bool:
        key, count = self.pop(name)
        if count > 1:
            self[name] = key, count - 1
        return count == 1

    def heard(self, message: Any) -> Key | None:
        """The key whose waiters a message is for."""
        kind, name, _ = message
        return self[name][0] if kind in LOUD and name in self else None


class Listener:
    """For threads: a daemon thread reads, those who come and go write."""

    def __init__(self, pool: redis.ConnectionPool, waiters: Waiters) -> None:
        self._pool = pool
        self._waiters = waiters
        self._lock = threading.Lock()
        self._followed = Followed()
        self._connection: Any = None
        self._thread: threading.Thread | None = None

    @contextmanager
    def following(self, name: bytes, key: Key) -> Iterator[None]:
        with self._lock:
            if self._followed.join(name, key):
                self._say("SUBSCRIBE", name)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="semel-redis-listener", daemon=True)
                thread.start()  # first: without a thread the next one must try again
                self._thread = thread
        try:
            yield
        finally:
            with self._lock:
                if self._followed.leave(name):
                    self._say("UNSUBSCRIBE", name)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.disconnect()

    def _say(self, *words: bytes | str) -> None:
        if self._connection is not None:
            with suppress(redis.RedisError, OSError):  # the reader sees it too, and follows everything anew
                self._connection.send_command(*words, check_health=False)

    def _run(self) -> None:
        while self._wanted():
            with suppress(Exception):  # whatever happened to the connection, the next one is a new one
                self._listen()
            self._waiters.wake_all()
            time.sleep(RETRY_S)

    def _wanted(self) -> bool:
        with self._lock:
            if not self._followed:
                self._thread = None
            return bool(self._followed)

    def _listen(self) -> None:
        connection: Any = self._pool.connection_class(**self._pool.connection_kwargs)
        try:
            connection.connect()
            with self._lock:
                self._connection = connection
                if self._followed:
                    self._say("SUBSCRIBE", *self._followed)
            while True:
                if connection.can_read(LINGER_S):
                    key = self._followed.heard(connection.read_response())
                    if key is not None:
                        self._waiters.wake(key)
                elif not self._followed:
                    return
        finally:
            with self._lock:
                self._connection = None
            connection.disconnect()


class AsyncListener:
    """For tasks of one event loop."""

    def __init__(self, pool: redis.asyncio.ConnectionPool, waiters: AsyncWaiters) -> None:
        self._pool = pool
        self._waiters = waiters
        self._lock = asyncio.Lock()
        self._followed = Followed()
        self._connection: Any = None
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def following(self, name: bytes, key: Key) -> AsyncIterator[None]:
        first = self._followed.join(name, key)
        try:
            if first:
                await self._say("SUBSCRIBE", name)
            if self._task is None:
                self._task = asyncio.create_task(self._run())
            yield
        finally:
            if self._followed.leave(name):
                await self._say("UNSUBSCRIBE", name)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _say(self, *words: bytes | str) -> None:
        async with self._lock:
            if self._connection is not None:
                # The reader sees it too, and follows everything anew. RuntimeError is uvloop's for a lost connection.
                with suppress(redis.RedisError, OSError, RuntimeError):
                    await self._connection.send_command(*words, check_health=False)

    async def _run(self) -> None:
        try:
            while self._followed:
                with suppress(Exception):  # whatever happened to the connection, the next one is a new one
                    await self._listen()
                self._waiters.wake_all()
                await asyncio.sleep(RETRY_S)
        finally:
            self._task = None

    async def _listen(self) -> None:
        connection: Any = self._pool.connection_class(**self._pool.connection_kwargs)
        try:
            async with asyncio.timeout(CONNECT_S):
                await connection.connect()
            self._connection = connection
            if self._followed:
                await self._say("SUBSCRIBE", *self._followed)
            while True:
                message = await connection.read_response(timeout=LINGER_S)
                if message is not None:
                    key = self._followed.heard(message)
                    if key is not None:
                        self._waiters.wake(key)
                elif not self._followed:
                    return
        finally:
            self._connection = None
            await connection.disconnect(nowait=True)
