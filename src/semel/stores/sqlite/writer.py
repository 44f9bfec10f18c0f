"""The one writer of a process, with group commit: whatever waits during a transaction is in the next one together."""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from semel.core.effects import Complete, Effect
from semel.errors import StoreError, StoreUnavailable
from semel.store import Clock
from semel.stores.sqlite.connect import begin, begin_now
from semel.stores.sqlite.connections import PAGE, Connections
from semel.stores.sqlite.log import Log
from semel.stores.sqlite.quick import write
from semel.stores.sqlite.scripts import Purge

T = TypeVar("T")
Calls = Sequence[Effect[Any]]
GROUP_MAX = 256
AT_ONCE_MAX = 64
"""How much is written at once (see `weight`): what takes longer is work for a thread."""
LOST_WAKE_S = 0.05
"""Nobody sleeps longer without looking up, so that a leader interrupted between its last two steps stops nobody."""


class Member:
    """A call in a group, and its reply when there is one. A failure is a reply too: nobody gets a neighbour's."""

    __slots__ = ("answered", "call", "reply", "turn")

    def __init__(self, call: Effect[Any]) -> None:
        self.call = call
        self.answered = False
        self.reply: Any = None
        self.turn = threading.Lock()
        self.turn.acquire()

    def answer(self, reply: Any) -> None:
        self.reply, self.answered = reply, True

    def wake(self) -> None:
        with suppress(RuntimeError):  # it was woken before and has not slept since
            self.turn.release()


class Writer:
    """`call` is for threads, `run` for whoever has made a group already. `committed` is told what was written."""

    def __init__(self, connections: Connections, clock: Clock, committed: Callable[[Calls], None]) -> None:
        self._connections = connections
        self._clock = clock
        self._committed = committed
        self._leading = threading.Lock()
        self._waiting: deque[Member] = deque()
        self.log = Log(connections)

    def call(self, call: Effect[T]) -> T:
        """Whoever finds the lock free writes for all that wait. The others sleep until they are answered or lead."""
        self._catch_up()
        member = Member(call)
        self._waiting.append(member)
        try:
            while not member.answered:
                if self._leading.acquire(blocking=False):
                    self._lead(member)
                else:
                    member.turn.acquire(timeout=LOST_WAKE_S)
        finally:
            if not member.answered:  # interrupted: a call must not be made when its caller is long gone
                with suppress(ValueError):
                    self._waiting.remove(member)
        reply: T = told(member.reply)
        return reply

    def _lead(self, own: Member) -> None:
        """Write for `own` and those who wait, and give the lock back."""
        group: list[Member] = []
        try:
            if not own.answered:  # the leader before may have answered it just before the lock came free
                group += self._take(own)
                for member, reply in zip(group, self._run([member.call for member in group]), strict=True):
                    member.answer(reply)
        finally:
            for member in group:
                if not member.answered:
                    member.answer(StoreUnavailable("the thread that wrote for several was interrupted; ask again"))
            self._leading.release()
            for member in (*list(self._waiting)[:1], *group):  # the next leader first: the others only have to go home
                member.wake()

    def _take(self, own: Member) -> list[Member]:
        group = [own]
        with suppress(ValueError):
            self._waiting.remove(own)
        with suppress(IndexError):
            while len(group) < GROUP_MAX:
                group.append(self._waiting.popleft())
        return group

    def may_write_at_once(self, size: int) -> bool:
        """Whether only another process may have to be waited for."""
        return not (size > AT_ONCE_MAX or self.log.too_long or self.log.behind or self._leading.locked())

    def run(self, calls: Calls) -> list[Any]:
        """Answer each call with its reply or its own failure."""
        self._catch_up()
        with self._leading:
            return self._run(calls)

    def apply(self, connection: sqlite3.Connection, calls: Calls) -> list[Any] | None:
        """The same for who must not wait for another writer. None: it would have to; else `commit` has to end it."""
        size = sum(map(weight, calls))
        if not self.may_write_at_once(size) or not self._leading.acquire(blocking=False):
            return None
        replies = None
        try:
            if begin_now(connection):
                self.log.add(size)
                replies = write(connection, calls, self._clock())
        finally:
            if replies is None:
                self._leading.release()
        return replies

    def commit(self, connection: sqlite3.Connection, calls: Calls) -> None:
        """End what `apply` began, in whatever thread may wait for the disk, if the disk has to be waited for."""
        try:
            self._connections.files.check()
            connection.execute("COMMIT")
        finally:
            self._leading.release()
        self._committed(calls)

    def forget(self) -> None:
        """What `apply` began will not be committed: its connection is being closed."""
        self._leading.release()

    def _catch_up(self) -> None:
        if self.log.behind:
            self.log.wait()

    def _run(self, calls: Calls) -> list[Any]:
        self.log.add(sum(map(weight, calls)))
        try:
            return self._transact(calls)
        except StoreError as error:
            return failures(error, len(calls))

    def _transact(self, calls: Calls) -> list[Any]:
        """All in one transaction; when that fails, each in its own. Raises when none could begin: then nobody's can."""
        began = False
        try:
            with self._connections.lend("write") as connection:
                begin(connection, self._connections.settings)
                if self.log.too_long:
                    self.log.bring_back_all()
                    connection.execute("ROLLBACK")
                    begin(connection, self._connections.settings)
                began = True
                replies = self._commit(connection, calls)
        except Exception as error:
            if not began:
                raise
            return [error] if len(calls) == 1 else [self._transact([call])[0] for call in calls]
        self._committed(calls)
        return replies

    def _commit(self, connection: sqlite3.Connection, calls: Calls) -> list[Any]:
        now_ms = self._clock()  # read under the write lock: later transactions have later times
        replies = write(connection, calls, now_ms)
        self._connections.files.check()
        connection.execute("COMMIT")
        return replies


def weight(call: Effect[Any]) -> int:
    """How much a call writes, in calls with a small result."""
    if type(call) is Complete:
        return 1 + len(call.result.payload) // PAGE
    return call.limit if type(call) is Purge else 1


def failures(error: StoreError, count: int) -> list[StoreError]:
    """The same failure for each of several callers; an exception object must not be raised in two threads."""
    return [type(error)(str(error)) for _ in range(count)]


def told(reply: Any) -> Any:
    """A reply, or the failure in its place, raised."""
    if isinstance(reply, Exception):
        raise reply
    return reply
