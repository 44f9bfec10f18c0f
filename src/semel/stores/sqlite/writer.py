"""The one writer of a process, with group commit: calls that wait during a transaction are in the next one together.

A call has one deadline, whether it leads or waits behind others. A caller that gives up waiting for a group that is
under way gets a `StoreTimeout`, and the group goes on.
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
from semel.core.outbox import OutboxCall
from semel.errors import StoreError, StoreTimeout, StoreUnavailable
from semel.runtime.deadline import find_due_s, tell_due
from semel.store import Clock
from semel.stores.sqlite.answers import Answer, CallFailed, value_of, write
from semel.stores.sqlite.connections import PAGE, SqliteConnections
from semel.stores.sqlite.driver import begin, begin_now
from semel.stores.sqlite.log import Log
from semel.stores.sqlite.outbox import size_of
from semel.stores.sqlite.scripts import Purge

T = TypeVar("T")
Calls = Sequence[Effect[Any]]
GROUP_MAX = 256
AT_ONCE_MAX = 64
"""How much the event loop writes at once (see `weight`): what takes longer is work for a thread."""
LOST_WAKE_S = 0.05
"""A caller looks up at least so often, so that a leader interrupted between its last two steps stops no other."""


class GroupCall:
    """A call in a group, and its answer when there is one. A failure is an answer too: each call has its own."""

    __slots__ = ("answer", "call", "due_s", "turn")

    def __init__(self, call: Effect[Any], due_s: float) -> None:
        self.call = call
        self.due_s = due_s
        self.answer: Answer | None = None
        self.turn = threading.Lock()
        self.turn.acquire()

    def wake(self) -> None:
        with suppress(RuntimeError):  # it was woken before and has not slept since
            self.turn.release()


class Writer:
    """`call` is for a thread with one call, `run` for a batch, and `write_at_once` for the event loop.

    `committed` is told what was written.
    """

    def __init__(self, connections: SqliteConnections, clock: Clock, committed: Callable[[Calls], None]) -> None:
        self._connections = connections
        self._clock = clock
        self._committed = committed
        self._leading = threading.Lock()
        self._waiting: deque[GroupCall] = deque()
        self.log = Log(connections)

    def call(self, call: Effect[T]) -> T:
        """The caller that finds the lock free writes for all that wait. The others sleep until it is their turn."""
        due_s = find_due_s(time.monotonic(), self._connections.settings.timeout_s)
        self._catch_up()
        member = GroupCall(call, due_s)
        self._waiting.append(member)
        try:
            while member.answer is None:
                if self._leading.acquire(blocking=False):
                    self._lead(member)
                elif (left_s := due_s - time.monotonic()) > 0:
                    member.turn.acquire(timeout=min(left_s, LOST_WAKE_S))
                else:
                    self._leave(member)
        finally:
            if member.answer is None:  # interrupted
                self._leave(member)
        answer: Any = member.answer
        if isinstance(answer, CallFailed) and isinstance(answer.error, StoreUnavailable):
            tell_due(answer.error, due_s)
        value: T = value_of(answer)
        return value

    def _leave(self, member: GroupCall) -> None:
        """Stop waiting: a call must not be made when its caller is long gone, unless it is under way already."""
        member.answer = CallFailed(StoreTimeout(self._connections.settings.late))
        with suppress(ValueError):
            self._waiting.remove(member)

    def _lead(self, own: GroupCall) -> None:
        """Write for `own` and for the calls that wait, and give the lock back."""
        group: list[GroupCall] = []
        try:
            if own.answer is None:  # the leader before may have answered it just before the lock came free
                group += self._take(own)
                self._write_for(group)
        finally:
            for member in group:
                if member.answer is None:
                    failure = StoreUnavailable("the thread that wrote for several was interrupted; ask again")
                    member.answer = CallFailed(failure)
            self._leading.release()
            for member in (*list(self._waiting)[:1], *group):  # the next leader first: the others only have to go home
                member.wake()

    def _take(self, own: GroupCall) -> list[GroupCall]:
        group = [own]
        with suppress(ValueError):
            self._waiting.remove(own)
        with suppress(IndexError):
            while len(group) < GROUP_MAX:
                if (member := self._waiting.popleft()).answer is None:
                    group.append(member)
        return group

    def _write_for(self, group: list[GroupCall]) -> None:
        """Answer all in the `group`, whose first member leads.

        If the time of the leader ends while it waits for the lock, the others wait on: they are taken out of the group.
        """
        own = group[0]
        patient_s = time.monotonic() + self._connections.settings.busy_timeout_ms / 1000
        calls = [member.call for member in group]
        self.log.add(sum(map(weight, calls)))
        try:
            answers = self._transact(calls, own.due_s)
        except StoreError as error:
            if isinstance(error, StoreTimeout) and own.due_s < patient_s:
                self._put_back(group[1:])
                del group[1:]
            answers = fail_all(error, len(group))
        for member, answer in zip(group, answers, strict=True):
            member.answer = answer

    def _put_back(self, members: list[GroupCall]) -> None:
        for member in reversed(members):
            self._waiting.appendleft(member)
            if member.answer is not None:  # its caller has left meanwhile, and did not find it there
                with suppress(ValueError):
                    self._waiting.remove(member)

    def run(self, calls: Calls) -> list[Answer]:
        """Answer each call with its reply or its own failure. All of them together have the time of one call."""
        self._catch_up()
        with self._leading:
            self.log.add(sum(map(weight, calls)))
            try:
                return self._transact(calls, time.monotonic() + self._connections.settings.timeout_s)
            except StoreError as error:
                return fail_all(error, len(calls))

    def write_at_once(self, connection: sqlite3.Connection, calls: Calls) -> list[Answer] | None:
        """Answer all calls in one transaction. None: the event loop would have to wait for a writer or for the log."""
        size = sum(map(weight, calls))
        if size > AT_ONCE_MAX or self.log.too_long or self.log.behind or not self._leading.acquire(blocking=False):
            return None
        try:
            if not begin_now(connection):
                return None
            self.log.add(size)
            answers = self._commit(connection, calls)
        finally:
            self._leading.release()
        self._committed(calls)
        return answers

    def _catch_up(self) -> None:
        if self.log.behind:
            self.log.wait()

    def _transact(self, calls: Calls, due_s: float) -> list[Answer]:
        """Answer all in one transaction; when that fails, each in its own. Raises if no transaction could begin.

        The lock is not waited for after `due_s`.
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
                answers = self._commit(connection, calls)
        except Exception as error:
            if not began:
                raise
            return [CallFailed(error)] if len(calls) == 1 else [self._transact_alone(call, due_s) for call in calls]
        self._committed(calls)
        return answers

    def _transact_alone(self, call: Effect[Any], due_s: float) -> Answer:
        try:
            return self._transact([call], due_s)[0]
        except StoreError as error:
            return CallFailed(error)

    def _commit(self, connection: sqlite3.Connection, calls: Calls) -> list[Answer]:
        """Write in the transaction that was begun, and end it."""
        now_ms = self._clock()  # read under the write lock: later transactions have later times
        answers = [write(connection, call, now_ms) for call in calls]
        self._connections.files.check()
        connection.execute("COMMIT")
        return answers


def weight(call: Effect[Any]) -> int:
    """How much a call writes, in calls with a small result."""
    if type(call) is Complete:
        return 1 + len(call.result.payload) // PAGE
    if isinstance(call, OutboxCall):
        return size_of(call)
    return call.limit if type(call) is Purge else 1


def fail_all(error: StoreError, count: int) -> list[Answer]:
    """The same failure for each of several callers; an exception object must not be raised in two threads."""
    return [CallFailed(type(error)(str(error))) for _ in range(count)]
