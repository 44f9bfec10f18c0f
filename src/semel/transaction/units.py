"""The unit: one transaction from its beginning to its end, sync and async, and the steps that plans take on it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack, suppress
from typing import Any, Generic, TypeVar, cast

from semel.connections import AsyncDriver, Driver, driver_for
from semel.core.effects import Effect, Plan, do
from semel.errors import StoreError
from semel.runtime.drive import adrive, drive
from semel.stores.sql.engine import Engine
from semel.stores.sql.statements import Script

C = TypeVar("C")
T = TypeVar("T")


class StepFailed(StoreError):
    """A step raised `error`. Plans catch this."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error) or type(error).__name__)
        self.error = error


class RolledBack(StoreError):
    """Raised into the context manager of a transaction, so that it ends without its writes."""


class TransactionStep(Effect[Any], frozen=True):
    """Call this function; that of an async unit returns a coroutine."""

    act: Callable[[], Any]


def step(act: Callable[[], Any]) -> Plan[Any]:
    return do(TransactionStep(act))


def perform(effect: Effect[Any]) -> Any:
    assert isinstance(effect, TransactionStep)
    try:
        return effect.act()
    except Exception as error:
        raise StepFailed(error) from error


async def aperform(effect: Effect[Any]) -> Any:
    assert isinstance(effect, TransactionStep)
    try:
        return await effect.act()
    except Exception as error:
        raise StepFailed(error) from error


class Unit(Generic[C]):
    """For threads."""

    def __init__(self, begin: Callable[[], AbstractContextManager[C]], schema: str) -> None:
        self._begin = begin
        self._schema = schema
        self._stack = ExitStack()
        self.connection: C | None = None
        self._driver: Driver | None = None

    @property
    def driver(self) -> Driver:
        assert self._driver is not None, "the transaction has begun"
        return self._driver

    @property
    def engine(self) -> Engine:
        return self.driver.engine

    def begin(self) -> None:
        self.connection = self._stack.enter_context(self._begin())
        self._driver = cast(Driver, driver_for(self.connection, self._schema))
        self._driver.check()

    def run(self, script: Script[T]) -> T:
        return drive(script, self.driver.perform)

    def flush(self) -> None:
        self.driver.flush()

    def is_lost(self) -> bool:
        """Whether the connection is gone. The database rolls back by itself then."""
        return self._driver is not None and self._driver.is_lost()

    def commit(self) -> None:
        self._stack.close()

    def roll_back(self) -> None:
        """Roll back. If that fails, the connection is broken, and the database rolls back by itself."""
        with suppress(Exception):
            self._stack.__exit__(RolledBack, RolledBack(), None)


class AsyncUnit(Generic[C]):
    """For tasks: the same with `await`, line by line."""

    def __init__(self, begin: Callable[[], AbstractAsyncContextManager[C]], schema: str) -> None:
        self._begin = begin
        self._schema = schema
        self._stack = AsyncExitStack()
        self.connection: C | None = None
        self._driver: AsyncDriver | None = None

    @property
    def driver(self) -> AsyncDriver:
        assert self._driver is not None, "the transaction has begun"
        return self._driver

    @property
    def engine(self) -> Engine:
        return self.driver.engine

    async def begin(self) -> None:
        self.connection = await self._stack.enter_async_context(self._begin())
        self._driver = cast(AsyncDriver, driver_for(self.connection, self._schema))
        await self._driver.check()

    async def run(self, script: Script[T]) -> T:
        return await adrive(script, self.driver.perform)

    async def flush(self) -> None:
        await self.driver.flush()

    def is_lost(self) -> bool:
        """Whether the connection is gone. The database rolls back by itself then."""
        return self._driver is not None and self._driver.is_lost()

    async def commit(self) -> None:
        await self._stack.aclose()

    async def roll_back(self) -> None:
        with suppress(Exception):
            await self._stack.__aexit__(RolledBack, RolledBack(), None)
