"""Stores for HTTP fronts whose handlers write to the same database: one transaction for each request.

    store = AsyncTransactionStore(async_sessionmaker(engine).begin)
    app.add_middleware(IdempotencyMiddleware, store=store, policy=Policy(guarantee="exactly-once", required=True))

The front claims a key, runs the handler, stores the answer, and only then sends it. Here the first begins a transaction
and the third commits it; the handler writes through `store.current()`. No front needs to know more about it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TypeVar

from semel.core.effects import Claim, Complete
from semel.core.policy import Duration
from semel.core.records import Claimed, Key, Lease, Record, Result
from semel.drive import adrive, drive
from semel.transaction.plans import Transactions
from semel.transaction.units import AsyncUnit, Unit, aperform, perform

C = TypeVar("C")


class TransactionStore(Transactions[C]):
    """For threads: WSGI, Flask, and Django with `begin=semel.transaction.drivers.django.atomic`.

    `begin` opens a transaction, gives its connection or session, and commits it, as `Session.begin` of SQLAlchemy does.
    `wait` bounds how long a twin waits for the first.
    """

    def __init__(
        self, begin: Callable[[], AbstractContextManager[C]], *, wait: Duration | None = None, schema: str = ""
    ) -> None:
        super().__init__(lambda: Unit(begin, schema), wait, threads=True)

    def claim(
        self, key: Key, fingerprint: str, *, owner: str, lease_ms: int, retention_ms: int, takeover: bool
    ) -> Claimed:
        return drive(self.claiming(Claim(key, fingerprint, owner, lease_ms, retention_ms, takeover).checked()), perform)

    def renew(self, lease: Lease, *, lease_ms: int) -> Lease | None:
        return self.renewed(lease, lease_ms)

    def complete(self, lease: Lease, result: Result, *, retention_ms: int, refuse_ms: int = 0) -> bool:
        return drive(self.completing(Complete(lease, result, retention_ms, refuse_ms).checked()), perform)

    def release(self, lease: Lease) -> bool:
        return drive(self.releasing(lease), perform)

    def get(self, key: Key) -> Record | None:
        return drive(self.reading(key), perform)

    def purge(self, *, limit: int) -> int:
        """Nothing: the records are those of the ordinary store of this database, which purges them."""
        return 0

    def close(self) -> None:
        drive(self.closing(), perform)


class AsyncTransactionStore(Transactions[C]):
    """For tasks: ASGI, Starlette, FastAPI, Litestar, Quart."""

    def __init__(
        self, begin: Callable[[], AbstractAsyncContextManager[C]], *, wait: Duration | None = None, schema: str = ""
    ) -> None:
        super().__init__(lambda: AsyncUnit(begin, schema), wait, threads=False)

    async def claim(
        self, key: Key, fingerprint: str, *, owner: str, lease_ms: int, retention_ms: int, takeover: bool
    ) -> Claimed:
        return await adrive(
            self.claiming(Claim(key, fingerprint, owner, lease_ms, retention_ms, takeover).checked()), aperform
        )

    async def renew(self, lease: Lease, *, lease_ms: int) -> Lease | None:
        return self.renewed(lease, lease_ms)

    async def complete(self, lease: Lease, result: Result, *, retention_ms: int, refuse_ms: int = 0) -> bool:
        return await adrive(self.completing(Complete(lease, result, retention_ms, refuse_ms).checked()), aperform)

    async def release(self, lease: Lease) -> bool:
        return await adrive(self.releasing(lease), aperform)

    async def get(self, key: Key) -> Record | None:
        return await adrive(self.reading(key), aperform)

    async def purge(self, *, limit: int) -> int:
        """Nothing: the records are those of the ordinary store of this database, which purges them."""
        return 0

    async def close(self) -> None:
        await adrive(self.closing(), aperform)
