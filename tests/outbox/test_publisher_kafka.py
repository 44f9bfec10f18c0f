"""What is asked of aiokafka, and what is made of its errors. There is no Kafka server: this shows nothing about one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import errors

import semel.outbox.kafka
from semel.errors import BrokerMisconfigured, BrokerUnavailable, Misuse, NotPublished, Poison
from semel.outbox import Message, Publisher, open_publisher
from semel.outbox.kafka import KafkaPublisher
from servers.process import free_port


class Stub:
    """Stands for `AIOKafkaProducer`."""

    made: list[Stub]
    failure: Exception | None = None
    silent: asyncio.Event | None = None

    def __init__(self, **options: Any) -> None:
        self.options, self.sent, self.life = options, list[tuple[Any, ...]](), list[str]()
        self.made.append(self)

    async def start(self) -> None:
        self.life.append("started")

    async def stop(self) -> None:
        self.life.append("stopped")

    async def send_and_wait(self, topic: str, value: bytes, *, key: bytes | None, headers: list[Any]) -> None:
        if self.silent is not None:
            await self.silent.wait()
        if self.failure is not None:
            raise self.failure
        self.sent.append((topic, value, key, headers))


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> type[Stub]:
    fresh = type("FreshStub", (Stub,), {"made": []})
    monkeypatch.setattr(semel.outbox.kafka, "AIOKafkaProducer", fresh)
    return fresh


def publish(publisher: Publisher, *messages: Message) -> list[BaseException | None]:
    async def run() -> list[BaseException | None]:
        found = await asyncio.gather(*(publisher.publish(each) for each in messages), return_exceptions=True)
        await publisher.close()
        return found

    return asyncio.run(run())


def test_what_it_asks_for(stub: type[Stub]) -> None:
    message = Message(
        "id-1", "orders", b"\x00", "application/json", key="ü", headers={"trace": "t", "Semel-Id": "forged"}
    )
    assert publish(open_publisher("kafka://one:9092,two:9092"), message, Message("id-2", "orders", b"")) == [None, None]
    (producer,) = stub.made
    assert producer.options["bootstrap_servers"] == ["one:9092", "two:9092"]
    assert (producer.options["enable_idempotence"], producer.options["acks"]) == (True, "all")
    assert producer.options["security_protocol"] == "PLAINTEXT"
    assert producer.life == ["started", "stopped"]
    topic, value, key, headers = producer.sent[0]
    assert (topic, value, key) == ("orders", b"\x00", "ü".encode())
    assert dict(headers) == {
        "trace": b"t", "semel-id": b"id-1", "semel-key": "ü".encode(), "content-type": b"application/json",
    }  # fmt: skip
    assert producer.sent[1][2] is None


def test_a_login_over_tls(stub: type[Stub]) -> None:
    publish(open_publisher("kafka://user:p%40ss@host?sasl=SCRAM-SHA-256&tls=true"), Message("m", "q", b""))
    options = stub.made[0].options
    assert (options["security_protocol"], options["sasl_mechanism"]) == ("SASL_SSL", "SCRAM-SHA-256")
    assert (options["sasl_plain_username"], options["sasl_plain_password"]) == ("user", "p@ss")
    assert options["ssl_context"].check_hostname


MEANINGS: list[tuple[Exception, type[Exception]]] = [
    (errors.MessageSizeTooLargeError(), Poison),
    (errors.InvalidTopicError(), Poison),
    (ValueError("bad header"), Poison),
    (errors.TopicAuthorizationFailedError(), BrokerMisconfigured),
    (errors.AuthenticationFailedError(), BrokerMisconfigured),
    (errors.KafkaTimeoutError(), BrokerUnavailable),
    (errors.KafkaConnectionError(), BrokerUnavailable),
    (errors.NotEnoughReplicasError(), BrokerUnavailable),
    (errors.LeaderNotAvailableError(), BrokerUnavailable),
    (errors.OutOfOrderSequenceNumber(), BrokerUnavailable),
    (ConnectionResetError(), BrokerUnavailable),
    (errors.PolicyViolationError(), NotPublished),
]


@pytest.mark.parametrize(("failure", "expected"), MEANINGS, ids=lambda each: getattr(each, "__name__", repr(each)))
def test_each_error_has_a_meaning(stub: type[Stub], failure: Exception, expected: type[Exception]) -> None:
    stub.failure = failure
    (found,) = publish(open_publisher("kafka://one:9092"), Message("m", "q", b""))
    assert type(found) is expected


def test_a_producer_that_can_publish_nothing_more_is_replaced(stub: type[Stub]) -> None:
    async def run() -> None:
        publisher = open_publisher("kafka://one:9092")
        stub.failure = errors.OutOfOrderSequenceNumber()
        with pytest.raises(BrokerUnavailable):
            await publisher.publish(Message("m", "q", b""))
        stub.failure = None
        await publisher.publish(Message("m", "q", b""))
        await publisher.close()
        with pytest.raises(Misuse, match="is closed"):
            await publisher.publish(Message("m", "q", b""))

    asyncio.run(run())
    assert [each.life for each in stub.made] == [["started", "stopped"]] * 2


def test_silence_is_no_confirmation(stub: type[Stub]) -> None:
    async def run() -> None:
        stub.silent = asyncio.Event()
        publisher = open_publisher("kafka://one:9092?timeout_ms=100")
        with pytest.raises(BrokerUnavailable, match="no confirmation within 100 ms"):
            await publisher.publish(Message("m", "q", b""))
        await publisher.close()

    asyncio.run(run())


def test_servers_that_are_not_there() -> None:
    """The real client."""
    (found,) = publish(open_publisher(f"kafka://127.0.0.1:{free_port()}?timeout_ms=5000"), Message("m", "q", b""))
    assert isinstance(found, BrokerUnavailable)


def test_no_servers_at_all() -> None:
    with pytest.raises(BrokerMisconfigured, match="write kafka://one:9092,two:9092"):
        KafkaPublisher("")
