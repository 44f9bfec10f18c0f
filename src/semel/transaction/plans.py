"""What becomes of the transaction of a request, as plans that threads and tasks share.

Claiming begins it, a stored success commits it, anything else rolls it back; a failure is then remembered in a second
one. An end that cannot be told is never guessed: it is read back, and if that fails, too, the caller hears that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from msgspec.structs import replace

from semel.clock import wall_ms
from semel.core.effects import Claim, Complete, Plan
from semel.core.policy import Duration, Policy
from semel.core.records import Acquired, Claimed, Key, Lease, Occupied, Record, State
from semel.errors import InProgress, Misuse, RecordUnreadable, StoreError, StoreMisconfigured, StoreUnavailable
from semel.running import current_operation
from semel.transaction.scripts import LEASE_MS, Granted
from semel.transaction.units import AsyncUnit, RolledBack, StepFailed, Unit, step

C = TypeVar("C")
AnyUnit = Unit[C] | AsyncUnit[C]
HELD_MS = 1_000
"""How long a request is told to wait for a twin whose transaction is still open."""
logger = logging.getLogger("semel")


@dataclass(slots=True)
class Request(Generic[C]):
    """The transaction of one request."""

    claim: Claim
    unit: AnyUnit[C]
    mark: str = ""
    until: float = 0.0
    thread: int = field(default_factory=threading.get_ident)


class Transactions(Generic[C]):
    """The open transactions of a front. `unit` makes one that has not begun."""

    in_transactions = True
    """Fronts look for this: `Policy(guarantee="exactly-once")` is possible with such a store."""

    def __init__(self, unit: Callable[[], AnyUnit[C]], wait: Duration | None, *, threads: bool) -> None:
        self._unit = unit
        self._wait_ms = None if wait is None else Policy(wait=wait).wait_ms
        self._threads = threads
        self._requests: dict[str, Request[C]] = {}
        self._lost: set[Key] = set()

    def current(self) -> C:
        """The connection or session of the request that is running: its handler writes through it, and never ends it.

        It is a dependency for FastAPI: `session: Annotated[Session, Depends(store.current)]`.
        """
        operation = current_operation()
        found = None if operation is None else self._requests.get(operation.lease.owner)
        if found is None or found.unit.connection is None:
            raise Misuse(
                "no transaction is open for this request: it carries no idempotency key, or its route is not protected "
                "by this store. Policy(required=True) refuses requests without a key."
            )
        return found.unit.connection

    def claiming(self, claim: Claim) -> Plan[Claimed]:
        yield from self._end_abandoned()
        request = self._requests[claim.owner] = Request(claim, self._unit(), until=_later(claim.lease_ms))
        try:
            reply = yield from self._insert(request.unit, claim)
        except StepFailed as failed:
            yield from self._give_up(claim.owner)
            if isinstance(failed.error, InProgress):
                return _held(claim)
            raise _meaning(failed.error) from failed.error
        if isinstance(reply, Occupied):
            yield from self._give_up(claim.owner)
            return reply
        request.mark = reply.mark
        return Acquired(Lease(claim.key, claim.owner, 1, wall_ms() + claim.lease_ms))

    def renewed(self, lease: Lease, lease_ms: int) -> Lease | None:
        """There is no lease to renew, but somebody says that the request goes on."""
        request = self._requests.get(lease.owner)
        if request is None:
            return None
        request.until = _later(lease_ms)
        return Lease(lease.key, lease.owner, lease.attempt, wall_ms() + lease_ms)

    def completing(self, call: Complete) -> Plan[bool]:
        """Says yes when the store has this answer. It never fails: who cannot know says no, and `reading` says why."""
        request = self._requests.pop(call.lease.owner, None)
        if request is not None:
            try:
                if call.result.ok:
                    return (yield from self._commit(request.unit, call, request.mark))
                yield from step(request.unit.roll_back)
                return (yield from self._remember(request.claim, call))
            except StepFailed as failed:
                logger.error("the transaction of %s did not commit", call.lease.key, exc_info=failed.error)
                yield from step(request.unit.roll_back)
        return (yield from self._has_answer(call.lease))

    def releasing(self, lease: Lease) -> Plan[bool]:
        known = lease.owner in self._requests
        yield from self._give_up(lease.owner)
        return known

    def reading(self, key: Key) -> Plan[Record | None]:
        if key in self._lost:
            self._lost.discard(key)
            raise RolledBack(f"the transaction of {key.name!r} did not commit, or nobody can tell: repeat it")
        unit = self._unit()
        try:
            yield from step(unit.begin)
            record: Record | None = yield from step(lambda: unit.run(unit.engine.read(key)))
        except StepFailed as failed:
            yield from step(unit.roll_back)
            raise _meaning(failed.error) from failed.error
        yield from step(unit.roll_back)
        return record

    def closing(self) -> Plan[None]:
        for owner in list(self._requests):
            yield from self._give_up(owner)

    def _insert(self, unit: AnyUnit[C], claim: Claim) -> Plan[Granted | Occupied]:
        yield from step(unit.begin)
        inside = replace(claim, lease_ms=LEASE_MS, takeover=False)
        reply: Granted | Occupied = yield from step(lambda: unit.run(unit.engine.claim(inside, self._wait_ms)))
        return reply

    def _commit(self, unit: AnyUnit[C], call: Complete, mark: str) -> Plan[bool]:
        yield from step(unit.flush)
        yield from step(lambda: unit.run(unit.engine.complete(call, mark)))
        yield from step(unit.commit)
        return True

    def _remember(self, claim: Claim, call: Complete) -> Plan[bool]:
        """Store a failure whose writes were rolled back, unless a twin has the key by now."""
        unit = self._unit()
        try:
            reply = yield from self._insert(unit, claim)
            if isinstance(reply, Granted):
                return (yield from self._commit(unit, call, reply.mark))
        except StepFailed:
            yield from step(unit.roll_back)
            raise
        yield from step(unit.roll_back)
        return False

    def _has_answer(self, lease: Lease) -> Plan[bool]:
        try:
            record = yield from self.reading(lease.key)
        except StoreError:
            record = None
        if record is None:
            self._lost.add(lease.key)
        return record is not None and record.owner == lease.owner and not record.in_progress()

    def _give_up(self, owner: str) -> Plan[None]:
        request = self._requests.pop(owner, None)
        if request is not None:
            yield from step(request.unit.roll_back)

    def _end_abandoned(self) -> Plan[None]:
        """Roll back what requests left that were cut off: nobody renews their leases. A thread sees to its own."""
        now, here = time.monotonic(), threading.get_ident()
        for owner, request in list(self._requests.items()):
            if request.until < now and (request.thread == here or not self._threads):
                yield from self._give_up(owner)


def _held(claim: Claim) -> Occupied:
    """What is said of a key whose transaction is open: nobody else can see its record yet."""
    now_ms = wall_ms()
    until_ms = now_ms + HELD_MS
    record = Record(claim.key, claim.fingerprint, State.IN_PROGRESS, "a twin", 1, now_ms, until_ms, until_ms)
    return Occupied(record, now_ms)


def _meaning(error: Exception) -> StoreError:
    """What a front makes of it: a new transaction may do better, unless somebody must see to it first."""
    if isinstance(error, (StoreMisconfigured, RecordUnreadable, RolledBack)):
        return error
    return StoreUnavailable(f"the transaction of this request could not begin: {error}")


def _later(lease_ms: int) -> float:
    return time.monotonic() + lease_ms / 1000
