"""The oracle of a history of callers: it counts effects, and sees all that leaves and all that is told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from semel.core.call_values import (
    AnswerOrigin,
    CallAnswered,
    CallRefusal,
    CallRefused,
    CallResult,
    CallUnanswered,
    SendFailure,
    SendRequest,
)
from semel.core.http import Response
from semel.core.journal import (
    BeginAttempt,
    IntentGranted,
    JournalCall,
    LeaveIntent,
    OpenIntent,
    ReadIntent,
    TextHeaders,
)
from semel.core.retries import CallAnswer
from semel.errors import NotExecuted, StoreError
from semel.events import Event
from semel.runtime.operation import Operation as Running
from simulation.application import WorkFailed
from simulation.calls.intents import Intents
from simulation.calls.invariants import INVARIANTS
from simulation.calls.process import ClientProcess, ProgramRun
from simulation.calls.scenario import TIMEOUT_MS, Ask
from simulation.messages.leasing import Deaf
from simulation.oracle import Entry
from simulation.replies import kind_of

if TYPE_CHECKING:
    from simulation.calls.world import CallWorld
    from simulation.process import Request

FINAL = frozenset({"ANSWERED", "NOT_KEPT", "STORED_FAILURE"})
"""Of the ends of an attempt, those that tell how the operation ended."""
DOUBTS = frozenset({"outcome-unknown", "record-unreadable", "key-expired", "key-reused"})
MARKS = frozenset({"idempotent-replayed", "idempotency-stored", "set-cookie"})
"""Headers that only some of those get who are told the same."""
RAISED = frozenset({"raised", "raised-after-answer", "unfinished"})
SLACK_MS = 20_000
"""What slow journals and pauses of a process take."""


class Oracle(Deaf):
    def __init__(self, world: CallWorld) -> None:
        self.world = world
        self.requests: list[Request] = []
        self.entries: list[Entry] = []
        self.runs: list[ProgramRun] = []
        self.journal = Intents(world, self.violated)
        self._effects: dict[str, list[Entry]] = {}
        self._sent: dict[str, tuple[TextHeaders, bytes]] = {}
        self._told: dict[str, tuple[object, ...]] = {}

    def violated(self, name: str, detail: str) -> None:
        assert name in INVARIANTS, name
        self.world.violations.append((name, detail))
        self.world.note("ORACLE", "{}: {}", name, detail)

    def _check(self, holds: object, name: str, detail: str) -> None:
        if not holds:
            self.violated(name, detail)

    # What every history tells its oracle

    def begin(self, request: Request) -> int:
        self.requests.append(request)
        return len(self.requests) - 1

    def replied(self, request: Request, response: Response) -> None:
        self.world.note(
            request.process.name, "r{} is answered: {} {}", request.number, response.status, kind_of(response)
        )

    def ended(self, request: Request, error: BaseException | None) -> None:
        if isinstance(error, WorkFailed | NotExecuted) or type(error).__name__ == "Unfinished" or self.world.over:
            return
        if error is not None and not isinstance(error, asyncio.CancelledError):
            self.violated("no-unexpected-exception", f"r{request.number}: {error!r}")

    def happened(self, event: Event) -> None: ...
    def crashed(self, process: Any) -> None: ...

    # The work

    def entered(self, request: Request, running: Running) -> Entry:
        works = request.operation.works
        name = intent_of(request)
        nth = sum(intent_of(entry.request) == name for entry in self.entries)
        entry = Entry(len(self.entries), request, running, works[min(nth, len(works) - 1)])
        self.entries.append(entry)
        self.world.note(request.process.name, "r{} ENTERS as entry {}", request.number, entry.number)
        return entry

    def effect(self, entry: Entry) -> None:
        entry.effect = True
        name = intent_of(entry.request)
        self.world.note(entry.request.process.name, "EFFECT of {}", name)
        done = self._effects.setdefault(name, [])
        done.append(entry)
        if not self.world.scenario.settings.journal:
            return
        if len(done) > self.journal.begun[name]:
            if self.world.scenario.promised:
                self.violated("one-effect-per-intent", f"{name} takes effect {len(done)} times")
            else:
                self.world.reached.add("doubled beyond retention")

    def effects_of(self, name: str) -> int:
        return len(self._effects.get(name, ()))

    def is_used(self, name: str) -> bool:
        """Whether it took effect, or a program is at it."""
        at_it = any(run.intent == name for client in self.world.clients() for run in client.open.values())
        return at_it or self.effects_of(name) > 0

    @property
    def _is_calm(self) -> bool:
        return self.world.calm and self.world.scenario.promised

    @property
    def doubled(self) -> int:
        """How many operations took effect more than once."""
        return sum(len(done) > 1 for done in self._effects.values())

    def is_of_operation(self, key: str, status: int, headers: TextHeaders, body: bytes) -> bool:
        """Whether the work under this key ended so."""
        mine = [entry for entry in self.entries if entry.key.name == key]
        number = next((value for name, value in headers if name.lower() == "x-entry"), "")
        if number:
            entry = self.entries[int(number)]
            answer = entry.answer
            return (
                entry in mine
                and not entry.nothing
                and answer is not None
                and (answer.status, answer.body) == (status, body)
            )
        kind = kind_of(as_response(status, headers, body))
        if kind == "internal-error":
            return any(entry.work.outcome in RAISED for entry in mine)
        return kind == "result-not-kept" and any(entry.work.outcome == "large" for entry in mine)

    # Clients

    def begin_run(self, process: ClientProcess, ask: Ask) -> ProgramRun:
        run = ProgramRun(process, ask, len(self.runs))
        self.runs.append(run)
        return run

    def sends(self, run: ProgramRun, effect: SendRequest) -> None:
        headers = dict(effect.headers)
        key = headers.get("Idempotency-Key", run.call.key).strip('"')
        self.world.note(run.name, "sends {}, attempt {}", key, effect.attempt)
        run.sent += 1
        allowed = run.settings.backoff.attempts
        self._check(run.sent <= allowed, "no-more-attempts-than-allowed", f"{run.name} sends {run.sent} requests")
        self._repeats(run)
        others = tuple(header for header in effect.headers if header[0] != "Idempotency-Key")
        first = self._sent.setdefault(key, (others, effect.body))
        same = first == (others, effect.body) or key in self.journal.reused
        self._check(same, "one-request-per-key", f"{run.name} sends something else")
        if self.world.scenario.settings.journal:
            stored = self.journal.stored.get(key)
            self._check(stored == effect.body, "nothing-leaves-before-it-is-stored", f"{run.name} sends {key}")
            self._check(run.may_send, "every-attempt-is-granted", f"{run.name} sends without a grant")
            run.may_send = False

    def _repeats(self, run: ProgramRun) -> None:
        last = run.last
        if last is None:
            return
        self._check(not is_last(last), "a-repeat-has-a-reason", f"{run.name} repeats after {last}")
        asked = "" if isinstance(last, SendFailure) else dict_of(last.headers).get("retry-after", "")
        if asked.isdecimal():
            least_ms = min(1_000 * int(asked), run.settings.backoff.retry_after_ms_max)
            waited_ms = run.process.clock_ms() - run.replied_ms
            self._check(waited_ms >= least_ms - 1, "a-repeat-waits", f"{run.name} waits {waited_ms} of {least_ms} ms")

    def replied_to(self, run: ProgramRun, reply: CallAnswer | SendFailure) -> None:
        run.replies.append(reply)
        run.last = reply
        run.replied_ms = run.process.clock_ms()

    def journal_told(self, run: ProgramRun, call: JournalCall[Any], reply: Any) -> None:
        """The sender has the reply."""
        if isinstance(call, OpenIntent) and isinstance(reply, IntentGranted):
            run.may_send, run.last = True, None
        elif isinstance(call, BeginAttempt):
            run.may_send = bool(reply)

    def journal_failed(self, run: ProgramRun, call: JournalCall[Any]) -> None:
        run.journal_failed |= not isinstance(call, (LeaveIntent, ReadIntent))

    def ended_run(self, run: ProgramRun, result: CallResult | StoreError) -> None:
        took_ms = run.process.clock_ms() - run.began_ms
        bound_ms = run.settings.backoff.deadline_ms + TIMEOUT_MS + SLACK_MS
        in_time = took_ms <= bound_ms or run.process.disturbed
        self._check(in_time, "every-call-ends", f"{run.name} took {took_ms} ms")
        match result:
            case CallAnswered():
                self._answered(run, result)
            case CallUnanswered():
                self.world.reached.add("told unanswered")
            case CallRefused():
                self._refused(run, result)
            case _:
                self.world.reached.add("told journal error")
                fine = not run.sent
                self._check(fine, "a-journal-error-means-nothing-was-sent", f"{run.name} has sent {run.sent} requests")

    def _answered(self, run: ProgramRun, result: CallAnswered) -> None:
        answer, name = result.answer, run.intent
        self.world.reached.add(f"told {result.origin.name.lower()}")
        self._check(bool(result.unkept) <= run.journal_failed, "what-is-told-is-kept", f"{run.name}: {result.unkept}")
        self.world.reached.update(["told unkept"] if result.unkept else [])
        kept = self.journal.kept.get(name, [])
        if result.origin is AnswerOrigin.JOURNAL:
            self._check(answer in kept, "what-is-told-is-kept", f"{run.name} is told what the journal never had")
        if result.end.name not in FINAL:
            return
        body = answer.body or b""
        of_it = self.is_of_operation(result.key, answer.status, answer.headers, body)
        self._check(of_it, "what-is-told-is-the-answer", f"{run.name} is told {answer.status}")
        if not self.world.scenario.settings.journal:
            return
        self._check(kept or result.unkept, "what-is-told-is-kept", f"{run.name} is told what is not kept")
        if kind_of(as_response(answer.status, answer.headers, body)) != "result-not-kept":
            headers = tuple(pair for pair in answer.headers if pair[0].lower() not in MARKS)
            told = self._told.setdefault(result.key, (answer.status, headers, body))
            forgotten = result.key in self.journal.reused or not self.world.scenario.promised
            same = told == (answer.status, headers, body) or forgotten
            self._check(same, "one-answer-per-intent", f"{run.name} is told {answer}, others {told}")

    def _refused(self, run: ProgramRun, result: CallRefused) -> None:
        self.world.reached.add(f"refused {result.refusal.name.lower()}")
        known = self.journal.known.get(run.intent)
        now_ms = self.world.date_ms()
        key, body = result.entry.key, result.entry.request.body
        match result.refusal:
            case CallRefusal.DRIFTED:
                fine = self.journal.stored.get(key) == body != run.call.request.body
            case CallRefusal.OTHER_KEY:
                fine = key in self.journal.stored and key != run.call.key != ""
            case CallRefusal.TOO_OLD:
                fine = known is None or known.is_too_old(now_ms, run.ask.max_age_ms)
            case CallRefusal.DOUBTFUL:
                fine = known is None or known.doubtful
                self._check(not self._is_calm, "calm-is-perfect", f"{run.name} is refused: {result.refusal.name}")
            case CallRefusal.BUSY:
                fine = run.process.clock_ms() - run.began_ms >= run.settings.backoff.deadline_ms
        self._check(fine, "a-refusal-says-why", f"{run.name} is refused: {result.refusal.name}")

    # The end

    def quiet(self) -> None:
        for run in self.runs:
            hangs = run.result is None and run in run.process.open.values() and not run.process.loop.dead
            self._check(not hangs, "every-call-ends", f"{run.name} hangs")
        for process in self.world.lives:
            for failure in process.loop.failures:
                self.violated("no-unexpected-exception", f"in a callback: {failure!r}")
        for name, known in self.journal.known.items():
            if known.doubtful and known.kept is None:
                said = any(is_doubt(reply) for run in self.runs if run.intent == name for reply in run.replies)
                self._check(said, "a-doubt-has-a-cause", f"nobody said that {name} is in doubt")
            if self.effects_of(name) == 1 and sum(run.sent for run in self.runs if run.intent == name) > 1:
                self.world.reached.add("sent twice and done once")
            if self._is_calm:
                self._check(self.effects_of(name) <= 1, "calm-is-perfect", f"{name} took effect more than once")


def intent_of(request: Request) -> str:
    exchange: Any = request.calling
    name: str = exchange.run.intent
    return name


def dict_of(headers: TextHeaders) -> dict[str, str]:
    return {name.lower(): value for name, value in headers}


def as_response(status: int, headers: TextHeaders, body: bytes) -> Response:
    return Response(status, tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers), body)


def kind_of_reply(reply: CallAnswer | SendFailure) -> str:
    return "" if isinstance(reply, SendFailure) else kind_of(as_response(reply.status, reply.headers, reply.body))


def is_doubt(reply: CallAnswer | SendFailure) -> bool:
    return kind_of_reply(reply) in DOUBTS


def is_last(reply: CallAnswer | SendFailure) -> bool:
    """Whether this says how the operation ended, or not to send it again."""
    if isinstance(reply, SendFailure):
        return False
    kind = kind_of_reply(reply)
    if kind != "answer":
        return kind in (*DOUBTS, "internal-error", "result-not-kept")
    if reply.status in (409, 502):  # without a sign that it is stored it may mean that the first request still runs
        return "idempotent-replayed" in dict_of(reply.headers)
    return reply.status not in (429, 503, 504)
