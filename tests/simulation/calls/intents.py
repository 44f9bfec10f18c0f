"""The intents as the oracle knows them. It sees every call that the journal answers, and judges the reply by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semel.core.journal import (
    BeginAttempt,
    CloseIntent,
    ForgetIntent,
    IntentGranted,
    JournalCall,
    KeptAnswer,
    LeaveIntent,
    OpenIntent,
    PurgeIntents,
    RenewIntent,
)
from semel.core.journal_model import IntentBook

if TYPE_CHECKING:
    from simulation.calls.world import CallWorld


@dataclass
class Known:
    """One intent, from its first grant until it is forgotten."""

    key: str
    body: bytes
    first_ms: int
    """By the journal's clock."""
    max_age_ms: int
    owner: str = ""
    until_ms: int = 0
    doubtful: bool = False
    kept: KeptAnswer | None = None

    def is_too_old(self, now_ms: int, max_age_ms: int) -> bool:
        return now_ms - self.first_ms >= min(self.max_age_ms, max_age_ms)


class Intents:
    def __init__(self, world: CallWorld, violated: Callable[[str, str], None]) -> None:
        self.world = world
        self.violated = violated
        self.known: dict[str, Known] = {}
        self.begun: Counter[str] = Counter()
        """How often each name began: more than once only if people forgot it."""
        self.stored: dict[str, bytes] = {}
        """Every key that the journal has ever stored, with its body."""
        self._had: dict[str, str] = {}
        """The first key of each sender."""
        self.reused: set[str] = set()
        """The keys that a name had again, after people had forgotten it: those that follow from the name."""
        self.kept: dict[str, list[KeptAnswer]] = {}

    def _check(self, holds: object, name: str, detail: str) -> None:
        if not holds:
            self.violated(name, detail)

    def answered(self, before: IntentBook, after: IntentBook, call: JournalCall[Any], reply: Any, now_ms: int) -> None:
        for id in before.entries.keys() - after.entries.keys():
            self._gone(id.name, call, now_ms)
        if not reply:
            return
        match call:
            case OpenIntent(id):
                self._opened(id.name, call, reply, now_ms)
            case RenewIntent(id, owner, lease_ms):
                known = self._held_by(id.name, owner, call)
                if known is not None:
                    known.until_ms = now_ms + lease_ms
            case BeginAttempt(id, owner, lease_ms):
                known = self._held_by(id.name, owner, call)
                if known is not None:
                    self._sendable(id.name, known, now_ms)
                    known.until_ms = now_ms + lease_ms
            case CloseIntent(id, key, answer):
                self._closed(id.name, key, answer)
            case LeaveIntent(id, owner, _, in_doubt):
                known = self._held_by(id.name, owner, call)
                if known is not None:
                    known.owner, known.doubtful = "", known.doubtful or in_doubt
            case _:
                pass

    def _gone(self, name: str, call: JournalCall[Any], now_ms: int) -> None:
        known = self.known.pop(name)
        held = known.owner and now_ms < known.until_ms
        fine = isinstance(call, PurgeIntents) and known.kept is not None
        fine = fine or (isinstance(call, ForgetIntent) and not held)
        self._check(fine, "no-open-intent-is-lost", f"{name} is gone")

    def _opened(self, name: str, call: OpenIntent, reply: object, now_ms: int) -> None:
        if not isinstance(reply, IntentGranted):
            return
        known = self.known.get(name)
        had = self._had.setdefault(call.owner, reply.entry.key)
        if known is None:
            kept = had == reply.entry.key
            self._check(kept, "one-key-per-call", f"{name} was forgotten, and its sender goes on with another key")
            known = self.known[name] = Known(reply.entry.key, call.request.body, now_ms, call.max_age_ms)
            self.begun[name] += 1
            self.reused.update([known.key] if known.key in self.stored else [])
            self.stored[known.key] = known.body
        held = known.owner not in ("", call.owner) and now_ms < known.until_ms
        self._check(not held, "one-sender-at-a-time", f"{name} is granted while another sender holds it")
        self.world.reached.update(["taken over"] if known.owner not in ("", call.owner) else [])
        self._check(known.key == reply.entry.key, "one-key-per-intent", f"{name} has a second key")
        self._check(known.body == call.request.body, "another-request-is-refused", f"{name} is granted to another one")
        known.max_age_ms = min(known.max_age_ms, call.max_age_ms)
        self._sendable(name, known, now_ms)
        known.owner, known.until_ms = call.owner, now_ms + call.lease_ms

    def _sendable(self, name: str, known: Known, now_ms: int) -> None:
        self._check(known.kept is None, "what-is-answered-is-not-sent", f"{name} is answered, and granted")
        self._check(not known.doubtful, "what-is-in-doubt-is-not-sent", f"{name} is in doubt, and granted")
        self._check(
            not known.is_too_old(now_ms, known.max_age_ms),
            "what-is-too-old-is-not-sent",
            f"{name} is too old, and granted",
        )

    def _held_by(self, name: str, owner: str, call: object) -> Known | None:
        known = self.known.get(name)
        fine = known is not None and known.owner == owner and known.kept is None
        self._check(fine, "only-the-sender-speaks", f"{name}: {type(call).__name__} of another sender")
        return known if fine else None

    def _closed(self, name: str, key: str, answer: KeptAnswer) -> None:
        known = self.known.get(name)
        fine = known is not None and known.key == key and known.kept is None
        self._check(fine, "the-first-answer-stays", f"{name} is closed again")
        of_it = self.world.oracle.is_of_operation(key, answer.status, answer.headers, answer.body or b"")
        self._check(of_it, "what-is-kept-is-the-answer", f"{name} keeps {answer.status}, which was not its answer")
        if known is not None:
            self.world.reached.update(["a doubt is settled"] if known.doubtful else [])
            known.kept, known.owner = answer, ""
        self.kept.setdefault(name, []).append(answer)
