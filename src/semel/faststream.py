"""FastStream: `protect(broker, "orders", store="postgresql://…", dead_letter=…)`: each message takes effect once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, Unpack, cast

from faststream import AckPolicy, BaseMiddleware
from faststream.exceptions import AckMessage, NackMessage, RejectMessage

from semel.core.messages import Delivery
from semel.core.verdicts import Settling, Verdict
from semel.errors import BrokerMisconfigured
from semel.inbox import AsyncConsumer, AsyncInbox
from semel.inbox.ids import MessageId
from semel.inbox.settings import InboxOptions
from semel.runtime.arguments import check_options
from semel.store import AsyncStore

__all__ = ["protect"]

Bury = Callable[[Delivery, Verdict], Awaitable[object]]
Next = Callable[[], Awaitable[object]]
SAFE = (AckPolicy.NACK_ON_ERROR, AckPolicy.MANUAL)
WITH_ACKNOWLEDGEMENTS = frozenset(
    (
        "RabbitSubscriber",
        "PullStreamSubscriber",
        "ConcurrentPullStreamSubscriber",
        "PushStreamSubscriber",
        "ConcurrentPushStreamSubscriber",
        "StreamSubscriber",
        "StreamConcurrentSubscriber",
    )
)
IN_PROGRESS_S = 5.0
"""How often NATS is told that a message is being handled. The `ack_wait` of the consumer must be longer: it is 30 s."""
_NEXT: ContextVar[Callable[[object], Awaitable[object]]] = ContextVar("semel_faststream")


def protect(
    broker: Any,
    name: str,
    *,
    store: AsyncStore | str | None = None,
    dead_letter: Bury | None,
    begin: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
    id: MessageId = "property",
    **options: Unpack[InboxOptions],
) -> None:
    """Put an inbox around every subscriber of a broker of FastStream: RabbitMQ, NATS JetStream or Redis streams.

    - Each subscriber has an inbox of its own: `orders.on_created` for `protect(broker, "orders", …)` and the function
      `on_created`. A function under another name is another inbox, which handles redelivered messages once more.
    - With `begin`, the handler runs in that transaction, together with the message's record, and gets the connection as
      `Context("connection")`. Without it, the handler runs under a lease in `store`.
    - `broker.start()` raises `BrokerMisconfigured` if a subscriber could lose messages. FastStream's default
      (`REJECT_ON_ERROR`) drops a message whose handler raises, `ACK_FIRST` one whose process dies: write
      `@broker.subscriber(…, ack_policy=AckPolicy.NACK_ON_ERROR)`.
    - What is to be delivered again goes back to the broker. On NATS it waits for its delay there. On RabbitMQ the
      delay is spent in the subscriber. On Redis an entry comes again after the `min_idle_time` of a second subscriber
      with the same function, which is required. FastStream makes a group that begins with the next entry: make it
      yourself, from the first one on (`XGROUP CREATE orders mailer 0 MKSTREAM`), or what came before is skipped.
    - `dead_letter` is a function that keeps a message that cannot be handled, for example by `broker.publish` to
      another queue; the message is acknowledged after it has returned. `dead_letter=None` rejects the message: RabbitMQ
      gives it to the queue's dead-letter exchange, and drops it if there is none; NATS never delivers it again.
    - What a handler returns for `@broker.publisher` is published after the record is stored, at most once. Use the
      outbox for what must go out.
    """
    check_options(options, InboxOptions, protect)
    inboxes = Inboxes(name, store, begin, id, options)
    inboxes.bury = dead_letter

    class SubscriberMiddleware(InboxMiddleware):
        source = inboxes

    broker.add_middleware(SubscriberMiddleware)
    start = broker.start

    async def checked_start(*args: Any, **kwargs: Any) -> Any:
        check_subscribers(broker.subscribers, dead_letter)
        return await start(*args, **kwargs)

    broker.start = checked_start


class Inboxes:
    """One inbox for each subscriber, made when its first message comes."""

    def __init__(
        self,
        name: str,
        store: AsyncStore | str | None,
        begin: Callable[[], AbstractAsyncContextManager[Any]] | None,
        id: MessageId,
        options: InboxOptions,
    ) -> None:
        self._name, self._store, self._begin, self._options = name, store, begin, options
        self._id: MessageId = id
        self._consumers: dict[str, AsyncConsumer] = {}
        self.bury: Bury | None = None
        self.find("")  # fails now if the arguments do not fit

    def find(self, function: str) -> AsyncConsumer:
        if function not in self._consumers:
            inbox = AsyncInbox(f"{self._name}.{function}", store=self._store, **self._options)
            if self._begin is None:
                self._consumers[function] = inbox.consumer(_handle, id=self._id)
            else:
                self._consumers[function] = inbox.consumer(_handle_with, begin=self._begin, id=self._id)
        return self._consumers[function]


class InboxMiddleware(BaseMiddleware[Any, Any]):
    """Runs the handler inside of the inbox, and carries out its verdict by the message's own methods."""

    source: ClassVar[Inboxes]

    async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: Any) -> Any:
        results = list[object]()

        async def run(connection: object) -> None:
            with self.context.scope("connection", connection):
                results.append(await call_next(msg))

        token = _NEXT.set(run)
        try:
            delivery = _deliver(msg)
            async with _kept(msg):
                verdict = await self.source.find(_name_of(self.context.get_local("handler_")))(delivery)
        finally:
            _NEXT.reset(token)
        await self._settle(msg, delivery, verdict)
        if not results:
            raise AckMessage  # a reconciler found out that it was handled
        return results[-1]

    async def _settle(self, msg: Any, delivery: Delivery, verdict: Verdict) -> None:
        """Tell the broker. Unless the message was handled now, raise, so that FastStream publishes no result."""
        match verdict.settling:
            case Settling.ACKNOWLEDGE:
                await (msg.ack_sync() if hasattr(msg, "ack_sync") else msg.ack())
                if verdict.handling.name != "HANDLED":
                    raise AckMessage
            case Settling.DELIVER_AGAIN | Settling.STOP:
                if hasattr(msg, "ack_sync"):
                    await msg.nack(delay=verdict.delay_ms / 1000)
                else:
                    if hasattr(msg.raw_message, "message_id"):  # RabbitMQ; Redis counts the time itself
                        await asyncio.sleep(verdict.delay_ms / 1000)
                    await msg.nack()
                raise NackMessage
            case Settling.DEAD_LETTER | Settling.PARK:
                if (bury := self.source.bury) is None:
                    await msg.reject()
                    raise RejectMessage
                await bury(delivery, verdict)
                await msg.ack()
                raise AckMessage


def check_subscribers(subscribers: Sequence[Any], dead_letter: Bury | None) -> None:
    """Refuse subscribers that lose messages, or get them only once."""
    for each in subscribers:
        name, kind = _name_of(each), type(each).__name__
        if kind not in WITH_ACKNOWLEDGEMENTS:
            raise BrokerMisconfigured(
                f"the subscriber {name!r} ({kind}) has no acknowledgement of a single message, so what fails is lost: "
                "use a queue of RabbitMQ, a stream of NATS JetStream (stream=) or a stream of Redis with a group, and "
                "no batch"
            )
        stream = getattr(each, "stream_sub", None)
        if stream is not None:
            _check_stream(name, stream, subscribers, dead_letter)
        pushed = getattr(each, "extra_options", {})  # of NATS: its client acknowledges by itself for ACK_FIRST
        if each.ack_policy not in SAFE or not pushed.get("manual_ack", True) or pushed.get("ordered_consumer"):
            raise BrokerMisconfigured(
                f"the subscriber {name!r} has ack_policy={each.ack_policy}, with which FastStream loses messages: "
                "write @broker.subscriber(…, ack_policy=AckPolicy.NACK_ON_ERROR)"
            )


def _check_stream(name: str, stream: Any, subscribers: Sequence[Any], dead_letter: Bury | None) -> None:
    if stream.no_ack or not stream.group:
        raise BrokerMisconfigured(
            f"the subscriber {name!r} reads a stream without acknowledgements: write "
            f'StreamSub({stream.name!r}, group="…", consumer="…"), without no_ack'
        )
    if dead_letter is None:
        raise BrokerMisconfigured("Redis has no place for dead letters of its own: write dead_letter=, a function")
    found = [other.stream_sub for other in subscribers if _name_of(other) == name]
    if not any(each.name == stream.name and each.group == stream.group and _claims(each) for each in found):
        raise BrokerMisconfigured(
            f"the subscriber {name!r} never gets an entry again that failed: add a second one to the same function, "
            f"with StreamSub({stream.name!r}, group={stream.group!r}, consumer=…, min_idle_time=60_000)"
        )


def _claims(stream: Any) -> bool:
    return bool(stream.min_idle_time or getattr(stream, "claim_min_idle_time", None))


def _name_of(subscriber: Any) -> str:
    return cast(str, subscriber.calls[0].name) if len(subscriber.calls) else "subscriber"


def _deliver(msg: Any) -> Delivery:
    headers = {str(name): str(value) for name, value in msg.headers.items() if isinstance(value, str | int | float)}
    native = getattr(msg.raw_message, "message_id", None)  # msg.message_id is a random one where there is none
    named = (headers.get(name) for name in ("semel-id", "message_id", "Nats-Msg-Id"))
    topic = getattr(msg.raw_message, "routing_key", None) or getattr(msg.raw_message, "subject", None)
    if isinstance(msg.raw_message, dict):
        topic = msg.raw_message["channel"]
    return Delivery(
        msg.body if isinstance(msg.body, bytes) else bytes(msg.body),
        id=native or next(filter(None, named), None),
        topic=topic or "",
        content_type=msg.content_type or "",
        headers=headers,
        raw=msg,
    )


@asynccontextmanager
async def _kept(msg: Any) -> AsyncIterator[None]:
    """Tell NATS meanwhile that the message is being handled."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(IN_PROGRESS_S)
            await msg.in_progress()

    task = asyncio.create_task(beat()) if hasattr(msg, "in_progress") else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()


async def _handle(delivery: Delivery) -> None:
    await _NEXT.get()(None)


async def _handle_with(connection: object, delivery: Delivery) -> None:
    await _NEXT.get()(connection)
