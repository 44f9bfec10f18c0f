"""The sync face: threads share a pool, each call is one script."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from semel.core.copies import CopyCall
from semel.core.effects import Effect, Plan
from semel.core.records import Key
from semel.errors import StoreUnavailable
from semel.runtime.deadline import find_due_s, tell_due
from semel.runtime.drive import drive
from semel.runtime.local import PerProcess
from semel.store import Clock, Counts, Filter, Finding, Page
from semel.stores.faces import Face
from semel.stores.redis.commands import Node, Nodes
from semel.stores.redis.doctor import LookAt, examine, examine_front
from semel.stores.redis.failures import ours
from semel.stores.redis.operate import RedisOperators
from semel.stores.redis.scripts import RedisScripts
from semel.stores.redis.servers import RedisServers, slots_of
from semel.stores.redis.settings import RedisSettings
from semel.stores.redis.walk import Walk
from semel.stores.redis.watch import NEVER_LOOKED, POLL_S, Listener
from semel.stores.waiters import Waiters, changed_key

T = TypeVar("T")


class RedisLink:
    """The connections of one process, and what it knows about the servers."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._servers = RedisServers(settings)
        self.waiters = Waiters()
        self.listener = Listener(lambda: self._servers.make_listening(self._due_s()), self.waiters)

    def run(self, plan: Plan[T]) -> T:
        """A call has one deadline for all that it waits for: a free connection, a new one, and every command."""
        due_s = find_due_s(time.monotonic(), self._settings.timeout_s)
        try:
            return drive(plan, lambda effect: self._servers.perform(effect, due_s))
        except StoreUnavailable as failure:
            tell_due(failure, due_s)
            raise

    def examine(self, look: Callable[[RedisSettings, Sequence[Node], LookAt], Iterator[Finding]]) -> list[Finding]:
        """Without the check, which would refuse what is to be shown."""
        nodes = self._servers.perform(Nodes(), self._due_s())

        def look_at(node: Node, effect: Effect[Any]) -> Any:
            return self._servers.look_at(node, effect, self._due_s())

        return list(look(self._settings, nodes, look_at))

    def close(self) -> None:
        self.listener.close()
        self._servers.close()

    def _due_s(self) -> float:
        return time.monotonic() + self._settings.timeout_s


class RedisStore(Face):
    """Redis or Valkey, for threads. Connects on first use, in each process that uses it."""

    def __init__(self, settings: RedisSettings, *, clock: Clock | None = None) -> None:
        self._settings = settings
        place = settings.prefix, partial(ours, settings), slots_of(settings)
        self._scripts, self._operators = RedisScripts(*place), RedisOperators(*place)
        self._clock = clock
        self._link = PerProcess(lambda: RedisLink(settings))
        self._purged_to = Walk()

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
        return self._link.get().run(self._operators.scan(filter, cursor, limit, self._now()))

    def counts(self) -> Counts:
        """Walks through the whole keyspace in short steps: for an operator, not for every request."""
        return self._link.get().run(self._operators.counts(self._now()))

    def purge(self, *, limit: int) -> int:
        """Goes on where the last call ended, at most once around. Redis collects by itself an hour later."""
        gone, self._purged_to = self._link.get().run(self._operators.purge(limit, self._now(), self._purged_to))
        return gone

    def examine(self) -> Sequence[Finding]:
        return self._link.get().examine(examine)

    def open_front(self, *, timeout_ms: int) -> RedisStore:
        return RedisStore(self._settings.as_front(timeout_ms))

    def answer_copy(self, call: CopyCall[T]) -> T:
        return self._call(call)

    def examine_front(self) -> Sequence[Finding]:
        return self._link.get().examine(examine_front)

    def close(self) -> None:
        if link := self._link.take():
            link.close()

    def _now(self) -> int | None:
        return None if self._clock is None else self._clock()


def _reply(reply: Any) -> Any:
    if isinstance(reply, Exception):
        raise reply
    return reply
