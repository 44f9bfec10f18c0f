"""What an answer of a request with a transaction may be. Judged when it leaves the process."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import TYPE_CHECKING

from semel.core.http import NOT_STORED, REPLAYED, Response
from semel.core.records import Key
from simulation.process import Request
from simulation.replies import kind_of, without_never_replayed

if TYPE_CHECKING:
    from simulation.transactions.oracle import Committed, Entry, Oracle

NEVER = frozenset({"outcome-unknown", "record-unreadable"})


class Replies:
    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.world = oracle.world

    def check(self, request: Request, response: Response) -> None:
        kind, replayed = kind_of(response), REPLAYED in response.headers
        shown = "replay" if replayed else kind
        self.world.note(request.process.name, "r{} is answered: {} {}", request.number, response.status, shown)
        self.world.reached.add(f"told {shown}")
        if kind in NEVER or NOT_STORED in response.headers:
            self.oracle.violated("nothing-is-unknown", f"r{request.number} was told {kind}")
        borrowers = [connection.borrower for process in self.world.lives for connection in process.pool.borrowed]
        if asyncio.current_task() in borrowers:
            self.oracle.violated("an-answer-holds-no-connection", f"r{request.number} is told {kind}")
        if kind == "accepted" and not self.oracle.holdings.has_been_claimed(self._key(request)):
            self.oracle.violated("accepted-means-begun", f"r{request.number} was accepted")
        if kind == "answer":
            self._whose(request, response)
        if replayed:
            self._replayed(request, response)
        entry = self.oracle.of_request.get(request.number)
        if request.monitor:
            self._monitored(request, kind, replayed)
        elif entry is not None:
            self._executed(entry, response, kind, replayed)
        elif kind == "answer" and not replayed:
            self.oracle.violated("a-success-names-the-committed-run", f"r{request.number} never ran")
        elif kind == "key-expired" and self.world.scenario.choices.expired != "refuse":
            self.oracle.violated("every-key-settles", f"r{request.number} is told that its key has expired")
        if kind == "result-not-kept" and not any(kept.answer is None for kept in self._committed(request)):
            self.oracle.violated("a-replay-is-the-record", f"r{request.number}: every answer was kept")
        if self.world.calm:
            self._calm(request, kind, entry)

    def _calm(self, request: Request, kind: str, entry: Entry | None) -> None:
        outcome = "" if entry is None else entry.work.outcome
        wanted = {"not-executed": "not-executed", "interrupted": "unknown"}
        if entry is not None and any(other.key == entry.key for other in self.oracle.entries[entry.number + 1 :]):
            return  # a repeat ran before the failure of this one was stored
        if kind == "store-unavailable" or (kind in wanted and outcome != wanted[kind]):
            self.oracle.violated("calm-is-perfect", f"r{request.number} was told {kind}")

    def _key(self, request: Request) -> Key:
        operation = request.operation
        return Key(operation.tenant, f"POST {operation.path}", operation.name)

    def _committed(self, request: Request) -> list[Committed]:
        return self.oracle.committed.get(self._key(request), [])

    def _whose(self, request: Request, response: Response) -> None:
        """The answer names its entry: it must be of this caller's operation, and a success must be committed."""
        number = dict(response.headers).get(b"x-entry")
        if number is None:
            self.oracle.violated("a-success-names-the-committed-run", f"r{request.number} names no run")
            return
        entry = self.oracle.entries[int(number)]
        theirs, ours = entry.request.operation, request.operation
        if theirs.tenant != ours.tenant:
            self.oracle.violated("no-answer-of-another-tenant", f"{ours.tenant} reads the answer of {theirs.tenant}")
        elif (theirs.path, theirs.body) != (ours.path, ours.body):
            detail = f"{ours.path} {ours.body} reads {theirs.path} {theirs.body}"
            self.oracle.violated("another-request-is-refused", detail)
        if response.status < 400 and entry.committed is None:
            self.oracle.violated("a-success-names-the-committed-run", f"entry {entry.number} is not committed")

    def _executed(self, entry: Entry, response: Response, kind: str, replayed: bool) -> None:
        """The handler ran for this very request."""
        entry.told = entry.told or ("refused" if kind == "answer" and entry.nothing and not replayed else kind)
        if replayed or kind not in ("answer", "internal-error", "not-executed", "interrupted"):
            return
        if kind in ("not-executed", "interrupted") or entry.nothing:
            if entry.committed is not None:
                self.oracle.violated("nothing-done-is-true", f"entry {entry.number} has committed, told {kind}")
        elif entry.committed is not None:
            stored = entry.committed.answer
            same = stored == without_never_replayed(response) if stored is not None else response == entry.answer
            if not same:
                self.oracle.violated("an-answer-follows-its-record", f"entry {entry.number}: {response}, not {stored}")
        elif not (kind == "internal-error" and entry.refused):
            self.oracle.violated("an-answer-follows-its-record", f"entry {entry.number} has no record, told {kind}")

    def _replayed(self, request: Request, response: Response) -> None:
        """A replay is what was committed for this key, at some moment of this request."""
        answer = Response(response.status, tuple(pair for pair in response.headers if pair != REPLAYED), response.body)
        begun_ms = self.world.database_ms() - int((self.world.time.now_s - request.sent_s) * 1000) - 1
        for kept in self._committed(request):
            if kept.answer == answer and kept.record.expires_ms >= begun_ms:
                if kept.at_s > request.sent_s:
                    self.world.reached.add("waiter replayed")
                return
        self.oracle.violated("a-replay-is-the-record", f"r{request.number} got {answer}")

    def _monitored(self, request: Request, kind: str, replayed: bool) -> None:
        self.world.reached.add("monitor answered")
        if kind == "accepted":
            self.world.reached.add("monitor accepted")
        elif kind == "answer" and not replayed:
            self.oracle.violated("a-replay-is-the-record", "a monitor answered with something else than a replay")
        elif kind == "key-expired":
            tenant, scope, name, fingerprint, *_ = _told_by(request.monitor)
            if not self.oracle.holdings.was_free((Key(tenant, scope, name), fingerprint), request.sent_s):
                self.oracle.violated("a-monitor-tells-the-truth", f"r{request.number} was told that nothing is known")


def _told_by(monitor: str) -> list[str]:
    """What the link of a monitor names."""
    token = monitor.rpartition("/")[2].partition(".")[0]
    named: list[str] = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    return named
