"""The way to the database: sessions of the server, statements that travel to them, and what strikes on the way."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simulation.loop import Handle
from simulation.store import DELAYS_MS
from simulation.transactions.database import (
    CANCELLED,
    CHECK,
    CLAIM,
    COMPLETE,
    DEADLOCK,
    INSIST,
    LOCKED,
    READ,
    SERIALIZATION,
    WRITE,
    Database,
    DatabaseError,
    Meaning,
    Rows,
    Transaction,
)
from simulation.transactions.scenario import Sent, StatementFault

if TYPE_CHECKING:
    from simulation.transactions.process import TransactionProcess
    from simulation.transactions.world import TransactionWorld

KINDS: dict[str, Sent] = {
    "CONNECT": "connect", "BEGIN": "begin", CLAIM: "claim", INSIST: "insist", COMPLETE: "complete", READ: "read",
    WRITE: "write", "COMMIT": "commit", "ROLLBACK": "rollback",
}  # fmt: skip
LOST, NO_SERVER, DISK_FULL = "08006", "08001", "53100"
Reply = asyncio.Future[Rows]


class Session:
    """The server's side of one connection."""

    def __init__(self, process: TransactionProcess) -> None:
        self.process = process
        self.transaction: Transaction | None = None
        self.ended = False
        self.client_gone = False
        self.calls = 0
        """How many statements are on their way, or being executed: one, or none."""
        self.waiting: Waiting | None = None


class Call:
    """One statement on its way, and its reply on the way back. Without `back_ms` no reply comes."""

    def __init__(self, session: Session, sql: str, params: Sequence[Any], reply: Reply) -> None:
        self.session = session
        self.sql = sql
        self.params = params
        self.reply = reply
        self.back_ms: int | None = None
        self.error: DatabaseError | None = None
        """What the server answers instead of executing it."""


class Waiting:
    """A statement that waits for another transaction."""

    def __init__(self, call: Call, meaning: Meaning, since_s: float, timer: Handle | None) -> None:
        self.call = call
        self.meaning = meaning
        self.since_s = since_s
        self.timer = timer


class Server:
    """Executes what arrives. What it has committed it keeps."""

    def __init__(self, world: TransactionWorld) -> None:
        self.world = world
        self.database = Database(world)
        self.sessions: list[Session] = []
        self._sent: Counter[str] = Counter()
        self._faults = {(fault.sent, fault.nth): fault for fault in world.scenario.message_faults}
        self._away_until_s = 0.0

    # What connections ask for

    def connect(self, process: TransactionProcess) -> tuple[Session, Reply]:
        session = Session(process)
        self.sessions.append(session)
        return session, self.ask(session, "CONNECT", ())

    def ask(self, session: Session, sql: str, params: Sequence[Any]) -> Reply:
        reply: Reply = session.process.loop.create_future()
        call = Call(session, sql, params, reply)
        session.calls += 1
        go_ms = self._delay_ms()
        sent = KINDS.get(sql)
        fault = None if sent is None else self._faults.get((sent, self._sent[sent]))
        if sent is not None:
            self._sent[sent] += 1
        if self.world.time.now_s < self._away_until_s:
            self.world.reached.add("database away")
            session.calls -= 1
            self.world.time.after_ms(go_ms, self._lose, call)
        elif fault is None:
            call.back_ms = self._delay_ms()
            self.world.time.after_ms(go_ms, self._arrive, call)
        else:
            self.world.reached.add(f"{sent} {fault.kind}")
            self.world.note("db", "{} strikes {} of {}", fault.kind, sent, session.process.name)
            self._strike(fault, call, go_ms)
        return reply

    def cancel(self, session: Session) -> None:
        """Ask the server to give up the statement that it is executing."""
        self.world.time.after_ms(self._delay_ms(), self._end_wait, session, CANCELLED, "canceled on request")

    def close(self, session: Session) -> None:
        """The client closes its end. What it has sent still arrives."""
        session.client_gone = True
        self._look_for_client(session)

    def lose_process(self, process: TransactionProcess) -> None:
        for session in self.sessions:
            if session.process is process and not session.client_gone:
                self.close(session)

    # Faults

    def _strike(self, fault: StatementFault, call: Call, go_ms: int) -> None:
        after, ms = self.world.time.after_ms, max(1, fault.ms)
        match fault.kind:
            case "lost":
                call.session.calls -= 1
                after(ms, self._lose, call)
            case "reply-lost":
                after(go_ms, self._arrive, call)
                after(go_ms + ms, self._lose, call)
            case "late":
                after(go_ms, self._lose, call)
                after(go_ms + ms, self._arrive, call)
            case "slow-request":
                call.back_ms = self._delay_ms()
                after(go_ms + ms, self._arrive, call)
            case "slow-reply":
                call.back_ms = ms
                after(go_ms, self._arrive, call)
            case "deadlock" | "refused":
                call.back_ms = self._delay_ms()
                if call.sql not in ("BEGIN", "ROLLBACK"):  # which a server never refuses
                    call.error = _refusal(fault, KINDS[call.sql])
                after(go_ms, self._arrive, call)
            case "outage":
                call.session.calls -= 1
                after(go_ms, self._lose, call)
                self._restart(ms)
            case "crash":  # of the process: what it asked for is done, and it never hears of that
                after(go_ms, self._arrive, call)
                after(go_ms, call.session.process.crash, ms)

    def _restart(self, down_ms: int) -> None:
        """The server is away. What was not committed is gone; connections break."""
        self._away_until_s = self.world.time.now_s + down_ms / 1000
        for session in self.sessions:
            self._terminate(session)

    def terminate_one(self) -> None:
        """An operator ends the session of an open transaction."""
        busy = [session for session in self.sessions if session.transaction is not None]
        if busy:
            session = self.world.time.rng.choice(busy)
            self.world.note("db", "ends the session of {}", session.process.name)
            self.world.reached.add("session terminated")
            self._terminate(session)

    def _terminate(self, session: Session) -> None:
        """The client hears of it with its next statement, or instead of the reply to this one."""
        waiting, session.waiting = session.waiting, None
        if waiting is not None:
            session.calls -= 1
            self.world.time.after_ms(self._delay_ms(), self._lose, waiting.call)
        session.ended = True
        if session.transaction is not None:
            transaction, session.transaction = session.transaction, None
            transaction.waits_for = None
            self.database.end(transaction)

    def heal(self) -> None:
        """From now on everything arrives."""
        self._faults.clear()
        self._away_until_s = 0.0

    # What the server does

    def _arrive(self, call: Call) -> None:
        session = call.session
        if session.ended:
            session.calls -= 1
            self.world.time.after_ms(self._delay_ms(), self._lose, call)
        elif call.error is not None:
            self._refuse(call, call.error)
        elif call.sql in ("CONNECT", "BEGIN", "COMMIT", "ROLLBACK"):
            self._border(call)
        elif session.transaction is None:
            raise AssertionError(f"{call.sql} outside of a transaction")
        else:
            self._go_on(call, self.database.execute(session.transaction, call.sql, call.params))

    def _refuse(self, call: Call, error: DatabaseError) -> None:
        """The server fails it: the transaction takes no more statements, or has ended if this was its COMMIT."""
        session = call.session
        if session.transaction is not None:
            session.transaction.aborted = True
            if call.sql == "COMMIT":
                self.world.oracle.refused(session.transaction, error)
                transaction, session.transaction = session.transaction, None
                self.database.end(transaction)
        self._finish(call, error)

    def _border(self, call: Call) -> None:
        session, transaction = call.session, call.session.transaction
        self.world.note("db", "{}: {}", session.process.name, call.sql)
        if call.sql == "BEGIN":
            assert transaction is None, "one transaction at a time"
            session.transaction = self.database.begin()
        elif call.sql in ("COMMIT", "ROLLBACK") and transaction is not None:
            session.transaction = None
            (self.database.commit if call.sql == "COMMIT" else self.database.end)(transaction)
        self._finish(call, [])

    def _go_on(self, call: Call, meaning: Meaning, error: DatabaseError | None = None) -> None:
        """Execute a statement up to its end, or to the transaction that is in its way."""
        transaction = call.session.transaction
        assert transaction is not None
        transaction.waits_for = None
        try:
            in_the_way = next(meaning) if error is None else meaning.throw(error)
        except StopIteration as stop:
            self.world.note("db", "{}: {} -> {}", call.session.process.name, KINDS.get(call.sql, call.sql), stop.value)
            self._finish(call, stop.value)
        except DatabaseError as refused:
            transaction.aborted = True
            self._finish(call, refused)
        else:
            transaction.waits_for = in_the_way
            if transaction.is_in_circle():
                self.world.reached.add("real deadlock")
                self._go_on(call, meaning, DatabaseError(DEADLOCK, "deadlock detected"))
                return
            self.world.reached.add("waits in the database")
            timeout_ms, timer = transaction.lock_timeout_ms, None
            if timeout_ms:
                lapse = (call.session, LOCKED, "canceling statement due to lock timeout")
                timer = self.world.time.after_ms(timeout_ms, self._end_wait, *lapse)
            call.session.waiting = Waiting(call, meaning, self.world.time.now_s, timer)

    def _end_wait(self, session: Session, sqlstate: str = "", why: str = "") -> None:
        waiting, session.waiting = session.waiting, None
        if waiting is None:
            return
        if waiting.timer is not None:
            waiting.timer.cancel()
        if waiting.call.sql in (CLAIM, INSIST):
            self.world.oracle.waited(waiting.call.params, self.world.time.now_s - waiting.since_s)
        self._go_on(waiting.call, waiting.meaning, DatabaseError(sqlstate, why) if sqlstate else None)

    def let_go(self, ended: Transaction) -> None:
        """PostgreSQL lets go of a transaction's rows, and then of its advisory locks."""
        self.wake(ended)
        self.world.time.after_ms(int(2 * self.world.time.rng.random()), self._unlock, ended)

    def _unlock(self, ended: Transaction) -> None:
        self.database.ending.remove(ended)
        self.wake(ended)

    def wake(self, ended: Transaction) -> None:
        """A transaction has ended: what waited for it goes on."""
        for session in self.sessions:
            waiter = None if session.waiting is None else session.transaction
            if waiter is not None and waiter.waits_for is ended:
                self.world.time.after_ms(0, self._end_wait, session)

    # The way back

    def _finish(self, call: Call, said: Rows | DatabaseError) -> None:
        session = call.session
        session.calls -= 1
        if call.back_ms is not None:
            self.world.time.after_ms(call.back_ms, self._answer, call, said)
        self._look_for_client(session)

    def _answer(self, call: Call, said: Rows | DatabaseError) -> None:
        if call.session.process.loop.dead or call.reply.done():
            self.world.reached.add("reply to nobody")
        elif isinstance(said, DatabaseError):
            call.reply.set_exception(DatabaseError(said.sqlstate, str(said)))
        else:
            call.reply.set_result(said)

    def _lose(self, call: Call) -> None:
        """The client finds out that its connection is gone."""
        if not call.session.process.loop.dead and not call.reply.done():
            call.reply.set_exception(DatabaseError(LOST, "the connection was lost"))
        self.close(call.session)

    def _look_for_client(self, session: Session) -> None:
        """A server notices a client that is gone when it has nothing else to do, at once or later."""
        if session.client_gone and not session.calls and not session.ended:
            self.world.time.after_ms(self.world.scenario.driver.notice_ms, self._notice, session)

    def _notice(self, session: Session) -> None:
        if not session.calls and not session.ended:
            self._terminate(session)

    def _delay_ms(self) -> int:
        return DELAYS_MS[int(self.world.time.rng.random() * len(DELAYS_MS))]


def _refusal(fault: StatementFault, sent: Sent) -> DatabaseError:
    if sent == "connect":
        return DatabaseError(NO_SERVER, "the server does not take the connection")
    if fault.kind == "deadlock":
        if sent == "commit":
            return DatabaseError(SERIALIZATION, "could not serialize access")
        return DatabaseError(DEADLOCK, "deadlock detected")
    if sent in ("write", "commit"):
        return DatabaseError(CHECK, "the row violates a constraint")
    return DatabaseError(DISK_FULL, "no space left on device")
