"""Opening a publisher by its URL, with errors for the person who typed it."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType

import pytest

import semel.outbox.publisher
from semel.errors import BrokerMisconfigured
from semel.outbox import Message, Publisher, open_publisher
from semel.outbox.kafka import KafkaPublisher
from semel.outbox.nats import NatsPublisher
from semel.outbox.publisher import BUILT_IN, BrokerUrl
from semel.outbox.rabbitmq import RabbitmqPublisher
from semel.outbox.redis import RedisPublisher
from semel.outbox.sqs import SqsPublisher
from semel.outbox.webhook import WebhookPublisher

OPENED = [
    ("amqp://u:p@host/vhost?exchange=e&unroutable_fail=no&timeout_ms=500", RabbitmqPublisher),
    ("amqps://u:p@host/", RabbitmqPublisher),
    ("nats://host:4222?stream=S", NatsPublisher),
    ("tls://host:4222", NatsPublisher),
    ("redis://host/0?prefix=p&maxlen=9&replicas=1", RedisPublisher),
    ("rediss://host", RedisPublisher),
    ("valkey://host", RedisPublisher),
    ("valkeys://host", RedisPublisher),
    ("http://host/hooks?connections=3", WebhookPublisher),
    ("https://host/hooks", WebhookPublisher),
    ("sqs://eu-central-1/123456789012/orders?connections=3", SqsPublisher),
    ("sns://eu-central-1/123456789012", SqsPublisher),
    ("kafka://one:9092,two:9092?tls=true", KafkaPublisher),
]


@pytest.mark.parametrize(("url", "kind"), OPENED)
def test_opening_connects_to_nothing(url: str, kind: type) -> None:
    publisher = open_publisher(url)
    assert type(publisher) is kind
    assert isinstance(publisher, Publisher)


def test_every_scheme_is_opened_here() -> None:
    assert {url.partition(":")[0] for url, _ in OPENED} == set(BUILT_IN)


@pytest.mark.parametrize(("url", "_"), OPENED)
def test_an_option_that_is_misspelt(url: str, _: type) -> None:
    with pytest.raises(BrokerMisconfigured, match=r"unknown option 'timeout_sm'; did you mean timeout_ms\?"):
        open_publisher(f"{url}{'&' if '?' in url else '?'}timeout_sm=5")


def test_a_scheme_that_is_nearly_right() -> None:
    with pytest.raises(BrokerMisconfigured, match=r"there is no publisher for ampq://; did you mean amqp://\?"):
        open_publisher("ampq://host")


def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'aio_pika'", name="aio_pika")

    monkeypatch.setattr(semel.outbox.publisher, "import_module", import_module)
    with pytest.raises(BrokerMisconfigured, match=r"needs aio_pika, .*: pip install 'semel\[rabbitmq\]'"):
        open_publisher("amqp://u:secret@host")


class TapePublisher:
    """A third party's."""

    def __init__(self, url: BrokerUrl) -> None:
        self.speed = url.number("speed", 1, least=1, most=9)

    async def publish(self, message: Message) -> None: ...

    async def close(self) -> None: ...


def open_tape(url: BrokerUrl) -> Publisher:
    return TapePublisher(url)


def test_a_publisher_of_a_third_party(monkeypatch: pytest.MonkeyPatch) -> None:
    found = EntryPoints([EntryPoint("tape", f"{__name__}:open_tape", "semel.publishers")])
    monkeypatch.setattr(semel.outbox.publisher, "entry_points", lambda **selection: found.select(**selection))
    publisher = open_publisher("tape://one?speed=7")
    assert type(publisher).__name__ == "TapePublisher"
    assert getattr(publisher, "speed", None) == 7
    with pytest.raises(BrokerMisconfigured, match=r"unknown option 'sped'; did you mean speed\?"):
        open_publisher("tape://one?sped=7")
    with pytest.raises(BrokerMisconfigured, match=r"did you mean tape://\?"):
        open_publisher("tap://one")
