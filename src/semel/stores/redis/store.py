"""The sync face: threads share a pool, each call is one script."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

from semel.core.copies import CopyCall
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
from semel.stores.redis.doctor import examine, examine_front
from semel.stores.redis.driver import RedisConnections, ours
from semel.stores.redis.scripts import RedisScripts
from semel.stores.redis.settings import RedisSettings
from semel.stores.redis.watch import NEVER_LOOKED, POLL_S, Listener
from semel.stores.waiters import Waiters, changed_key

T = TypeVar("T")


class RedisLink:
    """The connections of one process, and what it knows about the server."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._connections = RedisConnections(settings)
        self._checked = Once()
        self.waiters = Waiters()
        self.listener = Listener(self._connections.pool, self.waiters)

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

    def run_unchecked(self, effect: Effect[Any]) -> Any:
        """For examinations: the check would refuse what is to be shown."""
        return self._perform(time.monotonic() + self._settings.timeout_s, effect)

    def close(self) -> None:
        self.listener.close()
        self._connections.close()

    def _perform(self, due_s: float, effect: Effect[Any]) -> Any:
        assert isinstance(effect, Command)
        return self._connections.ask(effect.words, due_s)


class RedisStore(Face):
    """Redis or Valkey, for threads. Connects on first use, in each process that uses it."""

    def __init__(self, settings: RedisSettings, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._scripts = RedisScripts(settings.prefix, partial(ours, settings))
        self._clock = clock
        self._link = PerProcess(lambda: RedisLink(settings))
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
        return list(examine(self._settings, self._link.get().run_unchecked))

    def open_front(self, *, timeout_ms: int) -> RedisStore:
        return RedisStore(self._settings.as_front(timeout_ms))

    def answer_copy(self, call: CopyCall[T]) -> T:
        return self._call(call)

    def examine_front(self) -> Sequence[Finding]:
        return list(examine_front(self._settings, self._link.get().run_unchecked))

    def close(self) -> None:
        if link := self._link.take():
            link.close()

    def _now(self) -> int | None:
        return None if self._clock is None else self._clock()


def _reply(reply: Any) -> Any:
    if isinstance(reply, Exception):
        raise reply
    return reply
