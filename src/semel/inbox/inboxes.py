"""The inbox: the messages of one handler, each of which takes effect once, however often it is delivered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, TypeVar, Unpack, overload

from semel.core.messages import Delivery
from semel.core.records import Key
from semel.errors import Misuse
from semel.inbox.consumers import AsyncConsumer, Consumer
from semel.inbox.ids import MessageId, find_by
from semel.inbox.leases import AsyncLeasedTries, LeasedTries
from semel.inbox.receipts import ReceiveBlock
from semel.inbox.settings import ConsumerOptions, ConsumerSettings, InboxOptions, InboxSettings
from semel.inbox.transactions import AsyncTransactionTries, TransactionTries
from semel.runtime.arguments import check_function, check_options, is_async
from semel.runtime.host import async_host_of, host_of
from semel.store import AsyncStore, Store

C = TypeVar("C")
WITH_BEGIN = ("wait", "schema", "seal", "tries_max")
"""Options of a consumer that are about its transactions."""


class AnyInbox:
    """What both kinds of inbox share."""

    def __init__(self, handler: str, store: Store | AsyncStore | str | None, options: InboxOptions) -> None:
        check_options(options, InboxOptions, type(self))
        self._settings = InboxSettings.of(handler, options)
        self._store = store

    @property
    def handler(self) -> str:
        return self._settings.handler

    def receive(self, message_id: str, fingerprint: object = None) -> ReceiveBlock:
        """A block around the handling of one message whose effect is elsewhere: a mail, a call to a provider.

            with inbox.receive(message.id) as receipt:
                if receipt.duplicate:
                    return
                mailer.send(…, key=receipt.derive("mail"))

        (`async with` for an `AsyncInbox`.) The lease is renewed while the block runs, and leaving the block records
        that the message was handled. After a crash the outcome is unknown: under "at-most-once" a redelivery raises
        `OutcomeUnknown`, under "at-least-once" it runs the block again. `fingerprint` is any data that identifies the
        message: the same id with another one raises `KeyReused`.
        """
        settings = self._settings.leased()
        key = Key(self._settings.tenant, self._settings.handler, message_id)
        return ReceiveBlock(key, fingerprint, self._leasing_store(), settings)

    def _leasing_store(self) -> Store | AsyncStore | str:
        if self._store is None:
            raise Misuse(
                f"the inbox {self.handler!r} has no store: give store= for messages that are handled under a lease, or "
                "begin= for a consumer whose handler writes to your database"
            )
        return self._store

    def _choose(self, handle: object, id: MessageId, begin: object, options: ConsumerOptions) -> ConsumerSettings:
        check_options(options, ConsumerOptions, self.consumer)  # type: ignore[attr-defined]
        payload = options.get("payload_fingerprint", True)
        check_function(handle, "the handler")
        check_function(begin, "begin=")
        unused = [name for name in WITH_BEGIN if name in options] if begin is None else []
        if begin is not None and "reconcile" in options:
            raise TypeError("reconcile= is for consumers without begin=: in a transaction no outcome is unknown")
        if unused:
            raise TypeError(f"{unused[0]}= is about transactions: give begin=, or leave it out")
        if not isinstance(payload, bool) and not callable(payload):  # pyright: ignore
            raise TypeError(f"payload_fingerprint= must be True, False or a function of a Delivery, not {payload!r}")
        return ConsumerSettings(self._settings, find_by(id), payload, options)


class Inbox(AnyInbox):
    """Handles each message once, however often it is delivered. For threads.

    ```python
    from semel.inbox import Delivery, Inbox

    sent = []

    def send_mail(delivery: Delivery) -> None:
        sent.append(delivery.payload)

    inbox = Inbox("mailer", store="sqlite:///semel.db")
    consumer = inbox.consumer(send_mail)
    for _ in range(2):  # a broker may deliver a message again
        consumer(Delivery(b"hello", id="message-1"))
    assert sent == [b"hello"]
    ```

    `handler` names what is done with the messages: two inboxes with different names each handle a message once.
    `store` is needed for messages that are handled under a lease, without `begin=`.
    """

    def __init__(
        self, handler: str, *, store: Store | AsyncStore | str | None = None, **options: Unpack[InboxOptions]
    ) -> None:
        super().__init__(handler, store, options)
        if store is not None:
            host_of(store)  # fails at once if the store does not fit

    @overload
    def consumer(
        self,
        fn: Callable[[C, Delivery], object],
        *,
        begin: Callable[[], AbstractContextManager[C]],
        id: MessageId = ...,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer: ...
    @overload
    def consumer(
        self,
        fn: Callable[[Delivery], object],
        *,
        begin: None = None,
        id: MessageId = ...,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer: ...
    def consumer(
        self,
        fn: Callable[..., object],
        *,
        begin: Callable[[], AbstractContextManager[Any]] | None = None,
        id: MessageId = "property",
        **options: Unpack[ConsumerOptions],
    ) -> Consumer:
        """A function from a delivery to a verdict, which every adapter uses.

        With `begin`, a function that opens and commits a transaction (`Session.begin`, `engine.begin`,
        `pool.connection`), `fn(connection, delivery)` runs in that transaction, together with the message's record:
        what it writes there takes effect exactly once. Without `begin`, `fn(delivery)` runs under a lease in the store
        of the inbox, with the guarantee of its policy.

        `id` says where the message's id is: "property" (the broker's own, or the header `semel-id`), `header("name")`,
        `field("/path")` in a JSON payload, or a function of the delivery.
        """
        if is_async(fn):
            raise TypeError("an Inbox is for plain functions: use AsyncInbox for a coroutine function")
        settings = self._choose(fn, id, begin, options)
        if begin is not None:
            return Consumer(TransactionTries(begin, fn, settings), settings)
        return Consumer(LeasedTries(self._leasing_store(), fn, settings), settings)


class AsyncInbox(AnyInbox):
    """An `Inbox` for tasks: `async with inbox.receive(…)`, and coroutine functions as handlers."""

    def __init__(
        self, handler: str, *, store: Store | AsyncStore | str | None = None, **options: Unpack[InboxOptions]
    ) -> None:
        super().__init__(handler, store, options)
        if store is not None:
            async_host_of(store)

    @overload
    def consumer(
        self,
        fn: Callable[[C, Delivery], Awaitable[object]],
        *,
        begin: Callable[[], AbstractAsyncContextManager[C]],
        id: MessageId = ...,
        **options: Unpack[ConsumerOptions],
    ) -> AsyncConsumer: ...
    @overload
    def consumer(
        self,
        fn: Callable[[Delivery], Awaitable[object]],
        *,
        begin: None = None,
        id: MessageId = ...,
        **options: Unpack[ConsumerOptions],
    ) -> AsyncConsumer: ...
    def consumer(
        self,
        fn: Callable[..., Awaitable[object]],
        *,
        begin: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
        id: MessageId = "property",
        **options: Unpack[ConsumerOptions],
    ) -> AsyncConsumer:
        """The same for a coroutine function. A plain one is refused: it would block the event loop, and with it the
        renewal of every lease. Give it to an `Inbox`, or call it with `asyncio.to_thread`.
        """
        if not is_async(fn):
            raise TypeError(
                "an AsyncInbox takes a coroutine function: a plain one would block the event loop. Write `async def`, "
                "call it with asyncio.to_thread, or use Inbox in threads"
            )
        settings = self._choose(fn, id, begin, options)
        if begin is not None:
            return AsyncConsumer(AsyncTransactionTries(begin, fn, settings), settings)
        return AsyncConsumer(AsyncLeasedTries(self._leasing_store(), fn, settings), settings)
