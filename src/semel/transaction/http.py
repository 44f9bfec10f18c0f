"""Stores for HTTP fronts whose handlers write to the same database: one transaction for each request.

    store = AsyncTransactionStore(async_sessionmaker(engine).begin)
    app.add_middleware(IdempotencyMiddleware, store=store, policy=Policy(guarantee="exactly-once", required=True))

The front (the middleware) calls `request()` for each keyed request. One task or thread claims the key with it, runs the
handler, which writes through `store.current()`, stores the answer, and only then sends it. At its end it calls `end()`.
No other task or thread uses the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Generic, TypeVar

from semel.codecs.seal import Seal, check_seal
from semel.core.effects import Claim, Complete
from semel.core.policy import Policy
from semel.core.policy_values import Duration
from semel.core.records import Claimed, Key, Lease, Record, Result
from semel.errors import Misuse
from semel.runtime.drive import adrive, drive
from semel.runtime.local import PerLoop, PerProcess
from semel.runtime.operation import current_operation
from semel.transaction.requests import RequestPlans
from semel.transaction.twins import AsyncTwins, Twins
from semel.transaction.units import AsyncUnit, Unit, aperform, perform

C = TypeVar("C")
HELD_MAX = 64 * 1024 * 1024


class RequestTransaction(RequestPlans[C]):
    """The transaction of one request, in the form of a store, for the plans of a front. For the thread that runs it."""

    def claim(
        self, key: Key, fingerprint: str, *, owner: str, lease_ms: int, retention_ms: int, takeover: bool
    ) -> Claimed:
        return drive(self.claiming(Claim(key, fingerprint, owner, lease_ms, retention_ms, takeover).checked()), perform)

    def renew(self, lease: Lease, *, lease_ms: int) -> Lease | None:
        """The transaction is the lease: it lasts as long as the transaction is open."""
        return lease

    def complete(self, lease: Lease, result: Result, *, retention_ms: int, refuse_ms: int = 0) -> bool:
        return drive(self.completing(Complete(lease, result, retention_ms, refuse_ms).checked()), perform)

    def release(self, lease: Lease) -> bool:
        self.end()
        return True

    def get(self, key: Key) -> Record | None:
        return drive(self.reading(key), perform)

    def wait(self, key: Key, *, owner: str, timeout_ms: int) -> bool:
        assert isinstance(self._twins, Twins)
        self._twins.wait(key, timeout_ms, next(self._rests_ms))
        return True

    def flush(self) -> None:
        drive(self.flushing(), perform)

    def end(self) -> None:
        """Roll back what was not committed. Safe to repeat."""
        drive(self.ending(), perform)

    def purge(self, *, limit: int) -> int:
        """Nothing: the records are those of the ordinary store of this database, which purges them."""
        return 0

    def close(self) -> None:
        self.end()


class AsyncRequestTransaction(RequestPlans[C]):
    """The same for the task that runs the request. It differs by `await` only: what is decided is in `RequestPlans`."""

    async def claim(
        self, key: Key, fingerprint: str, *, owner: str, lease_ms: int, retention_ms: int, takeover: bool
    ) -> Claimed:
        call = Claim(key, fingerprint, owner, lease_ms, retention_ms, takeover).checked()
        return await adrive(self.claiming(call), aperform)

    async def renew(self, lease: Lease, *, lease_ms: int) -> Lease | None:
        return lease

    async def complete(self, lease: Lease, result: Result, *, retention_ms: int, refuse_ms: int = 0) -> bool:
        return await adrive(self.completing(Complete(lease, result, retention_ms, refuse_ms).checked()), aperform)

    async def release(self, lease: Lease) -> bool:
        await self.end()
        return True

    async def get(self, key: Key) -> Record | None:
        return await adrive(self.reading(key), aperform)

    async def wait(self, key: Key, *, owner: str, timeout_ms: int) -> bool:
        assert isinstance(self._twins, AsyncTwins)
        await self._twins.wait(key, timeout_ms, next(self._rests_ms))
        return True

    async def flush(self) -> None:
        await adrive(self.flushing(), aperform)

    async def end(self) -> None:
        await adrive(self.ending(), aperform)

    async def purge(self, *, limit: int) -> int:
        return 0

    async def close(self) -> None:
        await self.end()


class RequestTransactions(Generic[C]):
    """What both stores share. `wait` bounds how long a twin (a repeat that comes meanwhile) waits, 10 s by default."""

    in_transactions = True
    """Fronts look for this: `Policy(guarantee="exactly-once")` is possible with such a store."""

    def __init__(self, wait: Duration | None, schema: str, held_max: int, seal: Seal | None) -> None:
        check_seal(seal)
        self._seal = seal
        self._wait_ms = None if wait is None else Policy(wait=wait).wait_ms
        self._schema = schema
        self._held_max = Policy(result_max=held_max).result_max

    def current(self) -> C:
        """The connection or session of the current request: its handler writes through it, and never ends it.

        It is a dependency for FastAPI: `session: Annotated[Session, Depends(store.current)]`.
        """
        operation = current_operation()
        request: Any = None if operation is None else operation.transaction
        connection: C | None = None if request is None or request.source is not self else request.connection
        if connection is None:
            raise Misuse(
                "no transaction is open for this request: it carries no idempotency key, or its route is not protected "
                "by this store. Policy(required=True) refuses requests without a key."
            )
        return connection


class TransactionStore(RequestTransactions[C]):
    """For threads: WSGI, Flask, and Django with `begin=semel.connections.django.atomic`.

    `begin` opens a transaction, gives its connection or session, and commits it, as `Session.begin` of SQLAlchemy does.
    An answer that is longer than `Policy.result_max` is held until the commit, up to `held_max` bytes. `seal` is the
    one of that database's sealed store, if results are sealed.
    """

    def __init__(
        self,
        begin: Callable[[], AbstractContextManager[C]],
        *,
        wait: Duration | None = None,
        schema: str = "",
        held_max: int = HELD_MAX,
        seal: Seal | None = None,
    ) -> None:
        super().__init__(wait, schema, held_max, seal)
        self._begin = begin
        self._twins = PerProcess(Twins)

    def request(self) -> RequestTransaction[C]:
        """For fronts: the transaction of one request, which has not begun."""
        return RequestTransaction(
            self,
            lambda: Unit(self._begin, self._schema),
            self._twins.get(),
            wait_ms=self._wait_ms,
            held_max=self._held_max,
            seal=self._seal,
        )

    def close(self) -> None:
        """Nothing: each request ends what it began."""


class AsyncTransactionStore(RequestTransactions[C]):
    """For tasks: ASGI, Starlette, FastAPI, Litestar, Quart."""

    def __init__(
        self,
        begin: Callable[[], AbstractAsyncContextManager[C]],
        *,
        wait: Duration | None = None,
        schema: str = "",
        held_max: int = HELD_MAX,
        seal: Seal | None = None,
    ) -> None:
        super().__init__(wait, schema, held_max, seal)
        self._begin = begin
        self._twins = PerLoop(AsyncTwins)

    def request(self) -> AsyncRequestTransaction[C]:
        """The transaction of one request. The middleware calls this."""
        return AsyncRequestTransaction(
            self,
            lambda: AsyncUnit(self._begin, self._schema),
            self._twins.get(),
            wait_ms=self._wait_ms,
            held_max=self._held_max,
            seal=self._seal,
        )

    async def close(self) -> None:
        """Nothing: each request ends what it began."""
