"""The leased block: `with` or `async with` around the work of one call under a key.

Entering claims the key, and raises an error if the work may not run. Leaving stores the result, and only then goes on.
`semel.operation` makes such blocks, and an inbox makes them for messages.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, TypeVar, assert_never

from semel.codecs.values import NotKept, Raised
from semel.core.decisions import Run, Settlement
from semel.core.effects import Effect
from semel.core.fingerprint import function_digest
from semel.core.records import Key, Record
from semel.errors import Misuse, OutcomeUnknown, ResultNotKept, Superseded
from semel.runtime.calls import (
    Answer,
    Ask,
    Call,
    EndedCall,
    Found,
    ResolveSeen,
    Unprotected,
    answered,
    not_kept,
    value_of,
)
from semel.runtime.host import Asker, AsyncAsker, AsyncHost, Host, async_host_of, host_of
from semel.runtime.keeper import Kept
from semel.runtime.listener import ignore, logged
from semel.runtime.operation import BlockOperation, Operation, current_operation, enter, held_lease
from semel.runtime.options import CallSettings
from semel.runtime.tasks import report
from semel.store import AsyncResolvable, AsyncStore, Resolvable, Store

R = TypeVar("R")
ErrorType = type[BaseException] | None


class Block(Generic[R]):
    """One call under a key, to be entered once. All its mutable state is here."""

    made_by = "semel.operation(…)"
    operation_type: type[BlockOperation[Any]] = BlockOperation

    def __init__(
        self,
        key: Key,
        fingerprint: object,
        store: Store | AsyncStore | str,
        settings: CallSettings[R],
        reconcile: Any = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._ask: Callable[[], object] | None = reconcile or settings.reconcile
        self._key = key
        self._printed = function_digest([b"function", settings.values.canonical(fingerprint)])
        self._listener = logged(settings.on_event)
        self._call: Call[R]
        self._host: Host | AsyncHost | None = None
        self._operation: BlockOperation[R] | None = None
        self._outer: Operation | None = None
        self._kept: Kept | None = None
        self._protected = False
        self.settlement: Settlement | None = None
        """How the attempt was ended in the store; None if nothing ran here."""

    @property
    def operation(self) -> BlockOperation[R]:
        """The operation, once the block is entered."""
        if self._operation is None:
            raise Misuse(f"the block was not entered: write `with {self.made_by} as op`")
        return self._operation

    # Sync

    def __enter__(self) -> BlockOperation[R]:
        host: Host = self._once(host_of)
        if inspect.iscoroutinefunction(self._ask):
            raise TypeError("reconcile= is a coroutine function: use `async with`, or give a plain function")
        self._check_resolvable(host.store, Resolvable)
        return self._begin_with(host.begin(self._call, self._asker(host)), host)

    def __exit__(self, kind: ErrorType, error: BaseException | None, _: TracebackType | None) -> None:
        host, operation = self._host, self._leave()
        assert isinstance(host, Host)
        ended = self._judge_end(operation, error)
        if ended is not None:
            settlement = host.settle(self._call, operation.lease, ended, self._asker(host))
            self._check_settlement(operation, ended, settlement, error)

    def _asker(self, host: Host) -> Asker:
        plain = host.asker if self._settings.on_event is ignore else host.asker_on(host.store, self._listener)
        if self._ask is None:
            return plain

        def perform(effect: Effect[Any]) -> Any:
            match effect:
                case Ask(record):
                    return self._answer(record)
                case ResolveSeen(seen, result, retention_ms):
                    assert isinstance(host.store, Resolvable)
                    return host.store.resolve(seen, result, retention_ms=retention_ms)
                case _:
                    return plain.perform(effect)

        return plain._replace(perform=perform)

    def _answer(self, record: Record) -> Answer:
        with self._make_current(record):
            try:
                return answered(self._reconciler()())
            except Exception as error:
                return self._judge_failure(error)

    # Async

    async def __aenter__(self) -> BlockOperation[R]:
        host: AsyncHost = self._once(async_host_of)
        self._check_resolvable(host.store, AsyncResolvable)
        return self._begin_with(await host.begin(self._call, self._async_asker(host)), host)

    async def __aexit__(self, kind: ErrorType, error: BaseException | None, _: TracebackType | None) -> None:
        host, operation = self._host, self._leave()
        assert isinstance(host, AsyncHost)
        ended = self._judge_end(operation, error)
        if ended is None:
            return
        # In a task of its own: the work is done, and a cancelled caller must not make its outcome unknown.
        task = host.tasks.spawn(host.settle(self._call, operation.lease, ended, self._async_asker(host)))
        try:
            settlement = await asyncio.shield(task)
        finally:
            if not task.done():
                task.add_done_callback(report)
        self._check_settlement(operation, ended, settlement, error)

    def _async_asker(self, host: AsyncHost) -> AsyncAsker:
        plain = host.asker if self._settings.on_event is ignore else host.asker_on(host.store, self._listener)
        if self._ask is None:
            return plain

        async def perform(effect: Effect[Any]) -> Any:
            match effect:
                case Ask(record):
                    return await self._aanswer(record)
                case ResolveSeen(seen, result, retention_ms):
                    assert isinstance(host.store, AsyncResolvable)
                    return await host.store.resolve(seen, result, retention_ms=retention_ms)
                case _:
                    return await plain.perform(effect)

        return plain._replace(perform=perform)

    async def _aanswer(self, record: Record) -> Answer:
        with self._make_current(record):
            try:
                answer = self._reconciler()()
                return answered(await answer if inspect.isawaitable(answer) else answer)
            except Exception as error:
                return self._judge_failure(error)

    # Both

    def _once(self, find_host: Callable[[Store | AsyncStore | str], Any]) -> Any:
        if self._host is not None:
            raise Misuse(f"a block is entered once: call {self.made_by} again for every call")
        host = self._host = find_host(self._store)
        self._call = Call(self._key, self._printed, secrets.token_urlsafe(16), self._settings, host)
        return host

    def _check_resolvable(self, store: object, resolvable: type) -> None:
        if self._ask is not None and not isinstance(store, resolvable):
            raise TypeError(f"reconcile= needs a store that can resolve records, and {type(store).__name__} cannot")

    def _reconciler(self) -> Callable[[], object]:
        assert self._ask is not None
        return self._ask

    @staticmethod
    @contextmanager
    def _make_current(record: Record) -> Iterator[None]:
        """Make the operation current that the reconciler is asked about, so that it can derive the same keys."""
        outer = current_operation()
        enter(Operation(held_lease(record)))
        try:
            yield
        finally:
            enter(outer)

    def _judge_failure(self, error: Exception) -> Answer:
        """A final error of the reconciler is the outcome of the work. Any other one is the reconciler's own failure."""
        if isinstance(error, self._settings.values.errors):
            return Raised(error)
        raise OutcomeUnknown(f"the outcome is unknown, and the reconciler failed: {error!r}") from error

    def _begin_with(self, begun: Run | Unprotected | Found[R], host: Host | AsyncHost) -> BlockOperation[R]:
        match begun:
            case Run(lease):
                lease_ms = self._call.policy.lease_ms
                self._kept = host.keeper.keep(lease, lease_ms=lease_ms, on_event=self._listener)
                self._protected = True
                operation = self.operation_type(lease, self._kept)
            case Unprotected(lease):
                operation = self.operation_type(lease)
            case Found(record, outcome):
                operation = self.operation_type.of(record, value_of(outcome, self._call.key))
            case _:
                assert_never(begun)
        self._operation, self._outer = operation, current_operation()
        enter(operation)
        return operation

    def _leave(self) -> BlockOperation[R]:
        operation = self.operation
        assert self._host is not None
        enter(self._outer)
        if self._kept is not None:
            self._host.keeper.stop(self._kept)
        return operation

    def _judge_end(self, operation: BlockOperation[R], error: BaseException | None) -> EndedCall | None:
        """How the work ended, or None when there is nothing to settle."""
        if not self._protected:
            if error is None:
                operation.check_looked()
            return None
        if error is not None:
            return self._call.raised(error, nothing_done=operation.nothing_was_done)
        return self._call.returned(operation.outcome(), nothing_done=operation.nothing_was_done)

    def _check_settlement(
        self, operation: BlockOperation[R], ended: EndedCall, settlement: Settlement, error: BaseException | None
    ) -> None:
        """Give the caller its own result only if the store has it, too."""
        self.settlement = settlement
        found = self._call.held(settlement)
        if found is not None:
            operation.replay(value_of(found.outcome, self._call.key))
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
