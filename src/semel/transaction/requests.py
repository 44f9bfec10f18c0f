"""What becomes of the transaction of one request, as plans that threads and tasks share.

Claiming begins the transaction. A stored success commits it. Anything else rolls it back, and a failure is then stored
in a second transaction. The task or thread that runs the request drives all of these plans, and `ending` at its end: no
other one touches the connection. So there is no lease to lose and no deadline to miss: a late request is only late.

If the reply to a commit is lost, the plan reads the record. If that fails, too, the caller is told to repeat the
request, and the repeat finds out. A *twin* is a repeat that comes while the first request is running.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec.structs import replace

from semel.codecs.seal import Seal
from semel.core.effects import Claim, Complete, Plan
from semel.core.records import NOBODY, Acquired, Claimed, Key, Lease, Occupied, Record, State
from semel.errors import InProgress, NotCommitted, RecordUnreadable, StoreError, StoreMisconfigured, StoreUnavailable
from semel.runtime.clock import wall_ms
from semel.stores.sql.engine import LEASE_MS, Engine, Granted
from semel.stores.sql.errors import is_connection_lost, is_refused_for_good, retry_of
from semel.stores.sql.seal import sealed_engine
from semel.transaction.twins import AnyTwins, rests_ms
from semel.transaction.units import AsyncUnit, RolledBack, StepFailed, Unit, step

C = TypeVar("C")
AnyUnit = Unit[C] | AsyncUnit[C]
HELD_MS = 1_000
"""How long a twin is told to wait before it asks again."""
WAIT_MS = 10_000
"""How long a twin waits for the first request by default."""
NO_WAIT_MS = 1
"""A claim does not wait in the database for a twin: other requests could not use its connection meanwhile."""
REMEMBER_MS = 1_000
"""How long a failed request waits for a twin that got the key before the failure was stored."""
logger = logging.getLogger("semel")


class RequestPlans(Generic[C]):
    """The transaction of one request. `source` is its store; `new_unit` makes a transaction that has not begun."""

    def __init__(
        self,
        source: object,
        new_unit: Callable[[], AnyUnit[C]],
        twins: AnyTwins,
        *,
        wait_ms: int | None,
        held_max: int,
        seal: Seal | None,
    ) -> None:
        self.source = source
        self.held_max = held_max
        self._seal = seal
        self.wait_ms = WAIT_MS if wait_ms is None else wait_ms
        self._given_wait_ms = wait_ms
        self._new_unit = new_unit
        self._twins = twins
        self._rests_ms = rests_ms()
        self._unit: AnyUnit[C] | None = None
        self._claim: Claim | None = None
        self._mark = ""
        self._is_running = False
        self._failure: NotCommitted | None = None

    @property
    def connection(self) -> C | None:
        """The connection or session of the handler's transaction. A failure is stored in one of semel's own."""
        return self._unit.connection if self._is_running and self._unit is not None else None

    def gave_up(self, error: BaseException | None) -> str:
        """Why the database has rolled the transaction back by itself, if it has: then nothing was done."""
        if error is not None and (retry := retry_of(error)) is not None:
            return str(retry).partition(":")[0]
        lost = error is not None and is_connection_lost(error)
        if lost or (self._unit is not None and self._unit.is_lost()):
            return "the connection to the database was lost"
        return ""

    # Plans

    def claiming(self, claim: Claim) -> Plan[Claimed]:
        first = self._twins.keys.first(claim.key)
        if first is not None:
            return _held(first)
        try:
            reply = yield from self._insert(claim)
        except StepFailed as failed:
            yield from self._roll_back()
            if isinstance(failed.error, InProgress):
                return _held(claim)
            raise _meaning(failed.error) from failed.error
        if isinstance(reply, Occupied):
            yield from self._roll_back()
            return reply
        self._claim, self._is_running = claim, True
        self._twins.keys.enter(claim)
        return Acquired(Lease(claim.key, claim.owner, 1, wall_ms() + claim.lease_ms))

    def flushing(self) -> Plan[None]:
        """Send the writes that an ORM holds back. If the database refuses them, that is an error of the handler."""
        if self._unit is not None:
            try:
                yield from step(self._unit.flush)
            except StepFailed as failed:
                raise failed.error from None

    def completing(self, call: Complete) -> Plan[bool]:
        """Store the result, and say whether the database has it. This never fails: `reading` raises the failure."""
        stored = yield from self._store(call)
        yield from self.ending()  # let twins go on now: the application may have much to do after its answer
        return stored

    def reading(self, key: Key) -> Plan[Record | None]:
        """The record, read in a second transaction: before the claim, or after the request's own transaction."""
        if self._failure is not None:
            raise self._failure
        unit = self._unit = self._new_unit()
        try:
            yield from step(unit.begin)
            record: Record | None = yield from step(lambda: unit.run(self._engine(unit).read(key)))
        except StepFailed as failed:
            yield from self._roll_back()
            raise _meaning(failed.error) from failed.error
        yield from self._roll_back()
        if record is not None and self._claim is not None and record.owner == self._claim.owner:
            return _unfinished(record)
        return record

    def ending(self) -> Plan[None]:
        """Roll back what was not committed, and let twins go on. Safe to repeat."""
        self._is_running = False
        try:
            yield from self._roll_back()
        finally:
            if self._claim is not None:
                self._twins.leave(self._claim)

    # Parts of them

    def _store(self, call: Complete) -> Plan[bool]:
        self._is_running = False
        try:
            if call.result.ok:
                yield from self._commit(call)
                return True
            yield from self._roll_back()
            return (yield from self._remember(call))
        except StepFailed as failed:
            error = failed.error
        yield from self._roll_back()
        logger.error("the transaction of %s did not commit", str(call.lease.key), exc_info=error)
        return (yield from self._was_stored(call.lease, error))

    def _insert(self, claim: Claim, wait_ms: int = NO_WAIT_MS) -> Plan[Granted | Occupied]:
        """Begin, and insert the record, which makes twins wait for the end of this transaction."""
        unit = self._unit = self._new_unit()
        yield from step(unit.begin)
        engine = self._engine(unit)
        bound_ms = wait_ms if engine.tells_twins else self._given_wait_ms
        inside = replace(claim, lease_ms=LEASE_MS, takeover=False)
        reply: Granted | Occupied = yield from step(lambda: unit.run(engine.claim(inside, bound_ms)))
        if isinstance(reply, Granted):
            self._mark = reply.mark
        return reply

    def _engine(self, unit: AnyUnit[C]) -> Engine:
        return sealed_engine(unit.engine, self._seal)

    def _commit(self, call: Complete) -> Plan[None]:
        unit = self._unit
        if unit is None:
            raise StepFailed(RolledBack("the transaction has ended already"))
        yield from step(lambda: unit.run(self._engine(unit).complete(call, self._mark)))
        yield from step(unit.commit)
        self._unit = None

    def _roll_back(self) -> Plan[None]:
        unit = self._unit
        if unit is not None:
            yield from step(unit.roll_back)
            self._unit = None

    def _remember(self, call: Complete) -> Plan[bool]:
        """Store a failure after its writes were rolled back, unless a twin has the key by now."""
        assert self._claim is not None
        reply = yield from self._insert(self._claim, min(self.wait_ms, REMEMBER_MS))
        if isinstance(reply, Granted):
            yield from self._commit(call)
            return True
        yield from self._roll_back()
        return False

    def _was_stored(self, lease: Lease, error: Exception) -> Plan[bool]:
        try:
            record = yield from self.reading(lease.key)
        except StoreError:
            record = None
        if record is None:
            self._failure = NotCommitted(str(error), for_good=is_refused_for_good(error))
            return False
        return record.owner == lease.owner and not record.in_progress()


def _unfinished(record: Record) -> Record:
    """A request's own record after its end. One in progress was committed by the handler, and never finishes."""
    return replace(record, owner=NOBODY) if record.in_progress() else record


def _held(first: Claim) -> Occupied:
    """The reply for a key whose transaction is open: no other transaction can see its record yet."""
    now_ms = wall_ms()
    until_ms = now_ms + HELD_MS
    record = Record(first.key, first.fingerprint, State.IN_PROGRESS, first.owner, 1, now_ms, until_ms, until_ms)
    return Occupied(record, now_ms)


def _meaning(error: Exception) -> StoreError:
    """The store error for a front: a new transaction may succeed, unless an operator must act first."""
    if isinstance(error, (StoreMisconfigured, RecordUnreadable)):
        return error
    return StoreUnavailable(f"the transaction of this request could not begin: {error}")
