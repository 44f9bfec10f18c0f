"""What a store is: seven calls, and optional abilities that are found with `isinstance`.

Replies are values; an exception is a failure (`semel.errors`). Stores act by their own clock, or by the `clock` they
were opened with. `AsyncStore` and the `Async…` abilities are the same with `async def`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from semel.core.copies import CopyCall
from semel.core.effects import Effect
from semel.core.records import Claimed, Key, Lease, Record, Result, plain_text

T = TypeVar("T")
Clock = Callable[[], int]
"""The time in milliseconds since 1970."""

StateFilter = Literal["in_progress", "unknown", "succeeded", "failed"]
"""States as an operator sees them: `in_progress` means that the lease is live."""


def seen_as(record: Record, now_ms: int) -> StateFilter:
    """The state as an operator sees it: a lapsed record is unknown."""
    return "unknown" if record.lapsed(now_ms) else record.state.value


@dataclass(frozen=True, slots=True)
class Filter:
    """Which records to show. Everything that is given must hold; records past retention never match."""

    state: StateFilter | None = None
    tenant: str | None = None
    scope: str | None = None
    name_prefix: str = ""
    older_than_ms: int = 0
    """At least this long since the record was created."""
    created_from_ms: int = 0
    """Created at this time of the store's clock or later; `Page.now_ms` says what time it is there."""

    def __post_init__(self) -> None:
        for field in ("tenant", "scope", "name_prefix"):
            if (given := getattr(self, field)) is not None:
                object.__setattr__(self, field, plain_text(field, given))

    def matches(self, record: Record, now_ms: int) -> bool:
        """Whether the record is one of those, at this time of the store's clock."""
        return (
            not record.past_retention(now_ms)
            and self.state in (None, seen_as(record, now_ms))
            and self.tenant in (None, record.key.tenant)
            and self.scope in (None, record.key.scope)
            and record.key.name.startswith(self.name_prefix)
            and now_ms - record.created_ms >= self.older_than_ms
            and record.created_ms >= self.created_from_ms
        )


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """A record that the store holds but cannot read: where it is, and why. Its key is still refused."""

    place: str
    reason: str


@dataclass(frozen=True, slots=True)
class Page:
    """Some records, and the cursor that continues after them (None at the end).

    A record that cannot be read does not stop the scan: it is named in `unreadable`, whatever the filter asks for. Both
    together are at most as many as the page's limit.
    """

    records: tuple[Record, ...]
    cursor: str | None
    unreadable: tuple[UnreadableRecord, ...] = ()
    now_ms: int | None = None
    """The store's time when it began to read, which decides whether a lease has lapsed. None if it does not tell."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How many records there are. `exact` is False where the engine only estimates the finished ones."""

    in_progress: int
    unknown: int
    succeeded: int
    failed: int
    exact: bool = True
    unreadable: int = 0
    """Records in a form that this version does not know; the other counts do not include them."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered, forward-only change of the schema.

    `readable_from` is the oldest schema number whose code can use the result.
    """

    number: int
    title: str
    statements: tuple[str, ...]
    readable_from: int = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that `examine` looked at: its state and, unless all is well, how to mend it."""

    title: str
    level: Literal["ok", "info", "warning", "problem"]
    detail: str
    fix: str = ""


@runtime_checkable
class Store(Protocol):
    """What a store is: seven calls, each of them atomic. A reply is a value; an exception is a failure.

    Fronts call these for you. Call them yourself for tests and tools, or write a store of your own:
    `semel.testing.StoreContract` has the tests that it must pass.
    """

    def claim(
        self, key: Key, fingerprint: str, *, owner: str, lease_ms: int, retention_ms: int, takeover: bool
    ) -> Claimed:
        """Make this caller the executor of `key`, or say what the store holds for it already.

        `owner` is random and names this attempt: the same owner gets its own lease again. `takeover` allows it to take
        over a key whose lease has lapsed.
        """
        ...

    def renew(self, lease: Lease, *, lease_ms: int) -> Lease | None:
        """Extend the lease while the work runs. None if it belongs to another owner by now."""
        ...

    def complete(self, lease: Lease, result: Result, *, retention_ms: int, refuse_ms: int = 0) -> bool:
        """Store the result and end the lease. False if the lease belongs to another owner, and nothing is stored then.

        Completing again with the same owner is true, and keeps the first result.
        """
        ...

    def release(self, lease: Lease) -> bool:
        """Give the key back, because nothing was done. False if another owner holds it, or it has a result."""
        ...

    def get(self, key: Key) -> Record | None:
        """The record of a key; None if there is none, or it is past retention."""
        ...

    def purge(self, *, limit: int) -> int:
        """Forget up to `limit` records past retention, or results of keys that are only refused; says how many."""
        ...

    def close(self) -> None:
        """Close the connections. Call it when nothing uses the store any more."""
        ...


@runtime_checkable
class AsyncStore(Protocol):
    """The same for tasks: every call of `Store`, with `await`."""

    async def claim(
        self, key: Key, fingerprint: str, *, owner: str, lease_ms: int, retention_ms: int, takeover: bool
    ) -> Claimed: ...
    async def renew(self, lease: Lease, *, lease_ms: int) -> Lease | None: ...
    async def complete(self, lease: Lease, result: Result, *, retention_ms: int, refuse_ms: int = 0) -> bool: ...
    async def release(self, lease: Lease) -> bool: ...
    async def get(self, key: Key) -> Record | None: ...
    async def purge(self, *, limit: int) -> int: ...
    async def close(self) -> None: ...


@runtime_checkable
class TransactionSource(Protocol):
    """Gives each request of an HTTP front a store of its own, which is the request's database transaction.

    `semel.transaction.TransactionStore` for threads, `AsyncTransactionStore` for tasks.
    """

    in_transactions: bool

    def request(self) -> Any:
        """A store for one request, which is a transaction of its own."""
        ...


@runtime_checkable
class Watchable(Protocol):
    """A store that wakes a caller who waits for the end of another one's work."""

    def wait(self, key: Key, *, owner: str, timeout_ms: int) -> bool:
        """Sleep until `owner` no longer holds `key` in progress; False when the time ran out first. May wake early."""
        ...


@runtime_checkable
class AsyncWatchable(Protocol):
    """The same for tasks."""

    async def wait(self, key: Key, *, owner: str, timeout_ms: int) -> bool: ...


@runtime_checkable
class Doubting(Protocol):
    """A store whose server may still carry out a call that failed for its caller."""

    def doubts(self, before: frozenset[str] | None) -> frozenset[str]:
        """The names of everything under way that may still write a claim whose caller got no reply.

        With `before`, only those of these names that are still under way. When none are left, a claim that is not
        stored by now never will be.
        """
        ...


@runtime_checkable
class AsyncDoubting(Protocol):
    """The same for tasks."""

    async def doubts(self, before: frozenset[str] | None) -> frozenset[str]: ...


@runtime_checkable
class Inspectable(Protocol):
    """A store that lists and counts its records."""

    def scan(self, filter: Filter = ..., *, cursor: str | None = None, limit: int = 100) -> Page:
        """Records that match, each once, in the store's own order.

        Records that come and go meanwhile may or may not appear.
        """
        ...

    def counts(self) -> Counts:
        """How many records there are, by state."""
        ...


@runtime_checkable
class AsyncInspectable(Protocol):
    """The same for tasks."""

    async def scan(self, filter: Filter = ..., *, cursor: str | None = None, limit: int = 100) -> Page: ...
    async def counts(self) -> Counts: ...


@runtime_checkable
class Resolvable(Protocol):
    """A store in which an operator or a reconciler can end an unknown outcome."""

    def resolve(self, seen: Record, result: Result | None, *, retention_ms: int) -> bool:
        """End the unknown outcome of the record `seen`: with its result, or None because nothing was done.

        False when its lease is live, or when the store holds another record by now.
        """
        ...


@runtime_checkable
class AsyncResolvable(Protocol):
    """The same for tasks."""

    async def resolve(self, seen: Record, result: Result | None, *, retention_ms: int) -> bool: ...


@runtime_checkable
class Removable(Protocol):
    """A store in which an operator can delete a record, or end its retention."""

    def remove(self, seen: Record) -> bool:
        """Delete the finished or lapsed record `seen`: a repeat is a first call after that.

        False when its lease is live, or when the store holds another record by now.
        """
        ...

    def expire(self, seen: Record) -> bool:
        """End the retention of the finished record `seen`. A key that is refused after that is refused from now on.

        False when it is not finished, or when the store holds another record by now.
        """
        ...


@runtime_checkable
class AsyncRemovable(Protocol):
    """The same for tasks."""

    async def remove(self, seen: Record) -> bool: ...
    async def expire(self, seen: Record) -> bool: ...


@runtime_checkable
class Migratable(Protocol):
    """A store with tables that must be made before it is used."""

    def migrations(self) -> Sequence[Migration]:
        """All migrations that this version knows, oldest first; their statements are what `migrate` runs."""
        ...

    def migrate(self) -> Sequence[int]:
        """Apply what is missing and say which numbers were applied. Safe to run twice at once."""
        ...


@runtime_checkable
class AsyncMigratable(Protocol):
    """The same for tasks."""

    def migrations(self) -> Sequence[Migration]:
        """As `Migratable.migrations`."""
        ...

    async def migrate(self) -> Sequence[int]: ...


@runtime_checkable
class AttemptCounting(Protocol):
    """A store that counts how often a handler failed on a message."""

    def count_attempt(self, key: Key, error: str, *, retention_ms: int) -> int:
        """Count one more failure, and say how many there are. Forgotten `retention_ms` after the last one."""
        ...


@runtime_checkable
class AsyncAttemptCounting(Protocol):
    """The same for tasks."""

    async def count_attempt(self, key: Key, error: str, *, retention_ms: int) -> int: ...


@runtime_checkable
class Outboxed(Protocol):
    """A store with an outbox: it answers the calls of `semel.core.outbox`.

    It does not answer `AddMessage`, which belongs into the caller's own transaction.
    """

    def outbox(self, call: Effect[T]) -> T:
        """Answer one call."""
        ...


@runtime_checkable
class AsyncOutboxed(Protocol):
    """The same for tasks, which can also wait for messages."""

    async def outbox(self, call: Effect[T]) -> T: ...
    async def wait_for_messages(self, timeout_ms: int) -> None:
        """Sleep until a message may have been added, at most `timeout_ms`. May wake early, or too late."""
        ...


@runtime_checkable
class Examinable(Protocol):
    """A store that `semel doctor` can examine."""

    def examine(self) -> Sequence[Finding]:
        """Look at the server and its settings, and report what the store can promise with them. Changes nothing."""
        ...


@runtime_checkable
class Fronting(Protocol):
    """A store that can hold copies of another store's records, for `semel.stores.tiered`."""

    def open_front(self, *, timeout_ms: int) -> Fronting:
        """The same place for copies only: one that may forget, and is asked for no longer than `timeout_ms`."""
        ...

    def answer_copy(self, call: CopyCall[T]) -> T:
        """Answer a call about a copy."""
        ...

    def examine_front(self) -> Sequence[Finding]:
        """What `semel doctor` says of this place for copies. Changes nothing."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class AsyncFronting(Protocol):
    """The same for tasks."""

    def open_front(self, *, timeout_ms: int) -> AsyncFronting: ...
    async def answer_copy(self, call: CopyCall[T]) -> T: ...
    async def close(self) -> None: ...


def pass_on(within: object, outside: object, abilities: tuple[type, ...]) -> None:
    """Give `outside` those of `abilities` that the store `within` has.

    On the object and not on its class: `isinstance` must find what the store within has, and nothing else.
    """
    for ability in abilities:
        if isinstance(within, ability):
            for name in vars(ability):
                if not name.startswith("_"):
                    setattr(outside, name, getattr(within, name))
