"""Publishes to RabbitMQ by aio-pika: persistent messages, confirmed one by one, never dropped for want of a queue."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

import aio_pika
from aio_pika import exceptions
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange
from aiormq.exceptions import ChannelAccessRefused, ConnectionNotAllowed

from semel.core.messages import Message
from semel.errors import BrokerMisconfigured, BrokerUnavailable, NotPublished, Poison
from semel.outbox.connection import TIMEOUT_MS, SharedConnection, check_trust, take_timeout
from semel.outbox.headers import pack_headers
from semel.outbox.publisher import BrokerUrl

NAME_MAX = 255
"""What AMQP keeps in one byte: the length of a header's name."""


def open_publisher(url: BrokerUrl) -> RabbitmqPublisher:
    """`amqp://user:password@host:5672/vhost?exchange=events`, or `amqps://` for TLS."""
    place = url.parts._replace(query="", fragment="").geturl()
    return RabbitmqPublisher(
        place,
        exchange=url.text_option("exchange"),
        unroutable_fail=url.flag("unroutable_fail", default=True),
        timeout_ms=take_timeout(url),
        ca_file=url.text_option("ca_file") or None,
    )


@dataclass(frozen=True)
class Link:
    connection: AbstractConnection
    channel: AbstractChannel
    exchange: AbstractExchange


class RabbitmqPublisher:
    """Publishes to one exchange of RabbitMQ; the routing key is the message's topic.

    - `publish` returns after the broker's confirm: for a durable queue, after it is on disk.
    - The property `message_id` and the header `semel-id` are the message's id, the header `semel-key` its ordering key.
      The content type is the property of that name. The message's own headers are headers.
    - A message that no queue takes raises `NotPublished`, and is tried again like any failed attempt: a queue that is
      declared later still gets it. With `unroutable_fail=False` RabbitMQ drops such a message, and confirms it.
    - An exchange that is not there, a refused login and a missing permission raise `BrokerMisconfigured`.

    `exchange=""` is the default exchange of RabbitMQ, where the topic is the name of a queue. Exchanges and queues are
    never declared here: they belong to your deployment. `ca_file` names the certificates to trust for `amqps://`.
    """

    def __init__(
        self,
        url: str,
        *,
        exchange: str = "",
        unroutable_fail: bool = True,
        timeout_ms: int = TIMEOUT_MS,
        ca_file: str | None = None,
    ) -> None:
        self._url, self._exchange, self._mandatory = url, exchange, unroutable_fail
        self._tls = ssl.create_default_context(cafile=ca_file) if urlsplit(url).scheme == "amqps" else None
        shown = BrokerUrl.parse(url).shown
        self._shared = SharedConnection(shown, timeout_ms, self._connect, self._disconnect, self._is_open)
        self._in_flight: dict[str, asyncio.Future[None]] = {}

    async def publish(self, message: Message) -> None:
        packed = _pack(message)
        # Once at a time: aiormq finds out by its id which message the broker returned.
        while (other := self._in_flight.get(message.id)) is not None:
            await asyncio.wait([other])
        done = self._in_flight[message.id] = asyncio.get_running_loop().create_future()
        try:
            async with self._shared.use() as link:
                await self._send(link, packed, message)
        except (exceptions.ChannelClosed, exceptions.ChannelInvalidStateError):
            await self._send_alone(packed, message)
        finally:
            del self._in_flight[message.id]
            done.set_result(None)

    async def close(self) -> None:
        await self._shared.close()

    async def _send_alone(self, packed: aio_pika.Message, message: Message) -> None:
        """Publish on a channel of its own: the broker closes a channel for the fault of any message on it."""
        async with self._shared.use() as link:
            try:
                async with link.connection.channel() as channel:
                    alone = Link(link.connection, channel, await self._find_exchange(channel))
                    await self._send(alone, packed, message)
            except (exceptions.ChannelNotFoundEntity, ChannelAccessRefused) as error:
                raise BrokerMisconfigured(
                    f"{self._shared.shown}: cannot publish to exchange {self._exchange!r}: {error}: declare it, or "
                    "name another one with ?exchange="
                ) from error
            except exceptions.ChannelPreconditionFailed as error:
                raise Poison(f"{self._shared.shown} refuses message {message.id}: {error}") from error
            except exceptions.ChannelClosed as error:
                raise NotPublished(f"{self._shared.shown} refused message {message.id}: {error}") from error
            except exceptions.ChannelInvalidStateError as error:
                raise BrokerUnavailable(f"{self._shared.shown}: the connection was lost: {error!r}") from error

    async def _send(self, link: Link, packed: aio_pika.Message, message: Message) -> None:
        try:
            await link.exchange.publish(packed, message.topic, mandatory=self._mandatory)
        except exceptions.PublishError as error:
            raise NotPublished(
                f"{self._shared.shown}: no queue takes {message.topic!r} from exchange {self._exchange!r}: bind one"
            ) from error
        except exceptions.DeliveryError as error:
            raise BrokerUnavailable(f"{self._shared.shown} did not take message {message.id}: {error}") from error
        except exceptions.ChannelClosed:
            raise
        except (exceptions.ChannelInvalidStateError, exceptions.AMQPError, OSError) as error:
            if isinstance(error, exceptions.ChannelInvalidStateError) and not link.connection.is_closed:
                raise  # the broker has closed the channel for the fault of another message, before this one was sent
            self._shared.lose(link)
            raise BrokerUnavailable(f"{self._shared.shown}: the connection was lost: {error!r}") from error

    async def _connect(self) -> Link:
        shown = self._shared.shown
        try:
            connection = await aio_pika.connect(self._url, ssl_context=self._tls)
        except (exceptions.ProbableAuthenticationError, exceptions.AuthenticationError) as error:
            raise BrokerMisconfigured(f"{shown} refuses the login: check user and password: {error}") from error
        except (ConnectionNotAllowed, exceptions.InvalidFrameError) as error:  # the second is how aiormq reads it
            raise BrokerMisconfigured(
                f"{shown} refuses the virtual host: check its name, and what the user may do there: {error}"
            ) from error
        except (exceptions.AMQPError, OSError) as error:
            check_trust(shown, error)
            raise BrokerUnavailable(f"{shown} cannot be reached: {error!r}") from error
        try:
            channel = connection.channel(publisher_confirms=True, on_return_raises=True)
            await channel.initialize()
            return Link(connection, channel, await self._find_exchange(channel))
        except (exceptions.ChannelInvalidStateError, exceptions.AMQPError, OSError) as error:
            raise BrokerUnavailable(f"{shown}: the connection was lost: {error!r}") from error

    async def _find_exchange(self, channel: AbstractChannel) -> AbstractExchange:
        # `ensure=False`: asking for it needs a permission that publishing does not need.
        return await channel.get_exchange(self._exchange, ensure=False) if self._exchange else channel.default_exchange

    async def _disconnect(self, link: Link) -> None:
        await link.connection.close()

    def _is_open(self, link: Link) -> bool:
        return not link.channel.is_closed and not link.connection.is_closed


def _pack(message: Message) -> aio_pika.Message:
    for name in message.headers:
        if len(name) > NAME_MAX:
            raise Poison(f"RabbitMQ takes names of headers of up to {NAME_MAX} characters, not {name[:20]}…")
    return aio_pika.Message(
        message.payload,
        message_id=message.id,
        content_type=message.content_type,
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        headers={**pack_headers(message, content_type=False)},
    )
