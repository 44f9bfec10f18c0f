"""`run` and `arun`: an operation with all of its transactions, from the first BEGIN to its final answer.

They repeat a transaction that the database gave up. They also store final errors: what the work wrote is rolled back,
then the error is stored in a second transaction. Between the two a twin (a repeat that comes meanwhile) may run; then
the answer is the twin's.

The two differ only in `await`, and stand side by side.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, Unpack

from semel.codecs.seal import Seal
from semel.core.records import Key
from semel.runtime.arguments import check_options
from semel.runtime.options import block_key, scope_of
from semel.stores.sql.errors import retry_of
from semel.transaction.binding import within
from semel.transaction.blocks import TransactionBlock
from semel.transaction.settings import TransactionOptions

R = TypeVar("R")
C = TypeVar("C")
TRIES_MAX = 5
"""How often the work runs at most if the database gives its transaction up."""


class RunOptions(TransactionOptions, total=False):
    """The keyword arguments of `run` and `arun`."""

    scope: str
    tenant: str
    fingerprint: object
    returns: type[Any]
    schema: str
    seal: Seal | None


def run(
    begin: Callable[[], AbstractContextManager[C]],
    key: str | Key,
    work: Callable[[C], R],
    *,
    tries_max: int = TRIES_MAX,
    **options: Unpack[RunOptions],
) -> R:
    """Do `work(connection)` once for each key, in a transaction that `begin()` opens and commits.

    `begin` gives a connection or session with its transaction: `Session.begin`, `engine.begin`, `pool.connection`.
    By default `scope` is the full name of `work`: give it for a function that may be moved or renamed.
    """
    check_options(options, RunOptions, run)
    call: _Call[R] = _Call.of(key, work, options)
    for number in range(tries_max):
        try:
            return _once(begin, call, work)
        except Exception as error:
            if retry_of(error) is None or number + 1 == tries_max:
                raise
    raise ValueError(f"tries_max must be at least 1, not {tries_max}")


async def arun(
    begin: Callable[[], AbstractAsyncContextManager[C]],
    key: str | Key,
    work: Callable[[C], Awaitable[R]],
    *,
    tries_max: int = TRIES_MAX,
    **options: Unpack[RunOptions],
) -> R:
    """Do `await work(connection)` once for each key, in an async transaction. `run` says more."""
    check_options(options, RunOptions, arun)
    call: _Call[R] = _Call.of(key, work, options)
    for number in range(tries_max):
        try:
            return await _aonce(begin, call, work)
        except Exception as error:
            if retry_of(error) is None or number + 1 == tries_max:
                raise
    raise ValueError(f"tries_max must be at least 1, not {tries_max}")


class _Final(Exception):
    """Carries a final error out of its transaction, so that this is rolled back. A replayed error is raised itself."""

    def __init__(self, error: Exception) -> None:
        self.error = error


@dataclass(frozen=True, slots=True)
class _Call(Generic[R]):
    key: Key
    options: RunOptions

    @classmethod
    def of(cls, key: str | Key, work: Callable[..., object], options: RunOptions) -> _Call[R]:
        """By default the scope is the full name of the work."""
        tenant, scope = options.pop("tenant", ""), options.pop("scope", None)
        if not isinstance(key, Key):
            scope = scope_of(work, scope)
        return cls(block_key(key, tenant, scope), options)

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        return tuple(self.options.get("final_errors", ()))

    def block(self, connection: object) -> TransactionBlock[Any]:
        options: dict[str, Any] = {"returns": object, **self.options}
        bound = within(connection, schema=options.pop("schema", ""), seal=options.pop("seal", None))
        return bound.operation(self.key, **options)


def _once(begin: Callable[[], AbstractContextManager[C]], call: _Call[R], work: Callable[[C], R]) -> R:
    try:
        with begin() as connection, call.block(connection) as op:
            if not op.replayed:
                try:
                    op.result = work(connection)
                except call.errors as raised:
                    raise _Final(raised) from raised
        return op.outcome()  # type: ignore[no-any-return]
    except _Final as final:
        error = final.error
    with begin() as connection, call.block(connection) as op:
        if not op.replayed:
            op.fail(error)
    if op.error is not None:
        raise error
    return op.outcome()  # type: ignore[no-any-return]  # a twin's, which ran in between


async def _aonce(
    begin: Callable[[], AbstractAsyncContextManager[C]], call: _Call[R], work: Callable[[C], Awaitable[R]]
) -> R:
    try:
        async with begin() as connection, call.block(connection) as op:
            if not op.replayed:
                try:
                    op.result = await work(connection)
                except call.errors as raised:
                    raise _Final(raised) from raised
        return op.outcome()  # type: ignore[no-any-return]
    except _Final as final:
        error = final.error
    async with begin() as connection, call.block(connection) as op:
        if not op.replayed:
            op.fail(error)
    if op.error is not None:
        raise error
    return op.outcome()  # type: ignore[no-any-return]  # a twin's, which ran in between
