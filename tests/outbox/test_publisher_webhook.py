"""Publishing by HTTP, to a receiver of our own in this process or another one."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web

from semel.errors import BrokerMisconfigured, BrokerUnavailable, Misuse, NotPublished, Poison
from semel.outbox import Message, Publisher, open_publisher
from semel.outbox.webhook import WebhookPublisher, read_status
from servers.certificates import write_certificate
from servers.process import free_port

NOW_S = 1_800_000_000
ANSWERS = {
    200: None, 201: None, 202: None, 204: None, 299: None,
    301: BrokerMisconfigured, 302: BrokerMisconfigured, 304: BrokerMisconfigured, 307: BrokerMisconfigured,
    308: BrokerMisconfigured, 401: BrokerMisconfigured, 403: BrokerMisconfigured, 407: BrokerMisconfigured,
    400: Poison, 402: Poison, 404: Poison, 405: Poison, 410: Poison, 413: Poison, 415: Poison, 422: Poison,
    409: NotPublished, 423: NotPublished, 500: NotPublished, 501: NotPublished, 507: NotPublished,
    408: BrokerUnavailable, 425: BrokerUnavailable, 429: BrokerUnavailable, 502: BrokerUnavailable,
    503: BrokerUnavailable, 504: BrokerUnavailable,
}  # fmt: skip


@dataclass
class Request:
    path: str
    headers: Mapping[str, bytes]
    """With lower-case names."""
    body: bytes


class Receiver:
    """Keeps every request, and answers what `answer` says."""

    def __init__(self) -> None:
        self.port = free_port()
        self.requests: list[Request] = []
        self.status = 200
        self.headers: dict[str, str] = {}
        self.silent = asyncio.Event()
        self.silent.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks"

    async def answer(self, request: web.Request) -> web.Response:
        headers = {name.decode().lower(): value for name, value in request.raw_headers}
        self.requests.append(Request(request.rel_url.raw_path, headers, await request.read()))
        await self.silent.wait()
        return web.Response(status=self.status, headers=self.headers, body=b"because" if self.status >= 400 else None)


@asynccontextmanager
async def receiving(receiver: Receiver, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    app = web.Application(client_max_size=4 * 1024 * 1024)
    app.router.add_route("*", "/{rest:.*}", receiver.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", receiver.port, ssl_context=tls).start()
    try:
        yield receiver
    finally:
        await runner.cleanup()


@asynccontextmanager
async def publishing(publisher: Publisher) -> AsyncIterator[Publisher]:
    try:
        yield publisher
    finally:
        await publisher.close()


def genuine(request: Request, secret: str, now_s: int = NOW_S) -> bool:
    """The specification's own words: base64 of HMAC-SHA256 over `id.timestamp.body`, keyed by what follows `whsec_`."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    message_id, timestamp = request.headers["webhook-id"], request.headers["webhook-timestamp"]
    expected = base64.b64encode(
        hmac.new(key, b".".join((message_id, timestamp, request.body)), hashlib.sha256).digest()
    )
    signatures = [each.partition(b",") for each in request.headers["webhook-signature"].split(b" ")]
    fits = any(version == b"v1" and hmac.compare_digest(signature, expected) for version, _, signature in signatures)
    return fits and abs(int(timestamp) - now_s) <= 300


def new_secret() -> str:
    return f"whsec_{base64.b64encode(secrets.token_bytes(24)).decode()}"


def test_what_the_receiver_gets() -> None:
    async def run() -> list[Request]:
        async with receiving(Receiver()) as receiver, publishing(open_publisher(receiver.url)) as publisher:
            headers = {"trace": "t-1", "Greeting": "Grüße", "Webhook-Id": "forged", "IDEMPOTENCY-KEY": "forged"}
            await publisher.publish(
                Message("id-1", "orders.shipped", b"\x00\xff", "application/json", key="Käse 1", headers=headers)
            )
            await publisher.publish(Message("id-2", "orders", b""))
            return receiver.requests

    one, two = asyncio.run(run())
    assert (one.path, one.body) == ("/hooks", b"\x00\xff")
    expected = {
        "idempotency-key": "id-1", "webhook-id": "id-1", "semel-id": "id-1", "semel-key": "Käse 1",
        "semel-topic": "orders.shipped", "content-type": "application/json", "trace": "t-1", "greeting": "Grüße",
        "content-length": "2",
    }  # fmt: skip
    assert {name: one.headers[name].decode() for name in expected} == expected
    assert "webhook-signature" not in one.headers
    assert (two.body, two.headers["content-length"]) == (b"", b"0")
    assert "semel-key" not in two.headers


def test_the_topic_in_the_url() -> None:
    async def run() -> str:
        async with receiving(Receiver()) as receiver:
            async with publishing(open_publisher(receiver.url + "/{topic}/in")) as publisher:
                await publisher.publish(Message("m", "a/b ü", b""))
            return receiver.requests[0].path

    assert asyncio.run(run()) == "/hooks/a%2Fb%20%C3%BC/in"


def test_signatures_verify_by_the_specification() -> None:
    async def run() -> None:
        old, new, other = new_secret(), new_secret(), new_secret()
        async with receiving(Receiver()) as receiver:
            for given in ([old], [old, new], [new]):
                publisher = WebhookPublisher(receiver.url, secrets=given, clock=lambda: NOW_S + 0.9)
                await publisher.publish(Message("id-1", "q", '{"a":"ü"}'.encode()))
                await publisher.close()
                request = receiver.requests.pop()
                assert request.headers["webhook-timestamp"] == str(NOW_S).encode()
                assert [genuine(request, each) for each in (old, new)] == [each in given for each in (old, new)]
                assert not genuine(request, other)
                assert not genuine(Request(request.path, request.headers, request.body + b" "), given[0])

    asyncio.run(run())


def test_secrets_in_the_url_are_neither_sent_nor_shown() -> None:
    async def run() -> None:
        old, new = f"whsec_{base64.b64encode(bytes(range(62, 92)) + b'??>>').decode()}", new_secret()
        async with receiving(Receiver()) as receiver:
            url = f"{receiver.url}?secret={old},{new}"
            async with publishing(open_publisher(url)) as publisher:
                await publisher.publish(Message("m", "q", b""))
                receiver.status = 404
                with pytest.raises(Poison) as caught:
                    await publisher.publish(Message("n", "q", b""))
            assert str(caught.value) == f"{receiver.url} answered 404 to message n: because"
            request = receiver.requests[0]
            assert request.path == "/hooks"
            moment = int(request.headers["webhook-timestamp"])
            assert genuine(request, old, moment)
            assert genuine(request, new, moment)

    asyncio.run(run())


def test_the_vector_of_the_specification() -> None:
    """Known input and output, so that both sides of this file cannot be wrong in the same way."""

    async def run() -> Request:
        secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
        async with receiving(Receiver()) as receiver:
            publisher = WebhookPublisher(receiver.url, secrets=[secret], clock=lambda: 1614265330.0)
            await publisher.publish(Message("msg_p5jXN8AQM9LWM0D4loKWxJek", "q", b'{"test": 2432232314}'))
            await publisher.close()
            return receiver.requests[0]

    assert asyncio.run(run()).headers["webhook-signature"] == b"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(("status", "expected"), ANSWERS.items())
def test_each_answer_has_a_meaning(status: int, expected: type[Exception] | None) -> None:
    async def run() -> None:
        async with receiving(Receiver()) as receiver, publishing(open_publisher(receiver.url)) as publisher:
            receiver.status, receiver.headers = status, {"Location": "http://127.0.0.1:1/elsewhere", "Retry-After": "1"}
            if expected is None:
                await publisher.publish(Message("m", "q", b""))
            else:
                with pytest.raises(expected, match=f"answered {status} to message m") as caught:
                    await publisher.publish(Message("m", "q", b""))
                assert type(caught.value) is expected
                assert ("publish to http://127.0.0.1:1/elsewhere" in str(caught.value)) == (status < 400)
            assert len(receiver.requests) == 1, "neither repeated nor redirected"

    asyncio.run(run())


def test_every_status_has_a_meaning() -> None:
    assert {read_status(status) for status in range(200, 600)} == {
        "confirmed", "away", "misconfigured", "failed", "poison",
    }  # fmt: skip
    assert all((read_status(status) == "confirmed") == (status < 300) for status in range(200, 600))


def test_silence_is_no_confirmation() -> None:
    async def run() -> None:
        async with receiving(Receiver()) as receiver:
            receiver.silent.clear()
            async with publishing(open_publisher(f"{receiver.url}?timeout_ms=200")) as hasty:
                with pytest.raises(BrokerUnavailable, match="no confirmation within 200 ms"):
                    await hasty.publish(Message("m", "q", b""))
                receiver.silent.set()
                await hasty.publish(Message("m", "q", b""))
            async with publishing(open_publisher(receiver.url)) as patient:
                receiver.silent.clear()
                waiting = asyncio.ensure_future(patient.publish(Message("m", "q", b"")))
                await asyncio.wait([waiting], timeout=0.2)
                assert not waiting.done()
                receiver.silent.set()
                await waiting

    asyncio.run(run())


def test_a_receiver_that_goes_and_comes_back() -> None:
    async def run() -> None:
        receiver = Receiver()
        async with publishing(open_publisher(receiver.url)) as publisher:
            with pytest.raises(BrokerUnavailable, match="gave no answer"):
                await publisher.publish(Message("m", "q", b""))
            async with receiving(receiver):
                await publisher.publish(Message("m", "q", b""))
                receiver.silent.clear()
                waiting = asyncio.ensure_future(publisher.publish(Message("m", "q", b"")))
                while len(receiver.requests) < 2:
                    await asyncio.sleep(0.01)
            with pytest.raises(BrokerUnavailable):
                await waiting
            receiver.silent.set()
            async with receiving(receiver):
                await publisher.publish(Message("m", "q", b""))
            assert len(receiver.requests) == 3
        with pytest.raises(Misuse, match="is closed"):
            await publisher.publish(Message("m", "q", b""))

    asyncio.run(run())


def test_a_hundred_at_once_on_a_few_connections() -> None:
    async def run() -> set[str]:
        async with receiving(Receiver()) as receiver:
            async with publishing(open_publisher(f"{receiver.url}?connections=4")) as publisher:
                await asyncio.gather(*(publisher.publish(Message(f"n-{n}", "q", b"%d" % n)) for n in range(100)))
            return {f"{each.headers['idempotency-key'].decode()} {each.body.decode()}" for each in receiver.requests}

    assert asyncio.run(run()) == {f"n-{n} {n}" for n in range(100)}


@pytest.mark.parametrize("name", ["Host", "content-length", "Transfer-Encoding", "Connection"])
def test_headers_that_belong_to_http_are_poison(name: str) -> None:
    async def run() -> None:
        async with receiving(Receiver()) as receiver, publishing(open_publisher(receiver.url)) as publisher:
            with pytest.raises(Poison, match=f"has a header '{name}', which belongs to HTTP itself"):
                await publisher.publish(Message("m", "q", b"", headers={name: "7"}))
            assert receiver.requests == []

    asyncio.run(run())


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: open_publisher("http://h/?secret=whsec_c2hvcnQ="), "secret 1 has 5 bytes, and at least 16 are needed"),
        (lambda: open_publisher("http://h/?secret=whsec_-"), "is whsec_ and base64: copy it whole"),
        (lambda: WebhookPublisher("ftp://host/"), "is no URL of a receiver"),
        (lambda: WebhookPublisher("https://"), "is no URL of a receiver"),
        (lambda: open_publisher("http://h/?token=abc"), "unknown option 'token'"),
    ],
)
def test_settings_that_cannot_be(make: Callable[[], object], complaint: str) -> None:
    with pytest.raises(BrokerMisconfigured, match=complaint):
        make()


def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*write_certificate(tmp_path))
        async with receiving(Receiver(), context) as receiver:
            async with publishing(open_publisher(receiver.url.replace("http:", "https:"))) as publisher:
                with pytest.raises(BrokerMisconfigured, match="its certificate is not trusted"):
                    await publisher.publish(Message("m", "q", b""))
            assert receiver.requests == []

    asyncio.run(run())
