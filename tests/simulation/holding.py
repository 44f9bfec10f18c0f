"""What the oracle knows of each key from what the store acknowledged, and what the store may acknowledge next."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from semel.codecs import responses
from semel.core.effects import Claim, Complete, Effect, Read, Release, Renew
from semel.core.http import Response
from semel.core.records import NOBODY, Acquired, Claimed, Key, Lease, Occupied, Record, Result

if TYPE_CHECKING:
    from simulation.world import World


class Held:
    """A key that somebody holds, or that has a result. Times are the store's."""

    __slots__ = ("attempt", "fingerprint", "finished", "lease_until_ms", "owed_until_ms", "owner")

    def __init__(self, owner: str, attempt: int, fingerprint: str) -> None:
        self.owner = owner
        self.attempt = attempt
        self.fingerprint = fingerprint
        self.finished = False
        self.lease_until_ms = self.owed_until_ms = 0

    def owed(self, now_ms: int) -> bool:
        return now_ms < self.owed_until_ms or now_ms < self.lease_until_ms


class Kept:
    """A result that was stored: the answer in it (None for one too large), and from when to when it was the key's."""

    __slots__ = ("answer", "ended_s", "owner", "since_s")

    def __init__(self, answer: Response | None, owner: str, since_s: float) -> None:
        self.answer = answer
        self.owner = owner
        self.since_s = since_s
        self.ended_s: float | None = None


class Holdings:
    """Judges every call that the store applied, by what it said before."""

    def __init__(self, world: World, violated: Callable[[str, str], None]) -> None:
        self.world = world
        self.violated = violated
        self.held: dict[Key, Held] = {}
        self.results: dict[Key, list[Kept]] = {}
        self.generation: dict[Key, int] = {}
        """How often the key has become free because nothing was owed any more."""
        self.born: dict[str, int] = {}
        """In which generation of its key an owner was granted it."""
        self.takeover = world.scenario.choices.guarantee == "at-least-once"
        self.owed_ms = world.scenario.choices.owed_ms
        self.unfinished_ms = world.scenario.choices.unfinished_ms

    def applied(self, call: Effect[Any], answer: Any) -> None:
        now_ms = self.world.store_ms()
        match call:
            case Claim():
                self._claimed(call, answer, now_ms)
            case Renew(lease, lease_ms):
                self._renewed(lease, lease_ms, answer, now_ms)
            case Complete():
                self._completed(call, answer, now_ms)
            case Release(lease):
                self._released(lease, answer, now_ms)
            case Read(key):
                self._read(key, answer, now_ms)
            case _:
                raise TypeError(f"{call!r} is not a call that a front makes")

    def _claimed(self, call: Claim, answer: Claimed, now_ms: int) -> None:
        held = self.held.get(call.key)
        if isinstance(answer, Acquired):
            mine = held is not None and held.owner == call.owner and not held.finished and held.owed(now_ms)
            if held is not None and mine:
                self.world.reached.add("claim repeated")
                if answer.lease.attempt != held.attempt:
                    self.violated("attempts-grow", f"a repeated claim got attempt {answer.lease.attempt}")
            else:
                self._granted(call, answer.lease, held, now_ms)
        elif held is None or not held.owed(now_ms):
            self.violated("retention-ends", f"{call.key} is free, and was refused with {answer.record}")
        elif held.owner == call.owner and not held.finished:
            self.violated("the-holder-is-not-refused", f"claim of attempt {held.attempt}, repeated")
        elif not self._is(answer.record, held):
            self.violated("what-is-owed-is-kept", f"{answer.record} is not what the store acknowledged before")

    def _granted(self, call: Claim, lease: Lease, held: Held | None, now_ms: int) -> None:
        owed = held is not None and held.owed(now_ms)
        if held is not None and owed:
            if held.finished:
                self.violated("a-result-is-final", f"{call.key} was granted although it has a result")
            elif now_ms < held.lease_until_ms:
                self.violated(
                    "a-live-lease-is-respected", f"{call.key} was granted {held.lease_until_ms - now_ms} ms early"
                )
            elif not self.takeover:
                self.violated("an-unknown-outcome-blocks", f"{call.key} was granted although its outcome is unknown")
            elif held.fingerprint != call.fingerprint:
                self.violated("another-request-is-refused", f"{call.key} was taken over by another request")
            else:
                self.world.oracle.taken_over(held.owner)
            if lease.attempt <= held.attempt:
                self.violated("attempts-grow", f"attempt {lease.attempt} after {held.attempt}")
        else:
            if lease.attempt != 1:
                self.violated("attempts-grow", f"a free key was granted as attempt {lease.attempt}")
            if held is not None:
                self.world.reached.add("second generation")
                self._new_generation(call.key)
        self.born[call.owner] = self.generation.get(call.key, 0)
        new = self.held[call.key] = Held(call.owner, lease.attempt, call.fingerprint)
        looks = "." not in call.owner  # a monitor that only looks has no request, and promises nothing about its claim
        new.lease_until_ms = now_ms + call.lease_ms
        new.owed_until_ms = now_ms + (call.retention_ms if looks else self.unfinished_ms)

    def _new_generation(self, key: Key) -> None:
        for kept in self.results.get(key, ()):
            if kept.ended_s is None:
                kept.ended_s = self.world.time.now_s
        self.generation[key] = self.generation.get(key, 0) + 1
        self.world.oracle.forget(key)

    def _renewed(self, lease: Lease, lease_ms: int, answer: Lease | None, now_ms: int) -> None:
        held = self._of(lease)
        if answer is None:
            if held is not None and not held.finished and held.owed(now_ms):
                self.violated("the-holder-is-not-refused", f"renew of attempt {lease.attempt}")
            return
        if held is None or held.finished:
            self.violated("only-the-holder-renews", f"attempt {lease.attempt} of {lease.key} renewed")
            return
        if now_ms >= held.lease_until_ms:
            self.world.reached.add("late holder renewed")
        held.lease_until_ms = now_ms + lease_ms

    def _completed(self, call: Complete, answer: bool, now_ms: int) -> None:
        lease, held = call.lease, self._of(call.lease)
        if not answer:
            if held is not None and held.owed(now_ms):
                self.violated("the-holder-is-not-refused", f"complete of attempt {lease.attempt}")
            self.world.reached.add("zombie refused")
        elif held is None:
            self.violated("only-the-holder-completes", f"attempt {lease.attempt} of {lease.key} completed")
        elif held.finished:
            self.world.reached.add("complete repeated")
        else:
            if now_ms >= held.lease_until_ms:
                self.world.reached.add("late holder completed")
            self.finish(lease.key, call.result, lease.owner, now_ms, self.owed_ms)
            self.world.oracle.stored(lease, kept_in(call.result))

    def finish(self, key: Key, result: Result, owner: str, now_ms: int, owed_ms: int) -> None:
        held = self.held[key]
        held.finished, held.lease_until_ms, held.owed_until_ms = True, now_ms, now_ms + owed_ms
        kept = self.results.setdefault(key, [])
        if any(other.ended_s is None for other in kept):
            self.violated("a-result-is-final", f"{key} got a second result")
        kept.append(Kept(kept_in(result), owner, self.world.time.now_s))

    def resolved(self, seen: Record, result: Result | None, retention_ms: int, now_ms: int) -> None:
        """An operator ended an unknown outcome."""
        if result is None:
            del self.held[seen.key]
        else:
            self.finish(seen.key, result, NOBODY, now_ms, retention_ms)
            self.held[seen.key].owner = NOBODY

    def _released(self, lease: Lease, answer: bool, now_ms: int) -> None:
        held = self._of(lease)
        if not answer:
            if held is not None and not held.finished and held.owed(now_ms):
                self.violated("the-holder-is-not-refused", f"release of attempt {lease.attempt}")
            return
        if held is None or held.finished:
            self.violated("only-the-holder-releases", f"attempt {lease.attempt} of {lease.key} released")
            return
        self.world.oracle.released(lease)
        if held.attempt == 1:
            del self.held[lease.key]
        else:
            held.owner, held.lease_until_ms = NOBODY, now_ms

    def _read(self, key: Key, answer: Record | None, now_ms: int) -> None:
        held = self.held.get(key)
        if answer is None and held is not None and held.owed(now_ms):
            self.violated("what-is-owed-is-kept", f"{key} is owed, and reads as absent")

    @staticmethod
    def _is(record: Record, held: Held) -> bool:
        finished = record.completed_ms is not None
        return (record.owner, record.attempt, finished) == (held.owner, held.attempt, held.finished)

    def purged(self) -> None:
        """The store has been purged. What was not owed is gone, and no later jump of the clock makes it owed again."""
        now_ms = self.world.store_ms()
        for key, held in list(self.held.items()):
            if not held.owed(now_ms):
                self._new_generation(key)
                del self.held[key]
            elif self.world.server.store.get(key) is None:
                self.violated("what-is-owed-is-kept", f"{key} was purged {held.owed_until_ms - now_ms} ms early")

    def _of(self, lease: Lease) -> Held | None:
        """What this owner holds, if it does."""
        held = self.held.get(lease.key)
        return held if held is not None and held.owner == lease.owner else None

    def is_live(self, key: Key) -> bool:
        held = self.held.get(key)
        return held is not None and not held.finished and self.world.store_ms() < held.lease_until_ms


def found(call: Claim, answer: Occupied, retention_ms: int) -> str:
    """What a claim that was not granted found, as the caller must be told."""
    record, now_ms = answer.record, answer.now_ms
    if record.fingerprint != call.fingerprint:
        return "other"
    if record.completed_ms is None:
        return "live" if now_ms < record.lease_until_ms else "lapsed"
    expired = record.result is None or (record.owner != NOBODY and now_ms >= record.completed_ms + retention_ms)
    return "tombstone" if expired else "finished"


def kept_in(result: Result) -> Response | None:
    """The answer in a stored result; None for one that was too large to keep."""
    answer = responses.decode(result)
    return answer if isinstance(answer, Response) else None
