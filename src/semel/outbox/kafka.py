"""Publishes to Kafka by aiokafka, with an idempotent producer. Tested against a stub: no Kafka server was available."""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import unquote

from aiokafka import AIOKafkaProducer, errors

from semel.core.messages import Message
from semel.errors import BrokerMisconfigured, BrokerUnavailable, NotPublished, Poison
from semel.outbox.connection import TIMEOUT_MS, SharedConnection, take_timeout
from semel.outbox.headers import pack_headers
from semel.outbox.publisher import BrokerUrl

POISON = (
    errors.MessageSizeTooLargeError,
    errors.RecordTooLargeError,
    errors.RecordListTooLargeError,
    errors.InvalidTopicError,
)
MISCONFIGURED = (
    errors.AuthenticationFailedError,
    errors.AuthenticationMethodNotSupported,
    errors.SaslAuthenticationFailed,
    errors.UnsupportedSaslMechanismError,
    errors.TopicAuthorizationFailedError,
    errors.ClusterAuthorizationFailedError,
    errors.IncompatibleBrokerVersion,
    errors.UnsupportedVersionError,
)
LOST = (
    errors.OutOfOrderSequenceNumber,
    errors.InvalidProducerEpoch,
    errors.UnknownProducerId,
    errors.InvalidProducerIdMapping,
    errors.ProducerFenced,
    errors.ProducerClosed,
)
"""The producer can publish nothing more; another one can."""


def open_publisher(url: BrokerUrl) -> KafkaPublisher:
    """`kafka://one:9092,two:9092`; `?tls=true` for TLS, `kafka://user:password@host?sasl=SCRAM-SHA-256` to log in."""
    login, _, servers = url.parts.netloc.rpartition("@")
    return KafkaPublisher(
        servers,
        user=unquote(url.parts.username or "") if login else None,
        password=unquote(url.parts.password or "") if login else None,
        sasl=url.text_option("sasl", "PLAIN"),
        tls=url.flag("tls"),
        timeout_ms=take_timeout(url),
        ca_file=url.text_option("ca_file") or None,
    )


class KafkaPublisher:
    """Publishes to Kafka; the topic is the message's topic.

    - `publish` returns after all replicas in sync acknowledged (`acks=all`, `enable_idempotence`): repeats that the
      client itself sends are one record. A message that the relay publishes again is another record, with the same id.
    - The record's key is the ordering key, so that messages of one key are in one partition, in order. The headers
      `semel-id`, `semel-key` and `content-type` are what their names say; the message's own headers are headers, too.
    - A topic that is not there raises `BrokerUnavailable` after `timeout_ms`: Kafka says the same while it creates one.

    No Kafka server was available where this was written: what it asks of aiokafka, and what it makes of its errors, is
    tested against a stub, and nothing more. Try it with your brokers before you rely on it.
    """

    def __init__(
        self,
        servers: str,
        *,
        user: str | None = None,
        password: str | None = None,
        sasl: str = "PLAIN",
        tls: bool = False,
        timeout_ms: int = TIMEOUT_MS,
        ca_file: str | None = None,
    ) -> None:
        if not servers:
            raise BrokerMisconfigured("kafka:// needs its servers: write kafka://one:9092,two:9092")
        protocol = ("SASL_" if user else "") + ("SSL" if tls else "PLAINTEXT")
        self._options: dict[str, Any] = {
            "bootstrap_servers": servers.split(","),
            "security_protocol": protocol,
            "ssl_context": ssl.create_default_context(cafile=ca_file) if tls else None,
            "sasl_mechanism": sasl,
            "sasl_plain_username": user,
            "sasl_plain_password": password,
            "request_timeout_ms": timeout_ms,
            "enable_idempotence": True,
            "acks": "all",
        }
        self._shared = SharedConnection(f"kafka://{servers}", timeout_ms, self._connect, self._disconnect)

    async def publish(self, message: Message) -> None:
        key = None if message.key is None else message.key.encode()
        headers = [(name, value.encode()) for name, value in pack_headers(message).items()]
        async with self._shared.use() as producer:
            try:
                await producer.send_and_wait(message.topic, message.payload, key=key, headers=headers)
            except (errors.KafkaError, OSError) as error:
                if isinstance(error, LOST):
                    self._shared.lose(producer)
                raise self._explain(error, message) from error
            except (ValueError, TypeError) as error:
                raise Poison(f"Kafka cannot carry message {message.id} to {message.topic!r}: {error}") from error

    async def close(self) -> None:
        await self._shared.close()

    def _explain(self, error: Exception, message: Message) -> Exception:
        shown = self._shared.shown
        if isinstance(error, POISON):
            return Poison(f"{shown} refuses message {message.id} to {message.topic!r}: {error!r}")
        if isinstance(error, MISCONFIGURED):
            return BrokerMisconfigured(f"{shown} refuses: check the login and what it may do: {error!r}")
        away = isinstance(error, (*LOST, errors.KafkaTimeoutError, errors.KafkaConnectionError, OSError))
        if away or getattr(error, "retriable", False):
            return BrokerUnavailable(f"{shown} did not confirm message {message.id}: {error!r}")
        return NotPublished(f"{shown} did not take message {message.id}: {error!r}")

    async def _connect(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(**self._options)
        try:
            await producer.start()
        except BaseException as error:
            await producer.stop()
            if isinstance(error, MISCONFIGURED):
                raise BrokerMisconfigured(f"{self._shared.shown} refuses the login: {error!r}") from error
            if isinstance(error, errors.KafkaError | OSError):
                raise BrokerUnavailable(f"{self._shared.shown} cannot be reached: {error!r}") from error
            raise
        return producer

    async def _disconnect(self, producer: AIOKafkaProducer) -> None:
        await producer.stop()
