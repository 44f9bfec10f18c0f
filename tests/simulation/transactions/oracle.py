"""The oracle of a history with transactions: it sees every commit at the server, and every answer that leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from semel.core.http import Response
from semel.core.records import Key, Record
from semel.errors import NotExecuted, OutcomeUnknown
from semel.http.held import AnswerTooLong
from semel.runtime.operation import Operation as Running
from semel.stores.sql.rows import to_record
from simulation.application import WorkFailed
from simulation.holding import kept_in
from simulation.process import Request
from simulation.replies import PROBLEM, without_never_replayed
from simulation.scenario import Work
from simulation.transactions.application import rows_of
from simulation.transactions.connection import Connection
from simulation.transactions.database import CHECK, DatabaseError, Row, Transaction
from simulation.transactions.holding import Holdings
from simulation.transactions.invariants import INVARIANTS
from simulation.transactions.replies import Replies

if TYPE_CHECKING:
    from simulation.transactions.process import TransactionProcess
    from simulation.transactions.world import TransactionWorld

ANSWERED_S = 60.0
TWIN_S = 0.05
"""A claim that finds its twin gives up after a millisecond."""
PROBE_WORK = Work("created", 0, 0)
RAISED = frozenset({"raised", "raised-early", "raised-midway", "raised-after-answer", "too-long", "unfinished"})
GAVE_UP = ("40001", "40P01", "08")
EXPECTED = (WorkFailed, NotExecuted, OutcomeUnknown, AnswerTooLong, DatabaseError)


class Phase(Enum):
    """How far a handler is."""

    WORKING = "it writes"
    DONE = "it gives the last part of its answer"
    LEFT = "it has returned or raised"


class Entry:
    """One time that the work was entered."""

    def __init__(self, number: int, request: Request, running: Running, work: Work) -> None:
        self.number = number
        self.request = request
        self.key = running.key
        self.owner = running.lease.owner
        self.work = work
        self.phase = Phase.WORKING
        self.task: asyncio.Task[Any] | None = None
        self.connection: Connection | None = None
        self.written = 0
        self.struck = ""
        """The SQLSTATE with which one of its rows was refused."""
        self.answer: Response | None = None
        self.committed: Committed | None = None
        self.nothing = False
        """Whether it has declared that nothing was done, or that its outcome is unknown."""
        self.refused = False
        """Whether the database refused its commit, as it would refuse it again."""
        self.told = ""
        """What its caller was told."""

    def take(self, connection: Connection) -> None:
        self.task = asyncio.current_task()
        self.connection, connection.entry = connection, self

    def is_working(self) -> bool:
        return self.phase is Phase.WORKING

    def done(self) -> None:
        self.phase = Phase.DONE

    def leave(self) -> None:
        self.phase = Phase.LEFT


class Committed:
    """A record that was committed, and the answer in it (None for one that was too large)."""

    def __init__(self, record: Record, entry: Entry | None, at_s: float) -> None:
        self.record = record
        self.entry = entry
        self.at_s = at_s
        self.answer = None if record.result is None else kept_in(record.result)


class Oracle:
    def __init__(self, world: TransactionWorld) -> None:
        self.world = world
        self.requests: list[Request] = []
        self.entries: list[Entry] = []
        self.by_owner: dict[str, Entry] = {}
        self.of_request: dict[int, Entry] = {}
        self.committed: dict[Key, list[Committed]] = {}
        self.holdings = Holdings(world)
        self.replies = Replies(self)
        self._seen: dict[Key, int] = {}

    def violated(self, name: str, detail: str) -> None:
        assert name in INVARIANTS, name
        if not self.world.over:
            self.world.note("ORACLE", "{}: {}", name, detail)
            self.world.violations.append((name, detail))

    # Requests

    def begin(self, request: Request) -> int:
        self.requests.append(request)
        return len(self.requests) - 1

    def replied(self, request: Request, response: Response) -> None:
        if request.process.loop.dead or self.world.over:
            return
        self.replies.check(request, response)
        took_s = self.world.time.now_s - request.sent_s
        if took_s > ANSWERED_S and not request.process.disturbed:
            self.violated("everybody-is-answered", f"r{request.number} was answered after {took_s:.1f} s")

    def ended(self, request: Request, error: BaseException | None) -> None:
        if self.world.over:
            return
        expected = isinstance(error, EXPECTED) or type(error).__name__ == "Unfinished"
        if error is not None and not expected and not isinstance(error, asyncio.CancelledError):
            self.violated("no-unexpected-exception", f"r{request.number}: {error!r}")
        process = request.process
        quiet = error is None and request.response is None and not request.left and not process.loop.dead
        if quiet and not process.disturbed:
            self.violated("everybody-is-answered", f"r{request.number} ended without an answer")

    def crashed(self, process: TransactionProcess) -> None:
        """Its transactions end when the server notices."""

    def quiet(self) -> None:
        for request in self.requests:
            if not request.process.loop.dead and request.response is None and not request.task.done():
                self.violated("everybody-is-answered", f"r{request.number} hangs")
        for process in self.world.lives:
            for failure in process.loop.failures:
                self.violated("no-unexpected-exception", f"in a callback: {failure!r}")
            if process.pool.borrowed and not process.loop.dead:
                self.violated("nothing-stays-open", f"{process.name} has a borrowed connection")
        if self.world.server.database.open:
            self.violated("nothing-stays-open", "a transaction is open at the server")

    def entered(self, request: Request, running: Running) -> Entry:
        operation, key = request.operation, running.key
        nth = self._seen[key] = self._seen.get(key, 0) + 1
        work = PROBE_WORK if request.calling is None else operation.works[min(nth, len(operation.works)) - 1]
        entry = Entry(len(self.entries), request, running, work)
        self.world.note(request.process.name, "r{} ENTERS as entry {}: {}", request.number, entry.number, work)
        self.world.reached.add(f"work {work.outcome}")
        if nth > 1:
            self.world.reached.add("second run")
        if (key.tenant, key.name) != (operation.tenant, operation.name) or operation.path not in key.scope:
            self.violated("work-belongs-to-its-key", f"r{request.number} runs under {key}")
        self.entries.append(entry)
        self.by_owner[entry.owner] = self.of_request[request.number] = entry
        return entry

    # Connections

    def waited(self, params: Sequence[Any], waited_s: float) -> None:
        owner = params[5]
        if owner not in self.by_owner and waited_s > TWIN_S:
            self.violated("twins-wait-without-a-connection", f"{owner} waited for {waited_s * 1000:.0f} ms")

    # The server

    def inserted(self, transaction: Transaction, row: Row) -> None:
        self.holdings.inserted(transaction, to_record(row))

    def ends(self, transaction: Transaction) -> None:
        self.holdings.ends(transaction)
        if transaction.effects and transaction.number not in self.holdings.commits:
            self.world.reached.add("run rolled back")

    def refused(self, transaction: Transaction, error: DatabaseError) -> None:
        """The COMMIT of this transaction failed."""
        for row in transaction.records.values():
            entry = self.by_owner.get(to_record(row).owner)
            if entry is not None and error.sqlstate == CHECK:
                entry.refused = True

    def commits(self, transaction: Transaction) -> None:
        """A transaction is committed in this moment."""
        records = [to_record(row) for row in transaction.records.values()]
        if not records and not transaction.effects:
            return
        self.holdings.commits.add(transaction.number)
        if len(records) != 1:
            self.violated("rows-and-record-are-one", f"{len(transaction.effects)} rows and {len(records)} records")
        for record in records:
            self._commits(record, transaction.effects)

    def _commits(self, record: Record, rows: list[tuple[int, int]]) -> None:
        entry = self.by_owner.get(record.owner)
        self.world.note("db", "COMMITTED {} and rows {}", record, rows)
        before = self.committed.setdefault(record.key, [])
        if before and before[-1].record.expires_ms + before[-1].record.refuse_ms > record.created_ms:
            self.violated("one-run-per-key", f"{record.key} has committed before")
        elif before:
            self.world.reached.add("second generation")
        committed = Committed(record, entry, self.world.time.now_s)
        before.append(committed)
        self.holdings.owed(record)
        if record.result is None:
            self.violated("rows-and-record-are-one", f"{record.key} is committed without a result")
        if entry is None or entry.nothing:
            self.violated("only-work-has-results", f"{record.key} was committed by {entry and entry.work}")
        if entry is not None:
            self._judge(entry, committed, rows)

    def _judge(self, entry: Entry, committed: Committed, rows: list[tuple[int, int]]) -> None:
        succeeded = committed.record.result is not None and committed.record.result.ok
        entry.committed = committed
        wanted = [(entry.number, part) for part in range(rows_of(entry.work.outcome))] if succeeded else []
        if sorted(rows) != wanted:
            self.violated("a-run-is-whole", f"entry {entry.number} commits {rows}, not {wanted}")
        if entry.phase is Phase.WORKING:
            self.violated("settled-when-the-answer-is-whole", f"entry {entry.number} is still working")
        if entry.told in ("not-executed", "interrupted", "refused"):
            self.violated("nothing-done-is-true", f"entry {entry.number} commits and its caller was told {entry.told}")
        if not succeeded:
            self.world.reached.add("failure remembered")
            if entry.struck.startswith(GAVE_UP):
                self.violated("given-up-is-not-stored", f"entry {entry.number} got {entry.struck}")
        if entry.request.response is None and entry.told == "":
            self.world.reached.add("committed unheard")
        self._compare(entry, committed.answer)

    def _compare(self, entry: Entry, answer: Response | None) -> None:
        outcome, number = entry.work.outcome, entry.number
        if answer is None:
            if outcome != "large":
                self.violated("stored-as-answered", f"entry {number} was not kept")
        elif answer.headers[0] == PROBLEM:
            if outcome not in RAISED and not entry.struck:
                self.violated("stored-as-answered", f"entry {number} is stored as a problem")
        elif entry.answer is None or answer != without_never_replayed(entry.answer):
            self.violated("stored-as-answered", f"entry {number} answered {entry.answer}, stored is {answer}")
