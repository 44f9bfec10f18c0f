"""Publishing to SQS and SNS, for which moto's server stands."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import pytest

from outbox.publisher_cases import PublisherCases, Seen
from semel.errors import BrokerMisconfigured, BrokerUnavailable, NotPublished, Poison
from semel.outbox import Message, open_publisher
from semel.outbox.sqs import SqsPublisher
from servers.moto import ACCOUNT, REGION, MotoServer
from servers.needing import needed

PAYLOADS: dict[str, Callable[[str], bytes]] = {"": str.encode, "base64": base64.b64decode, "empty": lambda _: b""}


@pytest.fixture(scope="module")
def server() -> Iterator[MotoServer]:
    with needed("moto", MotoServer) as server:
        yield server


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")


def url_of(server: MotoServer, service: str = "sqs", name: str = "") -> str:
    return f"{service}://{REGION}/{ACCOUNT}{name and '/' + name}?endpoint={server.url}"


def make_queue(server: MotoServer, name: str) -> str:
    fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    return str(server.client("sqs").create_queue(QueueName=name, Attributes=fifo)["QueueUrl"])


def take_all(server: MotoServer, name: str) -> list[dict[str, Any]]:
    client = server.client("sqs")
    queue, taken = client.get_queue_url(QueueName=name)["QueueUrl"], list[dict[str, Any]]()
    asked = {"MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"], "AttributeNames": ["All"]}
    while found := client.receive_message(QueueUrl=queue, **asked).get("Messages"):
        for each in found:
            client.delete_message(QueueUrl=queue, ReceiptHandle=each["ReceiptHandle"])
        taken += found
    return taken


def texts_of(message: dict[str, Any]) -> dict[str, str]:
    return {name: each["StringValue"] for name, each in message["MessageAttributes"].items()}


class TestSqs(PublisherCases):
    lossy_restart = True  # moto keeps queues in memory

    @pytest.fixture
    def broker(self, server: MotoServer) -> MotoServer:
        return server

    def url(self, broker: MotoServer) -> str:
        return url_of(broker)

    async def prepare(self, broker: MotoServer, topic: str) -> None:
        make_queue(broker, topic)

    async def read(self, broker: MotoServer, topic: str) -> list[Seen]:
        seen = []
        for message in take_all(broker, topic):
            texts = texts_of(message)
            seen.append(
                Seen(
                    id=texts["semel-id"],
                    payload=PAYLOADS[texts.get("semel-encoding", "")](message["Body"]),
                    content_type=texts["content-type"],
                    key=texts.get("semel-key"),
                    headers={
                        name.lower(): value
                        for name, value in {**json.loads(texts.get("semel-headers", "{}")), **texts}.items()
                    },
                )
            )
        return sorted(seen, key=lambda each: (len(each.id), each.id))  # a queue that is not FIFO keeps no order


def test_a_fifo_queue_drops_what_is_published_again(server: MotoServer) -> None:
    async def run() -> None:
        publisher = open_publisher(url_of(server, name="orders.fifo"))
        for _ in range(3):
            await publisher.publish(Message("same", "orders.shipped", b"1", key="order 42"))
        await publisher.publish(Message("plain-key", "orders.shipped", b"2", key="order-42"))
        await publisher.publish(Message("no-key", "orders.shipped", b"3"))
        await publisher.close()

    make_queue(server, "orders.fifo")
    asyncio.run(run())
    taken = {texts_of(each)["semel-id"]: each for each in take_all(server, "orders.fifo")}
    assert set(taken) == {"same", "plain-key", "no-key"}
    assert taken["same"]["Attributes"]["MessageDeduplicationId"] == "same"
    assert {name: each["Attributes"]["MessageGroupId"] for name, each in taken.items()} == {
        "same": sha256(b"order 42").hexdigest(),
        "plain-key": "order-42",
        "no-key": "no-key",
    }
    assert {texts_of(each)["semel-topic"] for each in taken.values()} == {"orders.shipped"}


@pytest.mark.parametrize("ending", ["", ".fifo"])
def test_a_topic_of_sns(server: MotoServer, ending: str) -> None:
    fifo = {"FifoTopic": "true"} if ending else {}
    topic = server.client("sns").create_topic(Name=f"events{ending}", Attributes=fifo)["TopicArn"]
    make_queue(server, f"behind{ending}")
    raw = {"RawMessageDelivery": "true"}
    endpoint = f"arn:aws:sqs:{REGION}:{ACCOUNT}:behind{ending}"
    server.client("sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint=endpoint, Attributes=raw)

    async def run() -> None:
        publisher = open_publisher(url_of(server, "sns", f"events{ending}"))
        await publisher.publish(Message("m", "orders", "ü".encode(), "text/plain", key="k", headers={"a": "b"}))
        await publisher.close()
        by_topic = open_publisher(url_of(server, "sns"))
        await by_topic.publish(Message("n", f"events{ending}", b"2"))
        await by_topic.close()

    asyncio.run(run())
    taken = {texts_of(each)["semel-id"]: each for each in take_all(server, f"behind{ending}")}
    assert {name: each["Body"] for name, each in taken.items()} == {"m": "ü", "n": "2"}
    assert texts_of(taken["m"]) == {
        "semel-id": "m", "semel-topic": "orders", "content-type": "text/plain", "semel-key": "k",
        "semel-headers": '{"a": "b"}',
    }  # fmt: skip
    if ending:
        assert taken["m"]["Attributes"]["MessageDeduplicationId"] == "m"


def test_more_headers_than_sqs_takes_attributes(server: MotoServer) -> None:
    headers = {f"header-{n}": f"wért {n}" for n in range(40)}

    async def run() -> None:
        publisher = open_publisher(url_of(server))
        await publisher.publish(Message("m", "headers", b"1", key="k", headers=headers))
        await publisher.close()

    make_queue(server, "headers")
    asyncio.run(run())
    (taken,) = take_all(server, "headers")
    assert json.loads(texts_of(taken)["semel-headers"]) == headers
    assert len(taken["MessageAttributes"]) <= 10


@pytest.mark.parametrize(
    ("payload", "encoded"),
    [
        (b"plain", None),
        ("é\n\t".encode(), None),
        (b"\x00", "base64"),
        (b"\xff", "base64"),
        ("\ufffe".encode(), "base64"),
        (b"", "empty"),
    ],
)
def test_what_is_not_text_goes_as_base64(server: MotoServer, payload: bytes, encoded: str | None) -> None:
    async def run() -> None:
        publisher = open_publisher(url_of(server))
        await publisher.publish(Message("m", "bodies", payload))
        await publisher.close()

    make_queue(server, "bodies")
    asyncio.run(run())
    (taken,) = take_all(server, "bodies")
    assert texts_of(taken).get("semel-encoding") == encoded
    assert taken["Body"], "SQS refuses an empty body; moto does not"


def test_a_queue_that_is_not_there_yet(server: MotoServer) -> None:
    async def run() -> None:
        for service in ("sqs", "sns"):
            publisher = open_publisher(url_of(server, service))
            with pytest.raises(NotPublished, match="there is no 'later': create it"):
                await publisher.publish(Message("m", "later", b"1"))
            if service == "sqs":
                make_queue(server, "later")
                await publisher.publish(Message("m", "later", b"1"))
            await publisher.close()

    asyncio.run(run())


def test_a_message_that_is_too_large(server: MotoServer) -> None:
    async def run() -> None:
        publisher = open_publisher(url_of(server))
        with pytest.raises(Poison, match="refuses message m"):
            await publisher.publish(Message("m", "large", bytes(1024 * 1024)))
        await publisher.close()

    make_queue(server, "large")
    asyncio.run(run())


def test_missing_credentials(server: MotoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    async def run() -> None:
        publisher = open_publisher(url_of(server))
        with pytest.raises(BrokerMisconfigured, match="boto3 finds no credentials"):
            await publisher.publish(Message("m", "q", b"1"))
        await publisher.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("AccessDenied", 403, BrokerMisconfigured),
        ("InvalidClientTokenId", 403, BrokerMisconfigured),
        ("Throttling", 400, BrokerUnavailable),
        ("InternalError", 500, BrokerUnavailable),
        ("ServiceUnavailable", 503, BrokerUnavailable),
        ("InvalidMessageContents", 400, Poison),
        ("AWS.SimpleQueueService.NonExistentQueue", 400, NotPublished),
        ("SomethingNew", 400, NotPublished),
    ],
)
def test_each_refusal_has_a_meaning(
    server: MotoServer, monkeypatch: pytest.MonkeyPatch, code: str, status: int, expected: type[Exception]
) -> None:
    """moto refuses little: the service's other codes come from boto3's own stub."""
    import boto3
    from botocore.stub import Stubber

    client = boto3.Session(region_name=REGION).client("sqs", endpoint_url=server.url)
    stub = Stubber(client)
    stub.add_client_error("get_queue_url", service_error_code=code, http_status_code=status)
    stub.activate()
    monkeypatch.setattr(boto3.Session, "client", lambda *_, **__: client)

    async def run() -> None:
        publisher = open_publisher(url_of(server))
        with pytest.raises(expected) as caught:
            await publisher.publish(Message("m", "q", b"1"))
        assert type(caught.value) is expected
        await publisher.close()

    asyncio.run(run())


@pytest.mark.parametrize("url", ["sqs://eu-central-1", "sqs://eu-central-1/12/q", "sns://EU/123456789012", "sqs:///q"])
def test_a_url_without_its_parts(url: str) -> None:
    with pytest.raises(
        BrokerMisconfigured, match=r"write s.s://region/account/name, with the 12 digits of the account"
    ):
        open_publisher(url)


def test_it_is_made_with_keywords_too() -> None:
    assert isinstance(SqsPublisher(REGION, ACCOUNT, "q", service="sns", connections=2), SqsPublisher)
