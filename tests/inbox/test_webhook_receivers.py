"""Receiving webhooks: signatures, ids, answers, and one effect for each event."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import io
import json
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import httpx
import pytest

from inbox.shop import Shop
from semel.core.signatures import GithubSignature, StandardWebhooks, StripeSignature
from semel.core.verdicts import Handling, Verdict, judge
from semel.errors import Misuse, NotExecuted
from semel.inbox import Delivery
from semel.inbox.ids import field
from semel.inbox.webhook import AnyReceiver, WebhookReceiver, WsgiWebhookReceiver
from transaction.modes import MODES, effects

SCHEME = StandardWebhooks(b"0123456789abcdef01234567")
BODY = b'{"id": "evt_1"}'


class Handler:
    """A consumer of both kinds, which gives one verdict."""

    handler = "tests.webhooks"

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.seen: list[Delivery] = []

    def receive(self, delivery: Delivery) -> Verdict:
        self.seen.append(delivery)
        return self.verdict


class AsyncHandler(Handler):
    async def __call__(self, delivery: Delivery) -> Verdict:
        return self.receive(delivery)


class SyncHandler(Handler):
    def __call__(self, delivery: Delivery) -> Verdict:
        return self.receive(delivery)


class Kind:
    """Posts to a receiver of one kind."""

    def __init__(self, name: str) -> None:
        self.is_async = name == "asgi"

    def receiver(self, verdict: Verdict, **options: Any) -> tuple[Any, Handler]:
        handler: Any = (AsyncHandler if self.is_async else SyncHandler)(verdict)
        return self.wrap(handler, **options), handler

    def wrap(self, consumer: Any, **options: Any) -> Any:
        options = {"signature": SCHEME, **options}
        return (WebhookReceiver if self.is_async else WsgiWebhookReceiver)(consumer, **options)

    def post(self, app: Any, body: bytes = BODY, headers: Any = None, method: str = "POST") -> httpx.Response:
        given = SCHEME.sign("m1", body, now_ms=now_ms()) if headers is None else headers
        if self.is_async:

            async def ask() -> httpx.Response:
                transport = httpx.ASGITransport(app)
                async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                    return await client.request(method, "/hooks", content=body, headers=given)

            return asyncio.run(ask())
        with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://here") as client:
            return client.request(method, "/hooks", content=body, headers=given)


@pytest.fixture(params=["asgi", "wsgi"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return Kind(request.param)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_signed_event_is_handed_to_the_consumer(kind: Kind) -> None:
    app, handler = kind.receiver(judge(Handling.HANDLED))
    headers = {**SCHEME.sign("m1", BODY, now_ms=now_ms()), "content-type": "application/json", "x-color": "red"}
    assert (response := kind.post(app, headers=headers)).status_code == 200
    assert response.content == b""
    (delivery,) = handler.seen
    assert (delivery.id, delivery.payload, delivery.topic) == ("m1", BODY, "/hooks")
    assert delivery.content_type == "application/json"
    assert delivery.headers["x-color"] == "red"


@pytest.mark.parametrize(
    ("verdict", "status", "retry_after"),
    [
        (judge(Handling.DUPLICATE), 200, None),
        (judge(Handling.IN_PROGRESS, delay_ms=1_500), 409, "2"),
        (judge(Handling.RAISED, attempt=3), 503, "4"),
        (judge(Handling.NOTHING_DONE, delay_ms=0), 503, "1"),
        (judge(Handling.STORE_AWAY), 503, "1"),
        (judge(Handling.EXHAUSTED, "ValueError: secret"), 422, None),
        (judge(Handling.FINAL, "ValueError: secret"), 422, None),
        (judge(Handling.REUSED), 422, None),
        (judge(Handling.UNKNOWN), 422, None),
        (judge(Handling.UNNAMED), 400, None),
    ],
    ids=lambda value: value.handling.name if isinstance(value, Verdict) else None,
)
def test_the_verdict_is_the_answer(kind: Kind, verdict: Verdict, status: int, retry_after: str | None) -> None:
    response = kind.post(kind.receiver(verdict)[0])
    assert response.status_code == status
    assert response.headers.get("retry-after") == retry_after
    assert b"secret" not in response.content
    if status != 200:
        assert json.loads(response.content)["status"] == status


def test_a_dead_letter_that_was_kept_is_answered_with_200(kind: Kind) -> None:
    kept: list[tuple[Delivery, Verdict]] = []

    def keep(delivery: Delivery, verdict: Verdict) -> None:
        kept.append((delivery, verdict))

    async def keep_async(delivery: Delivery, verdict: Verdict) -> None:
        keep(delivery, verdict)

    chosen = keep_async if kind.is_async else keep
    app, _ = kind.receiver(judge(Handling.FINAL, "no"), dead_letter=chosen)
    assert kind.post(app).status_code == 200
    ((delivery, verdict),) = kept
    assert (delivery.id, verdict.reason) == ("m1", "no")
    app, _ = kind.receiver(judge(Handling.UNNAMED), dead_letter=chosen)
    assert kind.post(app).status_code == 400
    app, _ = kind.receiver(judge(Handling.RAISED), dead_letter=chosen)
    assert kind.post(app).status_code == 503
    assert len(kept) == 1


def test_a_dead_letter_that_could_not_be_kept_is_sent_again(kind: Kind) -> None:
    def fail(delivery: Delivery, verdict: Verdict) -> None:
        raise RuntimeError("no room")

    async def fail_async(delivery: Delivery, verdict: Verdict) -> None:
        fail(delivery, verdict)

    app, _ = kind.receiver(judge(Handling.FINAL), dead_letter=fail_async if kind.is_async else fail)
    response = kind.post(app)
    assert (response.status_code, response.headers["retry-after"]) == (503, "10")


Change = Callable[[Mapping[str, str]], Mapping[str, str]]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda _: {}, 401),
        (lambda headers: {**headers, "webhook-id": "m2"}, 401),
        (lambda headers: {**headers, "webhook-signature": "v1,AAAA"}, 401),
        (lambda _: SCHEME.sign("m1", BODY, now_ms=now_ms() - 301_000), 401),
        (lambda _: SCHEME.sign("m1", BODY, now_ms=now_ms() + 302_000), 401),
        (lambda headers: {**headers, "webhook-timestamp": "today"}, 400),
        (lambda headers: {name: value for name, value in headers.items() if name != "webhook-id"}, 400),
        (lambda _: SCHEME.sign("m1", BODY, now_ms=now_ms() - 250_000), 200),
    ],
)
def test_what_is_not_signed_now_by_a_known_sender_reaches_no_handler(kind: Kind, change: Change, status: int) -> None:
    app, handler = kind.receiver(judge(Handling.HANDLED))
    headers = change(SCHEME.sign("m1", BODY, now_ms=now_ms()))
    assert kind.post(app, headers=dict(headers)).status_code == status
    assert len(handler.seen) == (status == 200)


def test_a_changed_body_is_refused(kind: Kind) -> None:
    app, handler = kind.receiver(judge(Handling.HANDLED))
    assert kind.post(app, b"{}", headers=SCHEME.sign("m1", BODY, now_ms=now_ms())).status_code == 401
    assert handler.seen == []


def test_a_body_over_the_bound_is_refused_before_its_signature_is_computed(kind: Kind) -> None:
    app, handler = kind.receiver(judge(Handling.HANDLED), body_max=100)
    assert kind.post(app, b"x" * 100).status_code == 200
    assert kind.post(app, b"x" * 101).status_code == 413
    app, _ = kind.receiver(judge(Handling.HANDLED))
    assert kind.post(app, b"x" * 1024 * 1024).status_code == 200
    assert kind.post(app, b"x" * (1024 * 1024 + 1)).status_code == 413
    assert len(handler.seen) == 1


def test_only_post_is_taken(kind: Kind) -> None:
    app, handler = kind.receiver(judge(Handling.HANDLED))
    response = kind.post(app, method="GET")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert handler.seen == []


def test_without_a_signature_the_id_is_the_idempotency_key(kind: Kind) -> None:
    app, handler = kind.receiver(judge(Handling.HANDLED), signature=None)
    assert kind.post(app, headers={"Idempotency-Key": "k1"}).status_code == 200
    assert kind.post(app, headers={}).status_code == 400
    assert [each.id for each in handler.seen] == ["k1"]


def test_the_id_may_be_in_a_header_of_your_choice_or_in_none(kind: Kind) -> None:
    app, handler = kind.receiver(judge(Handling.HANDLED), signature=None, id_header="X-Event")
    assert kind.post(app, headers={"x-event": "e1"}).status_code == 200
    app, other = kind.receiver(judge(Handling.HANDLED), signature=None, id_header=None)
    assert kind.post(app, headers={}).status_code == 200
    assert [each.id for each in handler.seen + other.seen] == ["e1", None]


def test_events_of_stripe_and_github_are_verified(kind: Kind) -> None:
    timestamp, secret = str(now_ms() // 1000), b"0123456789abcdef"
    signed = hmac.new(secret, f"{timestamp}.".encode() + BODY, hashlib.sha256).hexdigest()
    app, handler = kind.receiver(judge(Handling.HANDLED), signature=StripeSignature(secret))
    assert kind.post(app, headers={"Stripe-Signature": f"t={timestamp},v1={signed}"}).status_code == 200
    assert kind.post(app, headers={"Stripe-Signature": f"t={timestamp},v1={signed[:-1]}0x"}).status_code == 401
    assert [each.id for each in handler.seen] == [None]
    signed = hmac.new(secret, BODY, hashlib.sha256).hexdigest()
    app, handler = kind.receiver(judge(Handling.HANDLED), signature=GithubSignature(secret))
    headers = {"X-Hub-Signature-256": f"sha256={signed}", "X-GitHub-Delivery": "guid"}
    assert kind.post(app, headers=headers).status_code == 200
    assert [each.id for each in handler.seen] == ["guid"]


def test_a_receiver_that_does_not_say_who_may_send_is_refused() -> None:
    for receiver in (WebhookReceiver, WsgiWebhookReceiver):
        with pytest.raises(Misuse, match=r"Write signature=StandardWebhooks\(secret\)"):
            receiver(SyncHandler(judge(Handling.HANDLED)))  # type: ignore[arg-type]
    handler = AsyncHandler(judge(Handling.HANDLED))
    with pytest.raises(TypeError, match="must be a scheme like StandardWebhooks"):
        WebhookReceiver(handler, signature="whsec_abc")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="body_max must be from 1"):
        WebhookReceiver(handler, signature=None, body_max=0)


def scope(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http", "method": "POST", "path": "/hooks", "headers": headers}


async def exchange(app: WebhookReceiver, scope: dict[str, Any], *events: dict[str, Any]) -> list[Any]:
    sent, coming = list[Any](), list(events)

    async def receive() -> dict[str, Any]:
        return coming.pop(0)

    async def send(event: Any) -> None:
        sent.append(event)

    await app(scope, receive, send)
    return sent


def test_a_sender_that_leaves_in_the_middle_of_its_body_is_not_handled() -> None:
    handler = AsyncHandler(judge(Handling.HANDLED))
    app = WebhookReceiver(handler, signature=None)
    part = {"type": "http.request", "body": b"{", "more_body": True}
    sent = asyncio.run(exchange(app, scope((b"idempotency-key", b"k")), part, {"type": "http.disconnect"}))
    assert (sent, handler.seen) == ([], [])


def test_an_id_that_is_there_twice_is_refused() -> None:
    handler = AsyncHandler(judge(Handling.HANDLED))
    app = WebhookReceiver(handler, signature=None)
    twice = scope((b"idempotency-key", b"a"), (b"Idempotency-Key", b"b"))
    sent = asyncio.run(exchange(app, twice, {"type": "http.request", "body": b""}))
    assert (sent[0]["status"], handler.seen) == (400, [])


def test_an_asgi_receiver_may_be_the_whole_application() -> None:
    app = WebhookReceiver(AsyncHandler(judge(Handling.HANDLED)), signature=None)
    life = ({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
    sent = asyncio.run(exchange(app, {"type": "lifespan"}, *life))
    assert [each["type"] for each in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert asyncio.run(exchange(app, {"type": "websocket"})) == [{"type": "websocket.close"}]


def environ(body: bytes, **more: Any) -> dict[str, Any]:
    fixed = {"REQUEST_METHOD": "POST", "PATH_INFO": "/hooks", "HTTP_IDEMPOTENCY_KEY": "k"}
    return {**fixed, "wsgi.input": io.BytesIO(body), **more}


@pytest.mark.parametrize(
    ("more", "status", "read"),
    [
        ({}, 411, 0),
        ({"CONTENT_LENGTH": "3"}, 200, 3),
        ({"CONTENT_LENGTH": "9" * 5000}, 413, 0),
        ({"wsgi.input_terminated": True}, 200, 6),
    ],
)
def test_a_wsgi_receiver_never_reads_past_the_body(more: dict[str, Any], status: int, read: int) -> None:
    handler = SyncHandler(judge(Handling.HANDLED))
    app = WsgiWebhookReceiver(handler, signature=None)
    told: list[str] = []
    given = environ(b"abcdef", **more)
    app(given, lambda line, _: told.append(line))  # type: ignore[arg-type]
    assert told == [f"{status} {HTTPStatus(status).phrase}"]  # Python 3.13 has another phrase for 413
    assert given["wsgi.input"].tell() == read


@pytest.mark.parametrize("name", ["sqlite3", "aiosqlite"])
def test_an_event_that_is_sent_again_and_again_takes_effect_once(name: str, urls: Mapping[str, str]) -> None:
    mode = next(each for each in MODES if each.name == name)
    kind = Kind("asgi" if mode.is_async else "wsgi")
    shop = Shop(mode, urls["sqlite"], handler=f"webhooks.{name}", attempts_max=2)
    app = kind.wrap(shop.consumer)
    body = f"effect of {name}".encode()
    shop.then = refuse
    assert kind.post(app, body).status_code == 503
    assert effects(urls["sqlite"], body.decode()) == 0
    shop.then = lambda delivery: None
    assert [kind.post(app, body).status_code for _ in range(3)] == [200, 200, 200]
    assert effects(urls["sqlite"], body.decode()) == 1
    assert kind.post(app, b"another payload").status_code == 422  # under the same id
    assert effects(urls["sqlite"], "another payload") == 0


@pytest.mark.parametrize("name", ["sqlite3", "aiosqlite"])
def test_the_id_of_an_event_of_stripe_is_in_its_payload(name: str, urls: Mapping[str, str]) -> None:
    mode = next(each for each in MODES if each.name == name)
    kind = Kind("asgi" if mode.is_async else "wsgi")
    shop = Shop(mode, urls["sqlite"], handler=f"stripe.{name}", id=field("/id"))
    secret, timestamp = b"0123456789abcdef", str(now_ms() // 1000)
    app = kind.wrap(shop.consumer, signature=StripeSignature(secret))

    def post(body: bytes) -> int:
        signed = hmac.new(secret, f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
        return kind.post(app, body, {"Stripe-Signature": f"t={timestamp},v1={signed}"}).status_code

    body = json.dumps({"id": f"evt_{name}"}).encode()
    assert [post(body), post(body)] == [200, 200]
    assert effects(urls["sqlite"], body.decode()) == 1
    assert post(b"{}") == 400


def refuse(delivery: Delivery) -> None:
    raise NotExecuted("not now")


def test_the_table_of_answers_stands_in_the_docstring() -> None:
    for status in (200, 401, 400, 413, 409, 503, 422):
        assert str(status) in (AnyReceiver.__doc__ or "")
