"""Executors perform the plans of a flow: on a store, in the caller's functions and in the caller's transactions.

What decides is in the plans. `AsyncExecutor` is `Executor` with `await`, and it shields what records a finished step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import cached_property
from typing import Any, Generic, TypeVar

from semel.codecs.seal import Seal
from semel.codecs.values import Raised, Returned
from semel.core.effects import Complete, Effect, Plan
from semel.core.records import Lease, Occupied
from semel.flow.course import Keep, LetGo
from semel.flow.definition import Definition
from semel.flow.recovery import Scan
from semel.flow.steps import FlowOperation
from semel.flow.turns import Ended, Failed, Fenced, Invoke, Transact
from semel.runtime.calls import ResolveSeen
from semel.runtime.drive import adrive, drive
from semel.runtime.host import AsyncHost, Host
from semel.runtime.keeper import Kept
from semel.runtime.listener import logged
from semel.runtime.operation import current_operation, enter
from semel.runtime.perform import async_performer, performer
from semel.runtime.tasks import report
from semel.store import AsyncInspectable, AsyncResolvable, Inspectable, Resolvable

T = TypeVar("T")
H = TypeVar("H", Host, AsyncHost)
B = TypeVar("B")
Begin = Callable[[], AbstractContextManager[object]]
AsyncBegin = Callable[[], AbstractAsyncContextManager[object]]
TRIES_MAX = 5
"""How often a step runs at most when the database aborts its transaction (deadlock, serialization)."""


class AnyExecutor(Generic[H, B]):
    """Performs one plan at a time. `begin` opens a transaction of the caller's."""

    def __init__(self, front: H, definition: Definition[Any, Any], begin: B | None, seal: Seal | None = None) -> None:
        self._front: H = front
        self._definition = definition
        self._begin = begin
        self._seal = seal
        self._kept: Kept | None = None
        self._listener = logged(definition.settings.on_event)

    def _keep(self, lease: Lease) -> None:
        lease_ms = self._definition.step_policy.lease_ms
        self._kept = self._front.keeper.keep(lease, lease_ms=lease_ms, on_event=self._listener)

    def _let_go(self) -> None:
        if self._kept is not None:
            self._front.keeper.stop(self._kept)


class Executor(AnyExecutor[Host, Begin]):
    """For threads."""

    @cached_property
    def _plain(self) -> Callable[[Effect[Any]], Any]:
        return performer(self._front.store, self._listener)

    def run(self, plan: Plan[T]) -> T:
        try:
            return drive(plan, self._perform)
        finally:
            self._let_go()

    def _perform(self, effect: Effect[Any]) -> Any:
        match effect:
            case Invoke():
                return self._invoke(effect)
            case Transact():
                return self._transact(effect)
            case Keep(lease):
                self._keep(lease)
            case LetGo():
                self._let_go()
            case Scan(filter, cursor, limit):
                assert isinstance(self._front.store, Inspectable)
                return self._front.store.scan(filter, cursor=cursor, limit=limit)
            case ResolveSeen(seen, result, retention_ms):
                assert isinstance(self._front.store, Resolvable)
                return self._front.store.resolve(seen, result, retention_ms=retention_ms)
            case _:
                return self._plain(effect)

    def _invoke(self, invoke: Invoke[Any], *given: object) -> Ended:
        outer = current_operation()
        enter(operation_of(invoke, self._kept))
        try:
            return Returned(invoke.turn.function(current_operation(), *given))
        except Exception as error:
            return ending_of(invoke, error, self._definition)
        finally:
            enter(outer)

    def _transact(self, effect: Transact[Any]) -> Ended | Occupied | Fenced:
        from semel.flow.transactions import is_given_up

        ended = self._transact_once(effect)
        for _ in range(TRIES_MAX - 1):
            if is_given_up(ended):
                ended = self._transact_once(effect)
        return ended

    def _transact_once(self, effect: Transact[Any]) -> Ended | Occupied | Fenced:
        from semel.flow.transactions import transact
        from semel.transaction.units import Unit, perform

        assert self._begin is not None
        unit = Unit(self._begin, "")
        plan = transact(
            unit, effect, self._definition, self._seal, lambda: self._invoke(effect.invoke, unit.connection)
        )
        try:
            return drive(plan, perform)
        except BaseException:
            unit.roll_back()
            raise


class AsyncExecutor(AnyExecutor[AsyncHost, AsyncBegin]):
    """The same for tasks."""

    @cached_property
    def _plain(self) -> Callable[[Effect[Any]], Awaitable[Any]]:
        return async_performer(self._front.store, self._listener)

    async def run(self, plan: Plan[T]) -> T:
        try:
            return await adrive(plan, self._perform)
        finally:
            self._let_go()

    async def _perform(self, effect: Effect[Any]) -> Any:
        match effect:
            case Invoke():
                return await self._invoke(effect)
            case Transact():
                return await self._transact(effect)
            case Keep(lease):
                self._keep(lease)
            case LetGo():
                self._let_go()
            case Scan(filter, cursor, limit):
                assert isinstance(self._front.store, AsyncInspectable)
                return await self._front.store.scan(filter, cursor=cursor, limit=limit)
            case ResolveSeen(seen, result, retention_ms):
                assert isinstance(self._front.store, AsyncResolvable)
                return await self._front.store.resolve(seen, result, retention_ms=retention_ms)
            case Complete():
                return await self._shielded(effect)
            case _:
                return await self._plain(effect)

    async def _shielded(self, effect: Complete) -> bool:
        """Record a finished step even if its caller is cancelled."""

        async def complete() -> bool:
            done: bool = await self._plain(effect)
            return done

        task = self._front.tasks.spawn(complete())
        try:
            return await asyncio.shield(task)
        finally:
            if not task.done():
                task.add_done_callback(report)

    async def _invoke(self, invoke: Invoke[Any], *given: object) -> Ended:
        outer = current_operation()
        enter(operation_of(invoke, self._kept))
        try:
            called: Any = invoke.turn.function(current_operation(), *given)
            return Returned(await called)
        except Exception as error:
            return ending_of(invoke, error, self._definition)
        finally:
            enter(outer)

    async def _transact(self, effect: Transact[Any]) -> Ended | Occupied | Fenced:
        from semel.flow.transactions import is_given_up

        ended = await self._transact_once(effect)
        for _ in range(TRIES_MAX - 1):
            if is_given_up(ended):
                ended = await self._transact_once(effect)
        return ended

    async def _transact_once(self, effect: Transact[Any]) -> Ended | Occupied | Fenced:
        from semel.flow.transactions import transact
        from semel.transaction.units import AsyncUnit, aperform

        assert self._begin is not None
        unit = AsyncUnit(self._begin, "")
        plan = transact(
            unit, effect, self._definition, self._seal, lambda: self._invoke(effect.invoke, unit.connection)
        )
        try:
            return await adrive(plan, aperform)
        except BaseException:
            await unit.roll_back()
            raise


def operation_of(invoke: Invoke[Any], kept: Kept | None) -> FlowOperation[Any]:
    return FlowOperation(invoke.lease, kept, invoke.turn, invoke.input, invoke.results)


def ending_of(invoke: Invoke[Any], error: Exception, definition: Definition[Any, Any]) -> Raised | Failed:
    """A final error ends a step. It does not end an undo: an undo that fails must be run again."""
    final = isinstance(error, definition.settings.values.errors) and not invoke.turn.undo
    return Raised(error) if final else Failed(error)
