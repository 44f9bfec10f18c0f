"""The oracle: outside of every simulated process it keeps the ledger of effects, knows what the store acknowledged and
what each process was told, and judges every step and every answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semel.core.effects import Claim, Complete, Effect, Read, Release, Renew
from semel.core.http import Response
from semel.core.records import Acquired, Key, Lease
from semel.errors import NotExecuted
from semel.events import Event, EventKind
from semel.runtime.operation import Operation as Running
from simulation.application import WorkFailed
from simulation.holding import Holdings, found
from simulation.invariants import INVARIANTS
from simulation.replies import PROBLEM, Replies, without_never_replayed
from simulation.scenario import NOTHING_DONE, Work

if TYPE_CHECKING:
    from simulation.process import Process, Request
    from simulation.world import World

ANSWERED_S = 60.0
PROBE_WORK = Work("created", 0, 0)


class Entry:
    """One time that the work was entered: a line of the ledger."""

    __slots__ = ("answer", "attempt", "effect", "key", "nothing", "number", "owner", "protected", "request", "work")

    def __init__(self, number: int, request: Request, running: Running, work: Work) -> None:
        self.number = number
        self.request = request
        self.key = running.key
        self.owner = running.lease.owner
        self.attempt = running.attempt
        self.protected = running.lease.until_ms > 0
        self.work = work
        self.effect = False
        self.nothing = False
        self.answer: Response | None = None

    @property
    def declares_nothing(self) -> bool:
        return self.work.outcome in NOTHING_DONE


class Oracle:
    def __init__(self, world: World) -> None:
        self.world = world
        self.requests: list[Request] = []
        self.entries: list[Entry] = []
        self.by_owner: dict[str, Entry] = {}
        self.current: dict[Key, list[Entry]] = {}
        """The entries of the present generation of each key: since it was free for the last time."""
        self.granted: set[str] = set()
        """Owners that were told of their grant."""
        self.acknowledged: set[str] = set()
        """Owners that were told how their completion or release went."""
        self.refused: set[str] = set()
        """Owners that were told that the key is in other hands."""
        self.unanswered: set[str] = set()
        """Owners that got no answer from the store at least once."""
        self.failed_ends: Counter[str] = Counter()
        """How many tries to complete or release got no answer, by owner."""
        self.last: dict[str, str] = {}
        """What the last claim of an owner found, as far as its process was told."""
        self._ending: set[str] = set()
        self._repeated: set[str] = set()
        self._homes: dict[str, Process] = {}
        self._seen: dict[Key, int] = {}
        self.holdings = Holdings(world, self.violated)
        self.replies = Replies(self)

    def violated(self, name: str, detail: str) -> None:
        assert name in INVARIANTS, name
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
        if self.world.time.now_s - request.sent_s > ANSWERED_S and not request.process.disturbed:
            self.violated(
                "everybody-is-answered", f"r{request.number} was answered after {self.world.time.now_s:.1f} s"
            )

    def ended(self, request: Request, error: BaseException | None) -> None:
        if isinstance(error, WorkFailed | NotExecuted) or type(error).__name__ == "Unfinished" or self.world.over:
            return
        if error is not None and not isinstance(error, asyncio.CancelledError):
            self.violated("no-unexpected-exception", f"r{request.number}: {error!r}")

    def quiet(self) -> None:
        """Nothing is left to happen: who has no answer now will never get one."""
        for request in self.requests:
            if not request.process.loop.dead and request.response is None and not request.task.done():
                self.violated("everybody-is-answered", f"r{request.number} hangs")
        for process in self.world.lives:
            for failure in process.loop.failures:
                self.violated("no-unexpected-exception", f"in a callback: {failure!r}")
        for key, held in self.holdings.held.items():
            if not held.finished and self._only_claimed(held.owner):
                self.violated("what-never-ran-is-given-back", f"{key} is held by {held.owner}, who never ran")

    def _only_claimed(self, owner: str) -> bool:
        """Whether this owner's process lives and never entered the work. A monitor only looks, and has no request.

        What nobody can promise is left out: a network that delivers a claim twice, which TCP does not; a process that
        finds its own claim written by a later version; and a claim that outlives the record for which its repeat was
        refused.
        """
        asked = "." in owner and owner not in self.by_owner and owner not in self._repeated
        refused = self.last.get(owner) not in ("granted", "failed", None)
        return asked and not refused and not self.is_dead(owner) and not self.world.server.unreadable

    # The ledger

    def entered(self, request: Request, running: Running) -> Entry:
        operation = request.operation
        nth = self._seen[running.key] = self._seen.get(running.key, 0) + 1
        work = PROBE_WORK if request.calling is None else operation.works[min(nth, len(operation.works)) - 1]
        entry = Entry(len(self.entries), request, running, work)
        self.world.note(request.process.name, "r{} ENTERS as entry {}: {}", request.number, entry.number, work)
        self.world.reached.add(f"work {work.outcome}")
        if (entry.key.tenant, entry.key.name) != (
            operation.tenant,
            operation.name,
        ) or operation.path not in entry.key.scope:
            self.violated("work-belongs-to-its-key", f"r{request.number} runs under {entry.key}")
        if entry.protected:
            self._enters(entry)
        elif self.world.scenario.choices.on_store_error != "open":
            self.violated("no-work-without-a-grant", f"r{request.number} runs unprotected")
        else:
            self.world.reached.add("unprotected work")
        self.entries.append(entry)
        self.by_owner[entry.owner] = entry
        return entry

    def _enters(self, entry: Entry) -> None:
        if entry.owner not in self.granted:
            self.violated("no-work-without-a-grant", f"r{entry.request.number} runs without a grant")
        if entry.owner in self.by_owner:
            self.violated("entered-at-most-once", f"one owner entered {entry.key} twice")
        if self.holdings.born.get(entry.owner) != self.holdings.generation.get(entry.key, 0):
            self.world.reached.add("entered after retention")  # it was paused for so long that nothing is promised
            return
        before = self.current.setdefault(entry.key, [])
        if self.world.scenario.choices.guarantee == "at-most-once":
            for other in before:
                if not other.nothing:
                    self.violated("entered-at-most-once", f"entries {other.number} and {entry.number} of {entry.key}")
                    break
        elif before and not self.world.scenario.process_faults and entry.attempt > 1 and self.world.calm:
            self.violated("calm-is-perfect", f"{entry.key} was taken over without a fault")
        before.append(entry)

    def effect(self, entry: Entry) -> None:
        entry.effect = True
        self.world.note(entry.request.process.name, "EFFECT of entry {}", entry.number)

    def forget(self, key: Key) -> None:
        """The key was free, so a new generation begins."""
        self.current.pop(key, None)

    # What the processes ask, what the store does, what the processes are told

    def asked(self, process: Process, call: Effect[Any]) -> None:
        match call:
            case Claim(owner=owner):
                self._homes[owner] = process
            case Renew(lease):
                if lease.owner in self._ending:
                    self.violated("renewal-stops", f"attempt {lease.attempt} renewed after its end")
            case Complete(lease) | Release(lease):
                self._ending.add(lease.owner)
            case _:
                pass

    def happened(self, event: Event) -> None:
        if event.kind is EventKind.LEFT:
            self._ending.add(event.owner)

    def applied(self, call: Effect[Any], answer: Any) -> None:
        self.holdings.applied(call, answer)

    def told(self, call: Effect[Any], answer: Any) -> None:
        match call:
            case Claim(owner=owner):
                if isinstance(answer, Acquired):
                    self.granted.add(owner)
                    self.last[owner] = "granted"
                else:
                    self.last[owner] = found(call, answer, self.world.scenario.choices.retention_ms)
            case Complete(lease):
                (self.acknowledged if answer else self.refused).add(lease.owner)
            case Release(lease):
                self.acknowledged.add(lease.owner)
            case Read():
                if answer is not None and answer.result is not None:  # also who completed it and never heard of that
                    self.acknowledged.add(answer.owner)
            case Renew(lease):
                if answer is not None and self.last.get(lease.owner) == "failed":
                    self.last[lease.owner] = "granted"
            case _:
                pass

    def told_failure(self, calls: Sequence[Effect[Any]]) -> None:
        for call in calls:
            owner = call.owner if isinstance(call, Claim) else getattr(call, "lease", NO_LEASE).owner
            self.unanswered.add(owner)
            self.failed_ends[owner] += isinstance(call, Complete | Release)
            if isinstance(call, Claim | Renew) and owner not in self.by_owner:
                self.last[owner] = "failed"

    def duplicated(self, calls: Sequence[Effect[Any]]) -> None:
        self._repeated.update(call.owner for call in calls if isinstance(call, Claim))

    def unreadable(self, call: Effect[Any]) -> None:
        self.world.reached.add("unreadable found")

    def told_unreadable(self, calls: Sequence[Effect[Any]]) -> None:
        if len(calls) == 1 and isinstance(calls[0], Claim):
            self.last[calls[0].owner] = "unreadable"

    def taken_over(self, owner: str) -> None:
        home = self._homes.get(owner)
        if home is not None:
            self.world.reached.add("take-over after crash" if home.loop.dead else "take-over after pause")

    def released(self, lease: Lease) -> None:
        entry = self.by_owner.get(lease.owner)
        if entry is None:
            self.world.reached.add("claim given back")
        elif not entry.nothing:
            self.violated("a-release-means-nothing-done", f"entry {entry.number} was given back")

    def stored(self, lease: Lease, answer: Response | None) -> None:
        entry = self.by_owner.get(lease.owner)
        if entry is None:
            self.violated("only-work-has-results", f"{lease.key} got a result from an owner that never ran")
        elif entry.nothing:
            self.violated("only-work-has-results", f"entry {entry.number} did nothing, and has a result")
        elif answer is None:
            self.world.reached.add("tombstone kept")
            if entry.work.outcome != "large":
                self.violated("stored-as-answered", f"entry {entry.number} was not kept")
        elif answer.headers[0] == PROBLEM:
            if entry.work.outcome not in ("raised", "raised-after-answer", "unfinished"):
                self.violated("stored-as-answered", f"entry {entry.number} is stored as a problem")
        elif entry.answer is None or answer != without_never_replayed(entry.answer):
            self.violated("stored-as-answered", f"entry {entry.number} answered {entry.answer}, stored is {answer}")

    def crashed(self, process: Process) -> None:
        for entry in self.entries:
            if entry.request.process is process and entry.request.response is None:
                stored = any(kept.owner == entry.owner for kept in self.holdings.results.get(entry.key, ()))
                when = "after complete" if stored else "after effect" if entry.effect else "before effect"
                self.world.reached.add(f"crash {when}")

    def is_dead(self, owner: str) -> bool:
        home = self._homes.get(owner)
        return home is None or home.loop.dead


NO_LEASE = Lease(Key("", "", "none"), "none", 1, 0)
