"""The operation that is running: what the work may know about itself, and what it may say."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from contextvars import Context, ContextVar
from threading import Lock
from typing import Final, Generic, TypeVar, cast

from semel.core.records import NOBODY, Key, Lease, Record, plain_text
from semel.errors import Misuse
from semel.runtime.keeper import Kept

R = TypeVar("R")


class Operation:
    """The operation that is running: what your code may know about it, and what it may say.

    `semel.current_operation()` gives it, everywhere below a protected endpoint, function, block or message handler.

    ```python
    import semel

    def charge(amount: int) -> None:
        operation = semel.current_operation()
        if operation is not None:
            print("Idempotency-Key:", operation.derive("charge"))  # give this to the payment service

    @semel.idempotent(store="memory://", key="order")
    def pay(order: str, amount: int) -> None:
        charge(amount)

    pay("order-1", 10)
    ```
    """

    __slots__ = (
        "_kept",
        "_published",
        "key",
        "lease",
        "nothing_was_done",
        "refused_invalid",
        "reported",
        "transaction",
    )

    def __init__(self, lease: Lease, kept: Kept | None = None, transaction: object = None) -> None:
        self.key: Key = lease.key
        self.lease = lease
        self.nothing_was_done = False
        # Whether its framework refused the request before the work ran: `Policy.release_invalid` says what that means.
        self.refused_invalid = False
        # What the work raised, where its framework has reported that and answers for it.
        self.reported: Exception | None = None
        # The request's own transaction, where its front has opened one: `TransactionStore.current` finds it here.
        self.transaction = transaction
        self._kept = kept
        self._published = 0

    @property
    def tenant(self) -> str:
        """The caller whose operation this is, as `identify=` or `tenant=` named it."""
        return self.key.tenant

    @property
    def attempt(self) -> int:
        """Grows with every take-over of this key: pass it to a service that can refuse an older attempt."""
        return self.lease.attempt

    @property
    def lost(self) -> bool:
        """Whether another executor took the key over: then further work is done twice."""
        return self._kept is not None and self._kept.lost

    def derive(self, name: str) -> str:
        """A stable key for a call further down, the same in every attempt, so that a re-run is deduplicated there."""
        hasher = hashlib.sha256()
        for part in (self.key.tenant, self.key.scope, self.key.name, plain_text("the name of a derived key", name)):
            encoded = part.encode()
            hasher.update(len(encoded).to_bytes(8, "big") + encoded)
        return str(uuid.UUID(bytes=hasher.digest()[:16], version=5))

    def next_message_id(self) -> str:
        """`publish` calls this: the id of the next message that this operation adds, the same in every attempt.

        A number that was taken is never taken again, whatever becomes of its message.
        """
        with _publishing:
            self._published += 1
            return self._message_id(self._published)

    def _message_id(self, number: int) -> str:
        return self.derive(f"semel.outbox/{number}")

    def nothing_done(self) -> None:
        """Declare that nothing took effect: whatever the answer is, the key is released."""
        self.nothing_was_done = True


_publishing = Lock()
"""Threads that share an operation publish with different numbers."""


class NoResult:
    """Marks a block that has no result yet: None is a result."""


NO_RESULT: Final = NoResult()


class BlockOperation(Operation, Generic[R]):
    """The operation of a block: says whether the work was done before, and takes its result.

    `if op.replayed: return op.result`, then the work, then `op.result = …`. A block that is left without a result has
    the result None.
    """

    __slots__ = ("_looked", "_replayed", "_result")

    def __init__(self, lease: Lease, kept: Kept | None = None) -> None:
        super().__init__(lease, kept)
        self._looked = False
        self._replayed = False
        self._result: R | NoResult = NO_RESULT

    @classmethod
    def of(cls, record: Record, result: R) -> BlockOperation[R]:
        """The operation of a finished `record`, with its result. Nothing may run."""
        operation = cls(held_lease(record))
        operation.replay(result)
        return operation

    @property
    def replayed(self) -> bool:
        """Whether the store has a `result` already: then the work must not run again."""
        self._looked = True
        return self._replayed

    @property
    def result(self) -> R:
        """The result of the block: the stored one if it is replayed, else what the block has set.

        Reading it before it was set, and setting it in a replayed block, raise `Misuse`.
        """
        if isinstance(self._result, NoResult):
            raise Misuse("op.result is read before it was set: this block runs the work, so set it first")
        return self._result

    @result.setter
    def result(self, value: R) -> None:
        if self._replayed:
            raise Misuse(
                "op.result is set in a block that was replayed: its result is stored and cannot change. "
                "Write `if op.replayed: return op.result` first in the block."
            )
        self._result = value

    @property
    def has_result(self) -> bool:
        """Whether there is a result: a stored one, or one that the block has set."""
        return not isinstance(self._result, NoResult)

    def replay(self, result: R) -> None:
        """Fronts call this: `result` is what the store holds, whatever the block has set."""
        self._replayed, self._result = True, result

    def _message_id(self, number: int) -> str:
        if self._replayed:
            raise Misuse(
                "a message is published in a block that was replayed, so it was published before. "
                "Write `if op.replayed: return op.result` first in the block."
            )
        return super()._message_id(number)

    def outcome(self) -> R:
        """What is stored for the block when it has ended: a block that set no result has the result None."""
        return cast(R, None) if isinstance(self._result, NoResult) else self._result

    def check_looked(self) -> None:
        """Fronts call this after a block without an error: one that ignores `replayed` would run again at a repeat."""
        if not self._looked:
            raise Misuse(
                "the block was left without looking at op.replayed, so a repeat runs its work again. "
                "Write `if op.replayed: return op.result` first in the block."
            )


def held_lease(record: Record) -> Lease:
    """The lease under which `record` was made. A record without an owner gets a made-up owner, which holds nothing."""
    return Lease(record.key, record.owner if record.owner != NOBODY else "nobody", record.attempt, 0)


_current: ContextVar[Operation | None] = ContextVar("semel_operation", default=None)


def current_operation() -> Operation | None:
    """The operation that this code runs in, or None outside of one."""
    return _current.get()


enter: Callable[[Operation | None], object] = _current.set
"""Makes an operation current in this context.

Fronts call this in a context of the operation's own, or with None at its end.
"""


class Inside:
    """A block in which `operation` is current. Its changes to other context variables stay."""

    __slots__ = ("_operation", "_token")

    def __init__(self, operation: Operation) -> None:
        self._operation = operation

    def __enter__(self) -> None:
        self._token = _current.set(self._operation)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


class Outside:
    """A block in which no operation is current, although the work calls it.

    For code that may begin another operation: a server that has an answer starts the next request of the connection,
    and that one inherits the current context. A class and no generator, which is slower: every answer is sent in one.
    """

    __slots__ = ("_token",)

    def __enter__(self) -> None:
        self._token = _current.set(None)

    def __exit__(self, *_: object) -> None:
        try:
            _current.reset(self._token)
        except ValueError:  # a coroutine that is thrown away ends in the context of the code that closes it
            return


def adopt(context: Context) -> None:
    """Take over the context variables that a task has changed: code around us sees them as if there were no task.

    All but the operation: a server begins the next request of a connection in the context of this one.
    """
    for variable, value in context.items():
        if variable is not _current and variable.get(None) is not value:
            variable.set(value)
