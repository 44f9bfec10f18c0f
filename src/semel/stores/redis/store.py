"""The sync face: threads share a pool, each call is one script."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from semel.core.effects import Effect, Plan
from semel.core.records import Key
from semel.errors import StoreUnavailable
from semel.runtime.deadline import find_due_s, tell_due
from semel.runtime.drive import drive
from semel.runtime.local import Once, PerProcess
from semel.store import Clock, Counts, Filter, Finding, Page
from semel.stores.faces import Face
from semel.stores.redis.check import check
from semel.stores.redis.commands import Command
from semel.stores.redis.doctor import examine
from semel.stores.redis.driver import Failures, Settings, ours
from semel.stores.redis.scripts import Scripts
from semel.stores.redis.watch import NEVER_LOOKED, POLL_S, Listener
from semel.stores.waiters import Waiters, changed_key

T = TypeVar("T")
NEARLY_WHOLE = 0.8
"""A call that has this part of its time left is not worth a limit of its own."""
LEAST_S = 0.01


class Link:
    """The connections of one process, and what it knows about the server."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._failures = Failures(settings)
        options = settings.driver_options(Retry(NoBackoff(), 0), socket_timeout=settings.timeout_s)
        self._pool = redis.ConnectionPool.from_url(settings.url, **options)
        self._understand: Mapping[Any, Any] = redis.Redis(connection_pool=self._pool).response_callbacks
        self._connections: list[Any] = []
        self._idle: list[Any] = []
        self._free = threading.BoundedSemaphore(settings.pool_max)
        self._checked = Once()
        self.waiters = Waiters()
        self.listener = Listener(self._pool, self.waiters)

    def run(self, plan: Plan[T]) -> T:
        """A call has one deadline for all that it waits for: a free connection, a new one, and every command."""
        due_s = find_due_s(time.monotonic(), self._settings.timeout_s)
        perform = partial(self._perform, due_s)
        try:
            if not self._checked.done:
                self._checked.do(lambda: drive(check(self._settings.shown, self._settings.accepted), perform))
            return drive(plan, perform)
        except StoreUnavailable as failure:
            tell_due(failure, due_s)
            raise

    def examine(self) -> list[Finding]:
        """Without the check, which would refuse what is to be shown."""

        def perform(effect: Effect[Any]) -> Any:
            return self._perform(time.monotonic() + self._settings.timeout_s, effect)

        return list(examine(self._settings, perform))

    def close(self) -> None:
        self.listener.close()
        for connection in self._connections:
            connection.disconnect()

    def _perform(self, due_s: float, effect: Effect[Any]) -> Any:
        assert isinstance(effect, Command)
        if not self._free.acquire(timeout=max(0.0, due_s - time.monotonic())):
            raise self._settings.busy()
        try:
            with self._failures:
                reply = self._exchange(effect.words, due_s)
        finally:
            self._free.release()
        understand = self._understand.get(effect.words[0])
        return reply if understand is None else understand(reply)

    def _exchange(self, words: Any, due_s: float) -> Any:
        """One command on a connection of its own: the driver's ways around that cost more than the exchange itself.

        One that failed or was left half-way is closed, and connects again: a late reply is nobody else's.
        """
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._pool.connection_class(**self._pool.connection_kwargs)
            self._connections.append(connection)
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


class RedisStore(Face):
    """Redis or Valkey, for threads. Connects on first use, in each process that uses it."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        self._scripts = Scripts(settings.prefix, partial(ours, settings))
        self._clock = clock
        self._link = PerProcess(lambda: Link(settings))
        self._purged_to = 0

    def _call(self, call: Effect[T]) -> T:
        link = self._link.get()
        reply: T = _reply(link.run(self._scripts.answer([call], self._now()))[0])
        if link.waiters.keys() and (key := changed_key(call, reply)) is not None:
            link.waiters.wake(key)
        return reply

    def wait(self, key: Key, *, owner: str, timeout_ms: int) -> bool:
        """Sleep until `owner` no longer holds `key`. Wakes early when the store is away: the next claim says so."""
        deadline = time.monotonic() + timeout_ms / 1000
        link = self._link.get()
        name = self._scripts.name_of(key)
        with link.waiters.registered(key) as changed, link.listener.following(name, key) as channel:
            # Nothing is believed before the first look: the channel may have been confirmed a moment ago.
            doubts, pause_s = NEVER_LOOKED, 0.0 if channel.confirmed else POLL_S
            while True:
                told = changed.wait(max(0.0, min(pause_s, deadline - time.monotonic())))
                if told and channel.doubts == doubts:
                    return True
                doubts, pause_s = channel.doubts, POLL_S
                changed.clear()
                if not self._held(key, owner):
                    return True
                if time.monotonic() >= deadline:
                    return False

    def _held(self, key: Key, owner: str) -> bool:
        try:
            record = self.get(key)
        except StoreUnavailable:
            return False
        return record is not None and record.in_progress() and record.owner == owner

    def scan(self, filter: Filter = Filter(), *, cursor: str | None = None, limit: int = 100) -> Page:
        """Each record once; again only if the keyspace was resized between two pages (SCAN says "at least once")."""
        return self._link.get().run(self._scripts.scan(filter, cursor, limit, self._now()))

    def counts(self) -> Counts:
        """Walks through the whole keyspace in short steps: for an operator, not for every request."""
        return self._link.get().run(self._scripts.counts(self._now()))

    def purge(self, *, limit: int) -> int:
        """Goes on where the last call ended, at most once around. Redis collects by itself an hour later."""
        gone, self._purged_to = self._link.get().run(self._scripts.purge(limit, self._now(), self._purged_to))
        return gone

    def examine(self) -> Sequence[Finding]:
        return self._link.get().examine()

    def close(self) -> None:
        if link := self._link.take():
            link.close()

    def _now(self) -> int | None:
        return None if self._clock is None else self._clock()


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


def _reply(reply: Any) -> Any:
    if isinstance(reply, Exception):
        raise reply
    return reply
