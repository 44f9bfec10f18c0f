"""A step of kind `tx`: its record, what its function writes, and a look at the flow's record, in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semel.codecs.seal import Seal
from semel.codecs.values import Returned
from semel.core.effects import Complete, Plan
from semel.core.records import Lease, Occupied, Record
from semel.errors import StoreMisconfigured, Unstorable
from semel.flow.definition import Definition
from semel.flow.turns import Ended, Failed, Fenced, Transact
from semel.stores.sql.engine import Engine, Granted
from semel.stores.sql.errors import retry_of
from semel.stores.sql.seal import sealed_engine
from semel.transaction.units import AsyncUnit, StepFailed, Unit, step

AnyUnit = Unit[object] | AsyncUnit[object]


def transact(
    unit: AnyUnit,
    effect: Transact[Any],
    definition: Definition[Any, Any],
    seal: Seal | None,
    invoke: Callable[[], Any],
) -> Plan[Ended | Occupied | Fenced]:
    """`Returned` is committed; anything else is rolled back.

    The record of the step is inserted first, so that of two attempts one waits until the other's transaction has ended.
    """
    try:
        yield from step(unit.begin)
        engine = sealed_engine(unit.engine, seal)
        ended = yield from _write(unit, engine, effect, definition, invoke)
        yield from step(unit.commit if isinstance(ended, Returned) else unit.roll_back)
    except (StepFailed, StoreMisconfigured, Unstorable) as error:
        yield from step(unit.roll_back)
        return Failed(error.error if isinstance(error, StepFailed) else error)
    return ended


def _write(
    unit: AnyUnit,
    engine: Engine,
    effect: Transact[Any],
    definition: Definition[Any, Any],
    invoke: Callable[[], Any],
) -> Plan[Ended | Occupied | Fenced]:
    lease, claim = effect.invoke.lease, effect.claim
    wait_ms = definition.settings.policy.wait_ms
    granted: Granted | Occupied = yield from step(lambda: unit.run(engine.claim(claim, wait_ms)))
    if isinstance(granted, Occupied):
        return granted
    ended: Ended = yield from step(invoke)
    if not isinstance(ended, Returned):
        return ended
    complete = Complete(granted.lease, definition.encode(effect.invoke.turn, ended), claim.retention_ms)
    yield from step(unit.flush)
    yield from step(lambda: unit.run(engine.complete(complete, granted.mark)))
    flow: Record | None = yield from step(lambda: unit.run(engine.read(lease.key)))
    return ended if _is_ours(flow, lease) else Fenced()


def _is_ours(flow: Record | None, lease: Lease) -> bool:
    if flow is None:
        raise StoreMisconfigured(
            f"the record of the flow {lease.key.name!r} is not in the database of this transaction: transaction= must "
            "be on the database of the flow's store"
        )
    return flow.in_progress() and flow.owner == lease.owner


def is_given_up(ended: Ended | Occupied | Fenced) -> bool:
    """Whether the database aborted the transaction in favour of another one, so that it may run again."""
    return isinstance(ended, Failed) and retry_of(ended.error) is not None
