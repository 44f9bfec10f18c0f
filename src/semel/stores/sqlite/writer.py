"""The one writer of a process, with group commit: whatever waits during a transaction is in the next one together.

A call has one deadline, whether it leads or waits behind others. Who gives up waiting for a group that is under way
gets a `StoreTimeout`, and the group goes on.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from semel.core.effects import Complete, Effect
from semel.errors import StoreError, StoreTimeout, StoreUnavailable
from semel.runtime.deadline import find_due_s, tell_due
from semel.store import Clock
from semel.stores.sqlite.connections import PAGE, Connections
from semel.stores.sqlite.driver import begin, begin_now
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

    __slots__ = ("answered", "call", "due_s", "reply", "turn")

    def __init__(self, call: Effect[Any], due_s: float) -> None:
        self.call = call
        self.due_s = due_s
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
        settings = self._connections.settings
        due_s = find_due_s(time.monotonic(), settings.timeout_s)
        self._catch_up()
        member = Member(call, due_s)
        self._waiting.append(member)
        try:
            while not member.answered:
                if self._leading.acquire(blocking=False):
                    self._lead(member)
                elif (left_s := due_s - time.monotonic()) > 0:
                    member.turn.acquire(timeout=min(left_s, LOST_WAKE_S))
                else:
                    self._leave(member, StoreTimeout(settings.late))
        finally:
            if not member.answered:  # interrupted
                self._leave(member, None)
        if isinstance(member.reply, StoreUnavailable):
            tell_due(member.reply, due_s)
        reply: T = told(member.reply)
        return reply

    def _leave(self, member: Member, reply: StoreTimeout | None) -> None:
        """Stop waiting: a call must not be made when its caller is long gone, unless it is under way already."""
        member.answer(reply)
        with suppress(ValueError):
            self._waiting.remove(member)

    def _lead(self, own: Member) -> None:
        """Write for `own` and those who wait, and give the lock back."""
        group: list[Member] = []
        try:
            if not own.answered:  # the leader before may have answered it just before the lock came free
                group += self._take(own)
                self._write_for(group)
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
                if not (member := self._waiting.popleft()).answered:
                    group.append(member)
        return group

    def _write_for(self, group: list[Member]) -> None:
        """Answer all in the `group`, whose first member leads.

        If the time of the leader ends while it waits for the lock, the others wait on: they are taken out of the group.
        """
        own = group[0]
        patient_s = time.monotonic() + self._connections.settings.busy_timeout_ms / 1000
        calls = [member.call for member in group]
        self.log.add(sum(map(weight, calls)))
        try:
            replies = self._transact(calls, own.due_s)
        except StoreError as error:
            if isinstance(error, StoreTimeout) and own.due_s < patient_s:
                self._put_back(group[1:])
                del group[1:]
            replies = failures(error, len(group))
        for member, reply in zip(group, replies, strict=True):
            member.answer(reply)

    def _put_back(self, members: list[Member]) -> None:
        for member in reversed(members):
            self._waiting.appendleft(member)
            if member.answered:  # its caller has left meanwhile, and did not find it there
                with suppress(ValueError):
                    self._waiting.remove(member)

    def may_write_at_once(self, size: int) -> bool:
        """Whether only another process may have to be waited for."""
        return not (size > AT_ONCE_MAX or self.log.too_long or self.log.behind or self._leading.locked())

    def run(self, calls: Calls) -> list[Any]:
        """Answer each call with its reply or its own failure. All of them together have the time of one call."""
        self._catch_up()
        with self._leading:
            self.log.add(sum(map(weight, calls)))
            try:
                return self._transact(calls, time.monotonic() + self._connections.settings.timeout_s)
            except StoreError as error:
                return failures(error, len(calls))

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

    def _transact(self, calls: Calls, due_s: float) -> list[Any]:
        """All in one transaction; when that fails, each in its own. Raises when none could begin: then nobody's can.

        Nobody waits for the lock after `due_s`.
        """
        began = False
        try:
            with self._connections.lend("write") as connection:
                begin(connection, self._connections.settings, due_s)
                if self.log.too_long:
                    self.log.bring_back_all()
                    connection.execute("ROLLBACK")
                    begin(connection, self._connections.settings, due_s)
                began = True
                replies = self._commit(connection, calls)
        except Exception as error:
            if not began:
                raise
            return [error] if len(calls) == 1 else [self._alone(call, due_s) for call in calls]
        self._committed(calls)
        return replies

    def _alone(self, call: Effect[Any], due_s: float) -> Any:
        try:
            return self._transact([call], due_s)[0]
        except StoreError as error:
            return error

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
