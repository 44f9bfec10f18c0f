"""Handling messages in your own transaction: the record and the handler's rows are committed together, or not at all.

Threads and tasks differ only in `await`; what a failure means is in `failures`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Generic, NamedTuple, TypeVar

from semel.core.attempts import CountAttempt
from semel.core.consumer import NamedMessage, Tried
from semel.core.messages import Delivery
from semel.core.verdicts import Handling
from semel.errors import NotExecuted
from semel.inbox.failures import HandlingStage, Progress, judge_transaction
from semel.inbox.settings import ConsumerSettings
from semel.transaction.attempts import acount_attempt, ais_recorded, count_attempt, is_recorded
from semel.transaction.binding import within
from semel.transaction.reception import MessageBlock, ReceivedMessage

C = TypeVar("C")
NOT_COMMITTED = Tried(
    Handling.STORE_AWAY,
    "begin= did not commit: the handler's rows and the record are gone. Give a function whose context manager commits "
    "when it is left, such as Session.begin, engine.begin or pool.connection",
)
SWALLOWED = Tried(Handling.RAISED, "the handler raised, and the context manager of begin= hid its error")


class Incoming(NamedTuple):
    """A delivery, and the message that it is."""

    delivery: Delivery
    message: NamedMessage


class MessageTransactions:
    """What threads and tasks share: the block around one message, and how a try ended."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self._settings = settings
        self._schema = settings.options.get("schema", "")
        self._seal = settings.options.get("seal")
        self._known_to_commit = False

    def _block(self, connection: Any, message: NamedMessage) -> MessageBlock:
        key = message.key
        block: MessageBlock = within(connection, schema=self._schema, seal=self._seal).receive(
            key.name,
            handler=key.scope,
            tenant=key.tenant,
            fingerprint=message.fingerprint or None,
            retention=self._settings.inbox.policy.retention,
            wait=self._settings.options.get("wait"),
        )
        return block

    def _judge(self, progress: Progress, error: Exception) -> Tried:
        """By what the handler raised, if it did: a rollback that fails then would hide it."""
        return judge_transaction(progress.stage, progress.failed or error, self._settings.inbox.final_errors)

    @staticmethod
    def _close(received: ReceivedMessage, progress: Progress) -> None:
        progress.stage = HandlingStage.CLOSING
        if received.nothing_was_done:
            raise NotExecuted("the handler declared that nothing was done")


class TransactionTries(MessageTransactions, Generic[C]):
    """For threads."""

    def __init__(
        self,
        begin: Callable[[], AbstractContextManager[C]],
        handle: Callable[[C, Delivery], object],
        settings: ConsumerSettings,
    ) -> None:
        super().__init__(settings)
        self._begin = begin
        self._handle = handle

    def once(self, incoming: Incoming) -> Tried:
        progress = Progress()
        handling = Handling.HANDLED
        try:
            with self._begin() as connection:
                handling = self._receive(connection, incoming, progress)
                progress.stage = HandlingStage.COMMITTING
            if progress.stage is not HandlingStage.COMMITTING:
                return SWALLOWED
            if handling is Handling.HANDLED and not self._is_kept(incoming.message):
                return NOT_COMMITTED
            return Tried(handling)
        except Exception as error:
            return self._judge(progress, error)

    def together(self, several: Sequence[Incoming]) -> tuple[Tried, ...] | None:
        """All of them in one transaction; None if anything failed, and then nothing of it was kept."""
        progress = Progress()
        tried: tuple[Tried, ...] = ()
        try:
            with self._begin() as connection:
                tried = tuple(Tried(self._receive(connection, incoming, progress)) for incoming in several)
                progress.stage = HandlingStage.COMMITTING
            handled = first_handled(several, tried)
            if progress.stage is not HandlingStage.COMMITTING or (handled and not self._is_kept(handled)):
                return None
            return tried
        except Exception:
            return None

    def count(self, call: CountAttempt) -> int:
        with self._begin() as connection:
            return count_attempt(connection, call, schema=self._schema)

    def _receive(self, connection: C, incoming: Incoming, progress: Progress) -> Handling:
        progress.stage = HandlingStage.OPENING
        with self._block(connection, incoming.message) as received:
            if received.duplicate:
                return Handling.DUPLICATE
            progress.stage = HandlingStage.HANDLING
            try:
                self._handle(connection, incoming.delivery)
            except Exception as error:
                progress.failed = error
                raise
            self._close(received, progress)
        return Handling.HANDLED

    def _is_kept(self, message: NamedMessage) -> bool:
        """Look once whether `begin` commits: without that, messages would be acknowledged and lost."""
        if not self._known_to_commit:
            with self._begin() as connection:
                self._known_to_commit = is_recorded(connection, message.key, schema=self._schema)
        return self._known_to_commit


class AsyncTransactionTries(MessageTransactions, Generic[C]):
    """For tasks."""

    def __init__(
        self,
        begin: Callable[[], AbstractAsyncContextManager[C]],
        handle: Callable[[C, Delivery], Awaitable[object]],
        settings: ConsumerSettings,
    ) -> None:
        super().__init__(settings)
        self._begin = begin
        self._handle = handle

    async def once(self, incoming: Incoming) -> Tried:
        progress = Progress()
        handling = Handling.HANDLED
        try:
            async with self._begin() as connection:
                handling = await self._receive(connection, incoming, progress)
                progress.stage = HandlingStage.COMMITTING
            if progress.stage is not HandlingStage.COMMITTING:
                return SWALLOWED
            if handling is Handling.HANDLED and not await self._is_kept(incoming.message):
                return NOT_COMMITTED
            return Tried(handling)
        except Exception as error:
            return self._judge(progress, error)

    async def together(self, several: Sequence[Incoming]) -> tuple[Tried, ...] | None:
        progress = Progress()
        tried: tuple[Tried, ...] = ()
        try:
            async with self._begin() as connection:
                tried = tuple(
                    [Tried(await self._receive(connection, incoming, progress)) for incoming in several],
                )
                progress.stage = HandlingStage.COMMITTING
            handled = first_handled(several, tried)
            if progress.stage is not HandlingStage.COMMITTING or (handled and not await self._is_kept(handled)):
                return None
            return tried
        except Exception:
            return None

    async def count(self, call: CountAttempt) -> int:
        async with self._begin() as connection:
            return await acount_attempt(connection, call, schema=self._schema)

    async def _receive(self, connection: C, incoming: Incoming, progress: Progress) -> Handling:
        progress.stage = HandlingStage.OPENING
        async with self._block(connection, incoming.message) as received:
            if received.duplicate:
                return Handling.DUPLICATE
            progress.stage = HandlingStage.HANDLING
            try:
                await self._handle(connection, incoming.delivery)
            except Exception as error:
                progress.failed = error
                raise
            self._close(received, progress)
        return Handling.HANDLED

    async def _is_kept(self, message: NamedMessage) -> bool:
        if not self._known_to_commit:
            async with self._begin() as connection:
                self._known_to_commit = await ais_recorded(connection, message.key, schema=self._schema)
        return self._known_to_commit


def first_handled(several: Sequence[Incoming], tried: Sequence[Tried]) -> NamedMessage | None:
    """The first message that was handled now, and not before."""
    pairs = zip(several, tried, strict=False)
    return next((incoming.message for incoming, each in pairs if each.handling is Handling.HANDLED), None)
