"""The block: `with` or `async with` around the work of one call under a key.

    with semel.operation(key, scope="charge", store=store) as op:
        if op.replayed:
            return op.result
        op.result = charge(…)

Entering claims the key; what may not run is raised there. Leaving stores the result, and only then goes on.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, TypeVar, Unpack, assert_never, overload

from semel.codecs.values import NotKept, Outcome, Raised, Returned
from semel.core.decisions import Run, Settlement
from semel.core.effects import Effect
from semel.core.fingerprint import function_digest
from semel.core.records import Key, Record
from semel.errors import Misuse, OutcomeUnknown, ResultNotKept, Superseded
from semel.runtime.arguments import check_options
from semel.runtime.calls import Answer, Ask, Call, Ended, Found, ResolveSeen, Unprotected, answered, not_kept
from semel.runtime.drive import adrive, drive, logged
from semel.runtime.host import AsyncFront, Front, async_front_of, front_of
from semel.runtime.keeper import Kept
from semel.runtime.operation import BlockOperation, Operation, current_operation, enter, held_lease
from semel.runtime.options import Options, Settings, block_key
from semel.runtime.tasks import report
from semel.store import AsyncResolvable, AsyncStore, Resolvable, Store

R = TypeVar("R")
ErrorType = type[BaseException] | None


class Block(Generic[R]):
    """One call under a key, to be entered once. Everything that changes about it is here."""

    def __init__(
        self,
        key: Key,
        fingerprint: object,
        store: Store | AsyncStore | str,
        settings: Settings[R],
        reconcile: Any = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._ask: Callable[[], object] | None = reconcile or settings.reconcile
        printed = function_digest([b"function", settings.values.canonical(fingerprint)])
        self._call = Call(key, printed, secrets.token_urlsafe(16), settings)
        self._front: Front | AsyncFront | None = None
        self._operation: BlockOperation[R] | None = None
        self._outer: Operation | None = None
        self._kept: Kept | None = None
        self._protected = False

    @property
    def operation(self) -> BlockOperation[R]:
        if self._operation is None:
            raise Misuse("the block was not entered: write `with semel.operation(…) as op`")
        return self._operation

    # Sync

    def __enter__(self) -> BlockOperation[R]:
        front: Front = self._once(front_of)
        if inspect.iscoroutinefunction(self._ask):
            raise TypeError("reconcile= is a coroutine function: use `async with`, or give a plain function")
        self._check_resolvable(front.store, Resolvable)
        return self._begun(drive(self._call.begin(front), self._perform(front)), front)

    def __exit__(self, kind: ErrorType, error: BaseException | None, _: TracebackType | None) -> None:
        front, operation = self._front, self._left()
        assert isinstance(front, Front)
        ended = self._ended(operation, error)
        if ended is not None:
            settlement = drive(self._call.finish(operation.lease, ended), self._perform(front))
            self._settled(operation, ended, settlement, error)

    def _perform(self, front: Front) -> Callable[[Effect[Any]], Any]:
        plain = front.perform(self._settings.on_event)

        def perform(effect: Effect[Any]) -> Any:
            match effect:
                case Ask(record):
                    return self._answer(record)
                case ResolveSeen(seen, result, retention_ms):
                    assert isinstance(front.store, Resolvable)
                    return front.store.resolve(seen, result, retention_ms=retention_ms)
                case _:
                    return plain(effect)

        return perform

    def _answer(self, record: Record) -> Answer:
        with self._asked_about(record):
            try:
                return answered(self._reconciler()())
            except Exception as error:
                return self._failed(error)

    # Async

    async def __aenter__(self) -> BlockOperation[R]:
        front: AsyncFront = self._once(async_front_of)
        self._check_resolvable(front.store, AsyncResolvable)
        return self._begun(await adrive(self._call.begin(front), self._aperform(front)), front)

    async def __aexit__(self, kind: ErrorType, error: BaseException | None, _: TracebackType | None) -> None:
        front, operation = self._front, self._left()
        assert isinstance(front, AsyncFront)
        ended = self._ended(operation, error)
        if ended is None:
            return
        # In a task of its own: the work is done, and who cancels its caller must not make its outcome unknown.
        task = front.tasks.spawn(adrive(self._call.finish(operation.lease, ended), self._aperform(front)))
        try:
            settlement = await asyncio.shield(task)
        finally:
            if not task.done():
                task.add_done_callback(report)
        self._settled(operation, ended, settlement, error)

    def _aperform(self, front: AsyncFront) -> Callable[[Effect[Any]], Awaitable[Any]]:
        plain = front.perform(self._settings.on_event)

        async def perform(effect: Effect[Any]) -> Any:
            match effect:
                case Ask(record):
                    return await self._aanswer(record)
                case ResolveSeen(seen, result, retention_ms):
                    assert isinstance(front.store, AsyncResolvable)
                    return await front.store.resolve(seen, result, retention_ms=retention_ms)
                case _:
                    return await plain(effect)

        return perform

    async def _aanswer(self, record: Record) -> Answer:
        with self._asked_about(record):
            try:
                answer = self._reconciler()()
                return answered(await answer if inspect.isawaitable(answer) else answer)
            except Exception as error:
                return self._failed(error)

    # Both

    def _once(self, front_for: Callable[[Store | AsyncStore | str], Any]) -> Any:
        if self._front is not None:
            raise Misuse("a block is entered once: call semel.operation(…) again for every call")
        self._front = front_for(self._store)
        return self._front

    def _check_resolvable(self, store: object, resolvable: type) -> None:
        if self._ask is not None and not isinstance(store, resolvable):
            raise TypeError(f"reconcile= needs a store that can resolve records, and {type(store).__name__} cannot")

    def _reconciler(self) -> Callable[[], object]:
        assert self._ask is not None
        return self._ask

    @staticmethod
    @contextmanager
    def _asked_about(record: Record) -> Iterator[None]:
        """Let the reconciler find the operation that it is asked about, with the keys that were derived from it."""
        outer = current_operation()
        enter(Operation(held_lease(record)))
        try:
            yield
        finally:
            enter(outer)

    def _failed(self, error: Exception) -> Answer:
        """A final error that the reconciler raises is how the work ended; any other one is a failure to find out."""
        if isinstance(error, self._settings.values.errors):
            return Raised(error)
        raise OutcomeUnknown(f"the outcome is unknown, and the reconciler failed: {error!r}") from error

    def _begun(self, begun: Run | Unprotected | Found[R], front: Front | AsyncFront) -> BlockOperation[R]:
        match begun:
            case Run(lease):
                listener = logged(self._settings.on_event)
                self._kept = front.keeper.keep(lease, lease_ms=self._call.policy.lease_ms, on_event=listener)
                self._protected = True
                operation = BlockOperation[R](lease, self._kept)
            case Unprotected(lease):
                operation = BlockOperation[R](lease)
            case Found(record, outcome):
                operation = BlockOperation[R].of(record, self._value(outcome))
            case _:
                assert_never(begun)
        self._operation, self._outer = operation, current_operation()
        enter(operation)
        return operation

    def _value(self, outcome: Outcome[R]) -> R:
        match outcome:
            case Returned(value):
                return value
            case Raised(error):
                raise error
            case NotKept():
                raise ResultNotKept(not_kept(self._call.key, outcome))
            case _:
                assert_never(outcome)

    def _left(self) -> BlockOperation[R]:
        operation = self.operation
        assert self._front is not None
        enter(self._outer)
        if self._kept is not None:
            self._front.keeper.stop(self._kept)
        return operation

    def _ended(self, operation: BlockOperation[R], error: BaseException | None) -> Ended | None:
        """How the work ended, or None when there is nothing to settle."""
        if not self._protected:
            if error is None:
                operation.check_looked()
            return None
        if error is not None:
            return self._call.raised(error, nothing_done=operation.nothing_was_done)
        return self._call.returned(operation.outcome(), nothing_done=operation.nothing_was_done)

    def _settled(
        self, operation: BlockOperation[R], ended: Ended, settlement: Settlement, error: BaseException | None
    ) -> None:
        """Let the caller have its own answer only if the store has it, too."""
        found = self._call.held(settlement)
        if found is not None:
            operation.replay(self._value(found.outcome))
            raise Superseded(
                f"another attempt of {self._call.key.name!r} took over while this one was running: "
                "op.result is what that one stored"
            )
        if error is None:
            operation.check_looked()
        if ended.unstorable is not None:
            if error is None:
                kept = NotKept(f"it cannot be stored: {ended.unstorable}")
                raise ResultNotKept(not_kept(self._call.key, kept)) from ended.unstorable
            error.add_note(f"semel: this error is final, but repeats get ResultNotKept: {ended.unstorable}")


@overload
def operation(
    key: str | Key,
    *,
    store: Store | AsyncStore | str,
    returns: type[R],
    scope: str = ...,
    tenant: str = ...,
    fingerprint: object = ...,
    **options: Unpack[Options],
) -> Block[R]: ...
@overload
def operation(
    key: str | Key,
    *,
    store: Store | AsyncStore | str,
    scope: str = ...,
    tenant: str = ...,
    fingerprint: object = ...,
    **options: Unpack[Options],
) -> Block[object]: ...
def operation(
    key: str | Key,
    *,
    store: Store | AsyncStore | str,
    returns: Any = object,
    scope: str | None = None,
    tenant: str = "",
    fingerprint: object = None,
    **options: Unpack[Options],
) -> Block[Any]:
    """A block whose work takes effect once for each key: `with` a store, `async with` an async store or any URL.

    `scope` says what is done: it keeps blocks apart that are given the same keys. `fingerprint` is whatever makes this
    call this one: a repeat with another is refused. `returns` is the type of `op.result` where that is more than plain
    data.
    """
    check_options(options, Options, operation)
    return Block(block_key(key, tenant, scope), fingerprint, store, Settings[Any].of(returns, options))
