"""The block: one operation inside of your transaction.

    with Session.begin() as session, within(session).operation(key, scope="charge") as op:
        if op.replayed:
            return op.result
        session.add(Payment(…))
        op.result = {…}

Entering inserts the record, so that a twin (a repeat that comes meanwhile) waits for the end of your transaction.
Leaving stores the result in the record. Nothing here commits or rolls back: your transaction commits, or rolls back,
the record together with what the block wrote.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Generic, TypeVar, assert_never, cast

from semel.codecs.seal import Seal
from semel.codecs.values import NotKept, Raised, Returned
from semel.connections import AsyncDriver, Driver, is_async_driver
from semel.core.decisions import Replay
from semel.core.effects import Claim, Complete
from semel.core.fingerprint import function_digest
from semel.core.protocol import decide
from semel.core.records import Key, Lease, Occupied, Result
from semel.errors import Misuse, ResultNotKept, Unstorable
from semel.runtime.calls import not_kept, refusal
from semel.runtime.drive import adrive, drive
from semel.runtime.operation import BlockOperation, Operation, current_operation, enter
from semel.stores.sql.engine import LEASE_MS, Claimed, Granted
from semel.stores.sql.errors import RetryTransaction, retry_of
from semel.stores.sql.seal import sealed_engine
from semel.transaction.settings import TransactionSettings

R = TypeVar("R")
Op = TypeVar("Op", bound=Operation)
ErrorType = type[BaseException] | None


class TransactionOperation(BlockOperation[R]):
    """The operation of such a block. `fail` makes an error its result: this caller raises it, and every repeat does."""

    __slots__ = ("error",)

    def __init__(self, lease: Lease) -> None:
        super().__init__(lease)
        self.error: Exception | None = None

    def fail(self, error: Exception) -> None:
        """Store `error`, one of `final_errors`, as the answer: every repeat raises it.

        What the block wrote is committed with it. To store a failure whose writes are rolled back, roll back first and
        call this in a second transaction, or let `semel.transaction.run` do both.
        """
        self.error = error


class RecordBlock(ABC, Generic[Op]):
    """A block with its record, to be entered once: `with` a sync connection, `async with` an async one."""

    call = "operation"
    """What of `within(…)` makes such a block."""

    def __init__(
        self,
        driver: Driver | AsyncDriver,
        key: Key,
        fingerprint: object,
        settings: TransactionSettings[Any],
        *,
        seal: Seal | None = None,
    ) -> None:
        self._driver = driver
        self._engine = sealed_engine(driver.engine, seal)
        self._settings = settings
        printed = function_digest([b"function", settings.values.canonical(fingerprint)])  # as `semel.operation` does it
        claim = Claim(key, printed, secrets.token_urlsafe(16), LEASE_MS, settings.retention_ms, takeover=False)
        self._claim = claim.checked()
        self._operation: Op | None = None
        self._outer: Operation | None = None
        self._mark: str | None = None

    @abstractmethod
    def _make_granted(self, lease: Lease) -> Op:
        """The operation that runs the work."""

    @abstractmethod
    def _make_replayed(self, decision: Replay) -> Op:
        """The operation of a record that is finished."""

    @abstractmethod
    def _check_looked(self, operation: Op) -> None: ...
    @abstractmethod
    def _result(self, operation: Op) -> Result: ...

    # Sync

    def __enter__(self) -> Op:
        driver = self._of_kind(is_async=False)
        driver.check()
        return self._begin_with(drive(self._engine.claim(self._claim, self._settings.wait_ms), driver.perform))

    def __exit__(self, kind: ErrorType, error: BaseException | None, _: TracebackType | None) -> None:
        if (operation := self._leave(error)) is not None:
            driver = self._of_kind(is_async=False, again=True)
            driver.flush()
            drive(self._engine.complete(*self._make_completion(operation)), driver.perform)

    # Async

    async def __aenter__(self) -> Op:
        driver = self._of_kind(is_async=True)
        await driver.check()
        return self._begin_with(await adrive(self._engine.claim(self._claim, self._settings.wait_ms), driver.perform))

    async def __aexit__(self, kind: ErrorType, error: BaseException | None, _: TracebackType | None) -> None:
        if (operation := self._leave(error)) is not None:
            driver = self._of_kind(is_async=True, again=True)
            await driver.flush()
            await adrive(self._engine.complete(*self._make_completion(operation)), driver.perform)

    # Both

    def _of_kind(self, *, is_async: bool, again: bool = False) -> Any:
        if is_async_driver(self._driver) != is_async:
            kind, write = ("an async", "async with") if not is_async else ("a sync", "with")
            raise TypeError(f"this is {kind} connection: write `{write} within(…).{self.call}(…)`")
        if self._operation is not None and not again:
            raise Misuse(f"a block is entered once: call within(…).{self.call}(…) again for every call")
        return self._driver

    def _begin_with(self, claimed: Claimed) -> Op:
        match claimed:
            case Granted(lease, mark):
                self._mark = mark
                operation = self._make_granted(lease)
            case Occupied():
                decision = decide(claimed, self._claim.fingerprint)
                if not isinstance(decision, Replay):
                    raise refusal(cast(Any, decision), self._claim.key)  # the work of an occupied key never runs here
                operation = self._make_replayed(decision)
            case _:
                assert_never(claimed)
        self._operation, self._outer = operation, current_operation()
        enter(operation)
        return operation

    def _leave(self, error: BaseException | None) -> Op | None:
        """The operation whose result is to be stored now; None when there is nothing to do."""
        operation = self._operation
        assert operation is not None, "`with` leaves only what it has entered"
        enter(self._outer)
        if error is not None:
            retry = retry_of(error)
            if retry is not None and not isinstance(error, RetryTransaction):
                raise retry from error
            return None
        self._check_looked(operation)
        return None if self._mark is None else operation

    def _make_completion(self, operation: Op) -> tuple[Complete, str]:
        assert self._mark is not None
        return Complete(operation.lease, self._result(operation), self._settings.retention_ms), self._mark


class TransactionBlock(RecordBlock[TransactionOperation[R]]):
    """One operation."""

    def _make_granted(self, lease: Lease) -> TransactionOperation[R]:
        return TransactionOperation[R](lease)

    def _make_replayed(self, decision: Replay) -> TransactionOperation[R]:
        outcome = self._settings.values.decode(decision.result)
        match outcome:
            case Returned(value):
                return cast("TransactionOperation[R]", TransactionOperation[R].of(decision.record, value))
            case Raised(error):
                raise error
            case NotKept():
                raise ResultNotKept(not_kept(self._claim.key, outcome))
            case _:
                assert_never(outcome)

    def _check_looked(self, operation: TransactionOperation[R]) -> None:
        operation.check_looked()

    def _result(self, operation: TransactionOperation[R]) -> Result:
        """The result to store. Nothing is committed yet, so a value that cannot be stored is refused."""
        error = operation.error
        result = self._settings.values.encode(Returned(operation.outcome()) if error is None else Raised(error))
        size, size_max = len(result.payload), self._settings.policy.result_max
        if size > size_max:
            raise Unstorable(
                f"the result of {operation.key.name!r} has {size} bytes, the limit is {size_max}: roll back"
            )
        return result
