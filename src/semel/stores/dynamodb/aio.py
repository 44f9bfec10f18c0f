"""The async face of the DynamoDB store. DynamoDB has no batch of conditional writes, so calls go side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from itertools import count
from typing import Any, TypeVar

import aiobotocore.config
import aiobotocore.session

from semel.core.effects import Effect, Pause, Plan
from semel.core.records import Key
from semel.runtime.drive import adrive
from semel.runtime.local import AsyncOnce, PerLoop
from semel.store import Clock, Counts, Filter, Migration, Page
from semel.stores.batch_face import CoalescedFace
from semel.stores.dynamodb import operate, schema
from semel.stores.dynamodb.driver import SERVICE, DynamodbLinkState, load_models
from semel.stores.dynamodb.failures import failure_of
from semel.stores.dynamodb.queries import Request, Requests
from semel.stores.dynamodb.settings import DynamodbSettings
from semel.stores.poll_watch import AsyncPollingWatch
from semel.stores.waiters import changed_key

T = TypeVar("T")


class AsyncDynamodbLink(DynamodbLinkState):
    """The client of one event loop."""

    def __init__(self, settings: DynamodbSettings, clock: Clock | None) -> None:
        super().__init__(settings, clock)
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._opened = AsyncOnce()
        self._stack = AsyncExitStack()
        self._client: Any = None
        self.ready = AsyncOnce()

    async def run(self, plan: Plan[T]) -> T:
        if not self.ready.done:
            await self.make_ready()
        return await adrive(plan, self._perform)

    async def make_ready(self) -> None:
        await self.ready.do(lambda: adrive(self._get_ready(), self._perform))

    async def run_alone(self, plan: Plan[T]) -> T:
        return await adrive(plan, self._perform)

    async def close(self) -> None:
        await self._stack.aclose()

    def _forget_ready(self) -> None:
        self.ready = AsyncOnce()

    async def _open(self) -> None:
        session = aiobotocore.session.get_session()
        session.register_component("data_loader", load_models())
        choices = self._choices(aiobotocore.config.AioConfig)
        try:
            self._client = await self._stack.enter_async_context(session.create_client(SERVICE, **choices))
        except Exception as error:
            raise failure_of(error, self._settings) from error

    async def _perform(self, effect: Effect[Any]) -> Any:
        match effect:
            case Request():
                return await self._ask(effect)
            case Requests(requests):
                replies = await asyncio.gather(*map(self._ask, requests), return_exceptions=True)
                for reply in replies:
                    if isinstance(reply, BaseException):
                        raise reply
                return replies
            case Pause(pause_ms):
                await asyncio.sleep(pause_ms / 1000)
            case other:
                raise TypeError(f"no table performs {other!r}")

    async def _ask(self, request: Request) -> Any:
        if not self._opened.done:
            await self._opened.do(self._open)
        async with self._slots:
            sent_ms = self.clock.now_ms()
            try:
                async with asyncio.timeout(self._settings.late_s):
                    answer = await getattr(self._client, request.operation)(**self._arguments(request))
            except Exception as error:
                return self._explain(sent_ms, error)
        self._read(sent_ms, answer)
        return answer


class AsyncDynamodbStore(CoalescedFace):
    """For tasks of any number of event loops. Connects on first use, in each loop that uses it.

    There are as many lanes as requests may be under way at once, and a call takes one that is free. Calls that find
    none wait in a lane, and go side by side when it is free.
    """

    def __init__(self, settings: DynamodbSettings, *, clock: Clock | None = None) -> None:
        super().__init__()
        self._settings = settings
        self._timeout_s = settings.timeout_s
        self._late = f"{settings.shown}: no answer within {settings.timeout_s:g} s"
        self._link = PerLoop(lambda: AsyncDynamodbLink(settings, clock))
        self._watch = PerLoop(AsyncPollingWatch)
        self._turns = count()

    async def wait(self, key: Key, *, owner: str, timeout_ms: int) -> bool:
        return await self._watch.get().wait(key, owner, timeout_ms / 1000, self.get)

    async def scan(self, filter: Filter = Filter(), *, cursor: str | None = None, limit: int = 100) -> Page:
        """Reads the table from the cursor on until the page is full: a filter that matches little reads all of it."""
        link = self._link.get()
        return await link.run(operate.scan(filter, cursor, limit, link.now_ms))

    async def counts(self) -> Counts:
        """Reads the whole table: for an operator, not for every request."""
        link = self._link.get()
        return await link.run(operate.counts(link.now_ms))

    async def purge(self, *, limit: int) -> int:
        """Reads the whole table, or until `limit` is reached. DynamoDB collects by itself, without a charge."""
        link = self._link.get()
        return await link.run(link.purge(limit))

    def migrations(self) -> Sequence[Migration]:
        return schema.printable(self._settings)

    async def migrate(self) -> Sequence[int]:
        return await self._link.get().run_alone(schema.migrate(self._settings))

    async def close(self) -> None:
        await self._drain()
        if link := self._link.take():
            await link.close()

    def _call(self, call: Effect[T]) -> Coroutine[Any, Any, T]:
        if self._settings.migrate and not self._link.get().ready.done:
            return self._migrate_and_call(call)
        return super()._call(call)

    async def _migrate_and_call(self, call: Effect[T]) -> T:
        """The first calls wait for the table, which may take longer than a call may."""
        await self._link.get().make_ready()
        return await super()._call(call)

    def _lane(self, call: Effect[Any]) -> object:
        lanes = self._lanes.get()
        for name in range(self._settings.concurrency):
            if name not in lanes or lanes[name].is_idle:
                return name
        return next(self._turns) % self._settings.concurrency

    async def _send(self, calls: Sequence[Any]) -> Sequence[Any]:
        link = self._link.get()
        replies: list[Any] = await asyncio.gather(
            *(link.run(link.answer(call)) for call in calls), return_exceptions=True
        )
        wake = self._watch.get().waiters.wake
        for call, reply in zip(calls, replies, strict=True):
            if not isinstance(reply, BaseException) and (key := changed_key(call, reply)) is not None:
                wake(key)
        return replies
