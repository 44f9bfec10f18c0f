"""Consumes a stream of NATS JetStream by nats-py, as a durable pull consumer."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Unpack, cast

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from semel.core.messages import Delivery
from semel.core.policy_values import Duration
from semel.core.verdicts import Verdict
from semel.errors import BrokerMisconfigured
from semel.inbox.worker import (
    CALL_S,
    MISSING,
    POLL_S,
    BrokerConsumer,
    DeliveryConsumer,
    WorkerOptions,
    milliseconds,
    needs_dead_letter,
    reason_headers,
)

__all__ = ["NatsConsumer"]

Connect = Callable[[], Awaitable[Client]]
NATIVE_ID, CONTENT_TYPE, STATUS = "Nats-Msg-Id", "content-type", "Status"
NOT_IN_A_NAME = re.compile(r"[\s.*>/\\]")
UNLIMITED = -1
LATE_S = 2.0
"""How much later than asked for the server may end a request for messages."""
ENDED = ("404", "408")
"""The server's statuses for: no message came in time."""


class NatsConsumer(BrokerConsumer["NatsDelivery"]):
    """Handles the messages of a stream, as a durable pull consumer.

    - A message is acknowledged after its record is stored, and the server confirms the acknowledgement (double ack).
    - The durable consumer is named after the inbox (`orders.mailer` is `orders_mailer`). It is made if it is not there,
      from the first message of the stream on; `subject` limits it to some subjects.
    - One that is there is refused if messages can be lost with it: acknowledgements other than explicit ones, push
      instead of pull, or a `max_deliver`. JetStream gives up on a message after `max_deliver` deliveries without a
      word. It also counts deliveries that are no attempts: those that were cut off, or came while the store was away.
    - While a message is handled, the server is told so (`in_progress`) every third of `ack_wait`, so a handler may
      take as long as it needs.
    - A dead letter is published to the subject `dead_letter`, with the headers `semel-reason`, `semel-handling` and
      `semel-attempt`. After a stream has confirmed it, JetStream is told never to deliver the message again (`term`). A
      dead letter has no `Nats-Msg-Id`: a stream could take it for a repeat of the message itself, and drop it. Its id
      is `semel-id`.

    The message's id is the header `semel-id`, or `Nats-Msg-Id`. `connection` is a URL (`nats://`, `tls://`), or a
    function that returns a connected client, for options of yours: `lambda: nats.connect(…, allow_reconnect=False)`. It
    is called again after the connection was lost. `domain` is the JetStream domain.
    """

    failures = (nats.errors.Error, OSError)

    def __init__(
        self,
        connection: str | Connect,
        stream: str,
        consumer: DeliveryConsumer,
        *,
        dead_letter: str | object = MISSING,
        durable: str | None = None,
        subject: str | None = None,
        ack_wait: Duration = 30,
        domain: str | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        super().__init__(consumer, options)
        if not isinstance(dead_letter, str) or not dead_letter:
            raise needs_dead_letter("NatsConsumer", '"dead.orders", a subject that another stream listens to')
        self._connection, self._stream, self._dead_letter = connection, stream, dead_letter
        self._domain = domain
        self._durable = durable or NOT_IN_A_NAME.sub("_", consumer.handler)
        self._wanted = ConsumerConfig(
            durable_name=self._durable,
            filter_subject=subject,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=milliseconds("ack_wait", ack_wait) / 1000,
            max_deliver=UNLIMITED,
        )

    async def _open(self) -> NatsSource:
        client = await self._connect()
        try:
            streams = client.jetstream(domain=self._domain) if self._domain else client.jetstream()
            config = await self._find_consumer(streams)
            self._check(config)
            await self._check_dead_letters(streams, config)
            api = f"$JS.{self._domain}.API" if self._domain else "$JS.API"
            requests = f"{api}.CONSUMER.MSG.NEXT.{self._stream}.{self._durable}"
            heartbeat_s = min([config.ack_wait or 30.0, *(config.backoff or ())]) / 3
            inbox = client.new_inbox()
            link = NatsLink(client, streams, await client.subscribe(inbox), inbox, requests, self._dead_letter)
            return NatsSource(link, heartbeat_s)
        except BaseException:
            await client.close()
            raise

    async def _connect(self) -> Client:
        if not isinstance(self._connection, str):
            return await self._connection()
        client = Client()

        async def keep_quiet(error: Exception) -> None:
            """Whatever fails is reported by the call that it fails for."""

        await client.connect(self._connection.split(","), allow_reconnect=False, error_cb=keep_quiet)
        return client

    async def _find_consumer(self, streams: JetStreamContext) -> ConsumerConfig:
        try:
            await streams.stream_info(self._stream)
        except nats.js.errors.NotFoundError as error:
            raise BrokerMisconfigured(f"NATS has no stream {self._stream!r}: add it: {error.description}") from error
        try:
            info = await streams.consumer_info(self._stream, self._durable)
        except nats.js.errors.NotFoundError:
            info = await streams.add_consumer(self._stream, self._wanted)
        return cast("ConsumerConfig", info.config)

    def _check(self, config: ConsumerConfig) -> None:
        if config.ack_policy != AckPolicy.EXPLICIT:
            self._refuse(
                f"ack_policy={config.ack_policy}: messages would count as handled that were not",
                "ack_policy=AckPolicy.EXPLICIT",
            )
        if config.deliver_subject:
            self._refuse("a deliver_subject: it pushes, and is not pulled", "no deliver_subject")
        if config.max_deliver not in (None, 0, UNLIMITED):
            self._refuse(
                f"max_deliver={config.max_deliver}: JetStream gives up on a message after so many deliveries, attempts "
                "or not, and it is lost without a dead letter",
                "max_deliver=-1",
            )

    def _refuse(self, found: str, line: str) -> None:
        raise BrokerMisconfigured(
            f"the consumer {self._durable!r} of stream {self._stream!r} has {found}. Change its configuration to {line}"
        )

    async def _check_dead_letters(self, streams: JetStreamContext, config: ConsumerConfig) -> None:
        try:
            stream = await streams.find_stream_name_by_subject(self._dead_letter)
        except nats.js.errors.NotFoundError as error:
            raise BrokerMisconfigured(
                f"no stream listens to dead_letter={self._dead_letter!r}, so dead letters would be lost: add a stream "
                "for it"
            ) from error
        filters = [*(config.filter_subjects or ()), *([config.filter_subject] if config.filter_subject else ())]
        if stream == self._stream and any(_matches(each, self._dead_letter) for each in filters or [">"]):
            raise BrokerMisconfigured(
                f"dead letters on {self._dead_letter!r} would be consumed again: write dead_letter= with a subject of "
                "another stream"
            )


@dataclass(frozen=True)
class NatsLink:
    """A connection, and where on it messages are asked for and arrive."""

    client: Client
    streams: JetStreamContext
    arrived: Subscription
    inbox: str
    requests: str
    dead_letter: str


class NatsSource:
    """Asks for as many messages as there is room for, and takes each as soon as it is there.

    `PullSubscription.fetch` of nats-py waits for a full batch, or the end of its time.
    """

    def __init__(self, link: NatsLink, heartbeat_s: float) -> None:
        self.link = link
        self.heartbeat_s: float | None = heartbeat_s
        self._owed = 0
        """How many messages the server may still send for the last request."""

    async def take(self, most: int) -> Sequence[NatsDelivery]:
        if not self._owed and not self.link.arrived.pending_msgs:
            await self._ask(most)
        message = await self.link.arrived.next_msg(timeout=POLL_S + LATE_S)
        if message.reply:
            self._owed = max(0, self._owed - 1)
            return (NatsDelivery(self, message),)
        self._owed = 0  # what cannot be replied to is no message, but the status of the request
        if (message.headers or {}).get(STATUS) not in ENDED:
            raise ConnectionError(f"NATS has ended the request for messages: {message.headers}")
        return ()

    async def keep(self, handling: Sequence[NatsDelivery]) -> None:
        for each in handling:
            await each.message.in_progress()

    async def close(self) -> None:
        await self.link.client.close()

    async def _ask(self, most: int) -> None:
        request = {"batch": most, "expires": round(POLL_S * 1_000_000_000)}
        await self.link.client.publish(self.link.requests, json.dumps(request).encode(), self.link.inbox)
        self._owed = most


class NatsDelivery:
    """One message that JetStream waits for the acknowledgement of."""

    def __init__(self, source: NatsSource, message: Msg) -> None:
        self._source, self.message = source, message
        headers = message.headers or {}
        content_types = [value for name, value in headers.items() if name.lower() == CONTENT_TYPE]
        self.delivery = Delivery(
            message.data,
            id=headers.get("semel-id") or headers.get(NATIVE_ID),
            topic=message.subject,
            content_type=content_types[0] if content_types else "",
            headers=headers,
            raw=message,
        )

    async def acknowledge(self) -> None:
        await self.message.ack_sync(timeout=CALL_S)

    async def deliver_again(self, delay_ms: int) -> None:
        await self.message.nak(delay=delay_ms / 1000)

    async def bury(self, verdict: Verdict) -> None:
        headers = {name: value for name, value in self.delivery.headers.items() if not name.startswith("Nats-")}
        if self.delivery.id is not None:
            headers["semel-id"] = self.delivery.id
        headers |= reason_headers(verdict)
        link = self._source.link
        await link.streams.publish(link.dead_letter, self.delivery.payload, timeout=CALL_S, headers=headers)
        await self.message.term()


def _matches(pattern: str, subject: str) -> bool:
    """Whether a subject is one of those that a pattern of NATS stands for."""
    wanted, given = pattern.split("."), subject.split(".")
    for at, part in enumerate(wanted):
        if part == ">":
            return len(given) > at
        if at >= len(given) or part not in ("*", given[at]):
            return False
    return len(given) == len(wanted)
