"""Handling messages under a lease, for effects elsewhere: the guarantee is the one that the policy declares."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial

from semel.core.attempts import CountAttempt
from semel.core.consumer import Tried
from semel.core.messages import Delivery
from semel.core.verdicts import Handling
from semel.errors import NotExecuted
from semel.inbox.failures import HandlingStage, Progress, judge_lease, judge_settlement, reason_of
from semel.inbox.receipts import LeasedReceipt, ReceiveBlock
from semel.inbox.settings import ConsumerSettings
from semel.inbox.transactions import Incoming
from semel.runtime.host import async_host_of, host_of
from semel.runtime.options import CallSettings
from semel.store import AsyncAttemptCounting, AsyncStore, AttemptCounting, Store


class MessageLeases:
    """What threads and tasks share."""

    def __init__(self, store: Store | AsyncStore | str, settings: ConsumerSettings) -> None:
        self._store = store
        self._settings = settings
        self._reconcile = settings.options.get("reconcile")
        self._call_settings: CallSettings[None] = settings.inbox.leased(self._reconcile)

    def _block(self, incoming: Incoming) -> ReceiveBlock:
        ask = None if self._reconcile is None else partial(self._reconcile, incoming.delivery)
        message = incoming.message
        return ReceiveBlock(message.key, message.fingerprint or None, self._store, self._call_settings, ask)

    def _judge(self, progress: Progress, error: Exception, receipt: LeasedReceipt | None) -> Tried:
        policy = self._settings.inbox.policy
        if error is progress.failed and receipt is not None:
            undone = receipt.nothing_was_done or isinstance(error, (NotExecuted, *policy.release_exceptions))
            if undone:
                return Tried(Handling.NOTHING_DONE, reason_of(error))
        return judge_lease(error, progress.failed, self._settings.inbox.final_errors, takeover=policy.takeover)


class LeasedTries(MessageLeases):
    """For threads."""

    def __init__(
        self, store: Store | AsyncStore | str, handle: Callable[[Delivery], object], settings: ConsumerSettings
    ) -> None:
        super().__init__(store, settings)
        self._handle = handle
        self._counting = host_of(store).store
        if self._call_settings.policy.takeover and not isinstance(self._counting, AttemptCounting):
            raise cannot_count(self._counting)
        if inspect.iscoroutinefunction(self._reconcile):
            raise TypeError("reconcile= is a coroutine function: use AsyncInbox, or give a plain function")

    def once(self, incoming: Incoming) -> Tried:
        progress = Progress()
        receipt: LeasedReceipt | None = None
        block = self._block(incoming)
        try:
            with block as receipt:
                if receipt.duplicate:
                    return Tried(Handling.DUPLICATE)
                progress.stage = HandlingStage.HANDLING
                try:
                    self._handle(incoming.delivery)
                except Exception as error:
                    progress.failed = error
                    raise
        except Exception as error:
            return self._judge(progress, error, receipt)
        return judge_settlement(block.settlement)

    def count(self, call: CountAttempt) -> int:
        assert isinstance(self._counting, AttemptCounting)
        return self._counting.count_attempt(call.key, call.error, retention_ms=call.retention_ms)


class AsyncLeasedTries(MessageLeases):
    """For tasks."""

    def __init__(
        self,
        store: Store | AsyncStore | str,
        handle: Callable[[Delivery], Awaitable[object]],
        settings: ConsumerSettings,
    ) -> None:
        super().__init__(store, settings)
        self._handle = handle
        self._counting = async_host_of(store).store
        if self._call_settings.policy.takeover and not isinstance(self._counting, AsyncAttemptCounting):
            raise cannot_count(self._counting)

    async def once(self, incoming: Incoming) -> Tried:
        progress = Progress()
        receipt: LeasedReceipt | None = None
        block = self._block(incoming)
        try:
            async with block as receipt:
                if receipt.duplicate:
                    return Tried(Handling.DUPLICATE)
                progress.stage = HandlingStage.HANDLING
                try:
                    await self._handle(incoming.delivery)
                except Exception as error:
                    progress.failed = error
                    raise
        except Exception as error:
            return self._judge(progress, error, receipt)
        return judge_settlement(block.settlement)

    async def count(self, call: CountAttempt) -> int:
        assert isinstance(self._counting, AsyncAttemptCounting)
        return await self._counting.count_attempt(call.key, call.error, retention_ms=call.retention_ms)


def cannot_count(store: object) -> TypeError:
    return TypeError(
        f'a consumer with guarantee="at-least-once" counts the failed attempts of a message in its store, and '
        f"{type(store).__name__} cannot: it has no count_attempt()"
    )
