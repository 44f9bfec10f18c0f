"""Hears of changes that other processes make: one connection listens for all waiters, and only while there are any.

A waiter registers, follows its record's channel until that is confirmed, reads the record, then sleeps: no change falls
in between, and the next message is the change, so nothing is read again. What makes this doubtful, a later confirmation
or a lost connection, wakes the waiters to read once more, and a slow poll covers the rest.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import redis

from semel.core.records import Key
from semel.stores.waiters import AsyncWaiters, Waiters

POLL_S = 0.25
"""How often a waiter looks by itself."""
LINGER_S = 1.0
"""How long the connection stays when there are no waiters."""
NEVER_LOOKED = -1
"""In place of a number of doubts."""
CONNECT_S = 5.0
RETRY_S = 0.1


class Channel:
    """What is known of the channel of one record."""

    __slots__ = ("confirmed", "doubts", "followers", "key", "said")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.followers = 0
        self.said = False
        """The server was asked for it."""
        self.confirmed = False
        self.doubts = 0
        """How often something may have been missed: who looked at the record before has to look again."""


class Channels(dict[bytes, Channel]):
    """The channels that are followed."""

    def join(self, name: bytes, key: Key) -> Channel:
        channel = self.get(name)
        if channel is None:
            channel = self[name] = Channel(key)
        channel.followers += 1
        return channel

    def heard(self, message: Any) -> Key | None:
        """The key whose waiters a message is for."""
        kind, name, _ = message
        channel = self.get(name)
        if channel is None or kind == b"unsubscribe":
            return None
        if kind == b"subscribe":
            channel.confirmed = True
            channel.doubts += 1
        return channel.key

    def lost(self) -> None:
        """Nothing is heard any more until the server is asked again."""
        for name, channel in list(self.items()):
            channel.said = channel.confirmed = False
            channel.doubts += 1
            if not channel.followers:
                del self[name]


class Listener:
    """For threads: a daemon thread reads, those who come and go write."""

    def __init__(self, make: Callable[[], Any], waiters: Waiters) -> None:
        self._make = make
        self._waiters = waiters
        self._lock = threading.Lock()
        self._channels = Channels()
        self._connection: Any = None
        self._thread: threading.Thread | None = None

    @contextmanager
    def following(self, name: bytes, key: Key) -> Iterator[Channel]:
        with self._lock:
            channel = self._channels.join(name, key)
            if channel.followers == 1:
                self._say("SUBSCRIBE", name)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="semel-redis-listener", daemon=True)
                thread.start()  # first: without a thread the next one must try again
                self._thread = thread
        try:
            yield channel
        finally:
            with self._lock:
                channel.followers -= 1
                if not channel.followers:
                    del self._channels[name]
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
            with self._lock:
                self._channels.lost()
            self._waiters.wake_all()
            time.sleep(RETRY_S)

    def _wanted(self) -> bool:
        with self._lock:
            if not self._channels:
                self._thread = None
            return bool(self._channels)

    def _listen(self) -> None:
        connection = self._make()
        try:
            connection.connect()
            with self._lock:
                self._connection = connection
                if self._channels:
                    self._say("SUBSCRIBE", *self._channels)
            while True:
                if connection.can_read(LINGER_S):
                    key = self._channels.heard(connection.read_response())
                    if key is not None:
                        self._waiters.wake(key)
                elif not self._channels:
                    return
        finally:
            with self._lock:
                self._connection = None
            connection.disconnect()


class AsyncListener:
    """For tasks of one event loop: one task reads, another one writes, and those who come and go wait for neither."""

    def __init__(self, make: Callable[[], Awaitable[Any]], waiters: AsyncWaiters) -> None:
        self._make = make
        self._waiters = waiters
        self._channels = Channels()
        self._news: dict[bytes, None] = {}
        self._any_news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def following(self, name: bytes, key: Key) -> Iterator[Channel]:
        channel = self._channels.join(name, key)
        if channel.followers == 1:
            self._tell(name)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            yield channel
        finally:
            channel.followers -= 1
            if not channel.followers:
                self._tell(name)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _tell(self, name: bytes) -> None:
        self._news[name] = None
        self._any_news.set()

    async def _run(self) -> None:
        try:
            while self._channels:
                with suppress(Exception):  # whatever happened to the connection, the next one is a new one
                    await self._listen()
                self._channels.lost()
                self._waiters.wake_all()
                await asyncio.sleep(RETRY_S)
        finally:
            self._task = None

    async def _listen(self) -> None:
        connection = await self._make()
        try:
            async with asyncio.timeout(CONNECT_S):
                await connection.connect()
            writer = asyncio.create_task(self._write(connection))
            try:
                await self._read(connection)
            finally:
                writer.cancel()
        finally:
            await connection.disconnect(nowait=True)

    async def _read(self, connection: Any) -> None:
        while True:
            message = await connection.read_response(timeout=LINGER_S)
            if message is not None:
                key = self._channels.heard(message)
                if key is not None:
                    self._waiters.wake(key)
            elif not self._channels:
                return

    async def _write(self, connection: Any) -> None:
        """Ask for what is followed, and say what is not followed any more."""
        names = list(self._channels)
        with suppress(redis.RedisError, OSError, RuntimeError):  # the reader sees it too; the last one is uvloop's
            while True:
                joined, left = self._sort(names)
                if joined:
                    await connection.send_command("SUBSCRIBE", *joined, check_health=False)
                if left:
                    await connection.send_command("UNSUBSCRIBE", *left, check_health=False)
                await self._any_news.wait()
                self._any_news.clear()
                names, self._news = list(self._news), {}

    def _sort(self, names: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        """The channels to ask for, and those to give up. Who leaves and comes back in between is in neither."""
        joined, left = [], []
        for name in names:
            channel = self._channels.get(name)
            if channel is not None and not channel.followers:
                del self._channels[name]
                if channel.said:
                    left.append(name)
            elif channel is not None and not channel.said:
                channel.said = True
                joined.append(name)
        return joined, left
