"""What an answer may be, by what its process was told. Judged when it leaves the process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from semel.core.http import NOT_STORED, REPLAYED, Response
from semel.core.policy_values import NEVER_REPLAYED
from semel.core.records import Key
from simulation.holding import Kept

if TYPE_CHECKING:
    from simulation.oracle import Entry, Oracle
    from simulation.process import Request

PROBLEM = (b"content-type", b"application/problem+json")
FINAL = frozenset({"answer", "internal-error"})
TOLD: dict[str, frozenset[str]] = {
    "live": frozenset({"in-progress", "accepted"}),
    "other": frozenset({"key-reused"}),
    "lapsed": frozenset({"outcome-unknown"}),
    "tombstone": frozenset({"key-expired"}),
    "finished": frozenset({"replay", "result-not-kept"}),
    "unreadable": frozenset({"record-unreadable"}),
    "failed": frozenset({"store-unavailable"}),
}
"""What the caller is told when this is what the last claim found."""
ALARMS = frozenset({"store-unavailable", "outcome-unknown", "record-unreadable"})
HELD = frozenset({*ALARMS, "in-progress", "key-reused", "key-expired", "replay", "result-not-kept"})


def without_never_replayed(answer: Response) -> Response:
    headers = tuple(pair for pair in answer.headers if pair[0].lower().decode() not in NEVER_REPLAYED)
    return Response(answer.status, headers, answer.body)


def kind_of(response: Response) -> str:
    if response.headers[:1] == (PROBLEM,):
        kind: str = json.loads(response.body)["type"].partition("#")[2]
        return kind
    return "accepted" if response.status == 202 else "answer"


class Replies:
    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.world = oracle.world

    def check(self, request: Request, response: Response) -> None:
        kind, marked, replayed = kind_of(response), NOT_STORED in response.headers, REPLAYED in response.headers
        shown = "replay" if replayed else kind
        self.world.note(
            request.process.name, "r{} is answered: {} {}{}", request.number, response.status, shown, " marked" * marked
        )
        self.world.reached.add(f"told {shown}")
        if marked:
            self.world.reached.add("told marked")
        if self.world.calm and (marked or kind in ALARMS):
            self.oracle.violated("calm-is-perfect", f"r{request.number} was told {kind}{' marked' * marked}")
        if kind == "answer":
            self._whose(request, response)
        if replayed:
            self._replayed(request, response)
        owner, entry = self._executor(request)
        if request.monitor:
            self.world.reached.add("monitor answered")
            if kind == "answer" and not replayed:
                self.oracle.violated("a-replay-is-the-record", "a monitor answered with something else than a replay")
        elif entry is None:
            self._told(request, owner, shown)
        elif kind in FINAL and not replayed:
            self._own(entry, response, marked)
        elif kind not in ("accepted", "not-executed"):
            self._instead(entry, shown)

    def _instead(self, entry: Entry, shown: str) -> None:
        """The work ran, and its caller gets something else: only what the store holds for those who were told no."""
        given_back = entry.nothing and shown in HELD
        if entry.owner not in self.oracle.refused and not given_back:
            self.oracle.violated("the-answer-is-what-the-claim-found", f"entry {entry.number} ran, told was {shown}")

    def _executor(self, request: Request) -> tuple[str, Entry | None]:
        """The owner that this request claimed as (the newest, by its correlation id), and its entry if it ran."""
        label = f".r{request.number}"
        for owner in reversed(self.oracle.last):
            if owner.endswith(label):
                return owner, self.oracle.by_owner.get(owner)
        for entry in self.oracle.entries:
            if entry.request is request:
                return entry.owner, entry
        return "", None

    def _whose(self, request: Request, response: Response) -> None:
        """The answer names its entry: it must be one of this caller's operation, and a success must be the only one."""
        number = dict(response.headers).get(b"x-entry")
        if number is None or number == b"operator":
            return
        entry = self.oracle.entries[int(number)]
        theirs, ours = entry.request.operation, request.operation
        if theirs.tenant != ours.tenant:
            self.oracle.violated("no-answer-of-another-tenant", f"{ours.tenant} reads the answer of {theirs.tenant}")
        elif (theirs.path, theirs.body) != (ours.path, ours.body):
            self.oracle.violated(
                "another-request-is-refused", f"{ours.path} {ours.body} reads {theirs.path} {theirs.body}"
            )
        if response.status < 400:
            others = [other for other in self.oracle.current.get(entry.key, ()) if other.effect and other is not entry]
            at_most_once = self.world.scenario.choices.guarantee == "at-most-once"
            if not entry.effect or (others and at_most_once and entry in self.oracle.current.get(entry.key, ())):
                self.oracle.violated("a-success-names-the-one-effect", f"entry {number!r} and {len(others)} others")

    def _own(self, entry: Entry, response: Response, marked: bool) -> None:
        """The executor's own answer."""
        oracle = self.oracle
        if entry.owner in oracle.refused:
            oracle.violated("the-superseded-are-silent", f"entry {entry.number} answers although it was told no")
        elif marked:
            if entry.protected and entry.owner not in oracle.unanswered:
                oracle.violated("a-mark-has-a-cause", f"entry {entry.number} is marked, and the store always answered")
            elif entry.protected and oracle.failed_ends[entry.owner] < 2 and not entry.request.process.disturbed:
                oracle.violated("a-result-is-tried-again", f"entry {entry.number} is marked after one try")
        elif not entry.protected:
            oracle.violated("unprotected-work-is-marked", f"entry {entry.number} is not marked")
        elif entry.owner not in oracle.acknowledged:
            oracle.violated("an-answer-follows-its-record", f"entry {entry.number} answers before its record")
        elif not entry.nothing:
            stored = [kept.answer for kept in self._results(entry.key) if kept.owner == entry.owner]
            if not stored or (stored[0] is not None and stored[0] != without_never_replayed(response)):
                oracle.violated(
                    "an-answer-follows-its-record", f"entry {entry.number} answers {response}, not {stored}"
                )

    def _results(self, key: Key) -> list[Kept]:
        return self.oracle.holdings.results.get(key, [])

    def _replayed(self, request: Request, response: Response) -> None:
        """A replay must be what the store held for this key at some moment of this request."""
        operation = request.operation
        key = Key(operation.tenant, f"POST {operation.path}", operation.name)
        answer = Response(response.status, tuple(pair for pair in response.headers if pair != REPLAYED), response.body)
        for kept in self._results(key):
            if kept.answer == answer and (kept.ended_s is None or kept.ended_s >= request.sent_s):
                if self.world.scenario.choices.in_flight == "wait" and kept.since_s > request.sent_s:
                    self.world.reached.add("waiter replayed")
                return
        self.oracle.violated("a-replay-is-the-record", f"r{request.number} got {answer}")

    def _told(self, request: Request, owner: str, shown: str) -> None:
        """Who did not run the work is told what the last claim found."""
        found = self.oracle.last.get(owner, "failed")
        if shown in TOLD.get(found, ()):
            return
        if found == "granted" and shown == "store-unavailable" and owner in self.oracle.unanswered:
            return
        name = "unreadable-is-not-absent" if found == "unreadable" else "the-answer-is-what-the-claim-found"
        if found == "other":
            name = "another-request-is-refused"
        self.oracle.violated(name, f"r{request.number} found {found} and was told {shown}")
