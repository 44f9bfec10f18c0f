"""Receives webhooks: verifies the signature, has a consumer handle the event, and answers as the sender needs it."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Protocol
from wsgiref.types import StartResponse, WSGIEnvironment

from semel.core.messages import Delivery
from semel.core.signatures import (
    GithubSignature,
    SignatureFlaw,
    SignatureScheme,
    StandardWebhooks,
    StripeSignature,
)
from semel.core.verdicts import Handling, Settling, Verdict
from semel.errors import Misuse
from semel.inbox.worker import DeliveryConsumer
from semel.runtime.clock import wall_ms

__all__ = [
    "GithubSignature",
    "SignatureScheme",
    "StandardWebhooks",
    "StripeSignature",
    "WebhookReceiver",
    "WsgiWebhookReceiver",
]
logger = logging.getLogger("semel")
BODY_MAX, BODY_MAX_MOST = 1024 * 1024, 64 * 1024 * 1024
RETRY_S = 10
"""When a sender tries again whose dead letter could not be kept."""
CHUNK = 65_536
LATER = "It could not be handled now: send it again later"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class SyncDeliveryConsumer(Protocol):
    """What handles deliveries in threads: made by `Inbox(…).consumer(…)`."""

    @property
    def handler(self) -> str: ...

    def __call__(self, delivery: Delivery, /) -> Verdict: ...


class _Unset:
    """Stands for an argument that the caller did not give."""


UNSET: Final = _Unset()


@dataclass(frozen=True)
class WebhookReply:
    """The answer to a sender. It never says what went wrong inside: that is in the log and in the events."""

    status: HTTPStatus
    title: str = ""
    headers: Mapping[str, str] | None = None

    @property
    def body(self) -> bytes:
        return json.dumps({"title": self.title, "status": self.status}).encode() if self.title else b""

    def all_headers(self) -> list[tuple[str, str]]:
        kind = [("content-type", "application/problem+json")] if self.title else []
        return [*kind, ("content-length", str(len(self.body))), *(self.headers or {}).items()]


class AnyReceiver:
    """What the receivers for ASGI and WSGI share: from a request to a delivery, and from a verdict to an answer.

    | what became of the event | answer |
    |---|---|
    | handled, now or before | 200 |
    | no signature, a wrong one, or an old one | 401; nothing is stored |
    | headers that cannot be read, no event id | 400 |
    | a body over `body_max` | 413 |
    | it is being handled | 409 and Retry-After |
    | the handler failed and attempts are left, or the store is away | 503 and Retry-After |
    | a dead letter: a final error, no attempts left, another payload under the same id, an unknown outcome | 422 |

    A dead letter is answered with 422, so that it stays with the sender: it shows up there as failed, and semel's own
    publisher keeps it among its dead letters. Senders that repeat a 422 get it again, and nothing is run. Some senders
    switch a receiver off that fails too often; for those, give `dead_letter=`, a function that keeps the event and its
    verdict in a place of yours. The sender then gets 200, after your function has returned.

    `signature` is a scheme: `StandardWebhooks`, `StripeSignature`, `GithubSignature` or one of yours. `None` accepts
    unsigned requests, for a receiver that only your own services can reach.

    The event's id is the header that the scheme names (`webhook-id`), or `Idempotency-Key` if there is no signature.
    `id_header=` names another one, and `id_header=None` leaves it to `id=` of the consumer, for ids in the payload. A
    header that the signature does not cover can be changed by an attacker who sends a recorded request again.
    """

    def __init__(
        self,
        *,
        signature: SignatureScheme | _Unset | None,
        id_header: str | _Unset | None,
        body_max: int,
        clock: Callable[[], int],
    ) -> None:
        if isinstance(signature, _Unset):
            raise Misuse(
                "who may send? Write signature=StandardWebhooks(secret) (or another scheme), or signature=None if only "
                "your own services can reach this receiver"
            )
        if signature is not None and not isinstance(signature, SignatureScheme):  # pyright: ignore
            raise TypeError(
                f"signature= must be a scheme like StandardWebhooks(secret), not {type(signature).__name__}"
            )
        if not 1 <= body_max <= BODY_MAX_MOST:
            raise ValueError(f"body_max must be from 1 to {BODY_MAX_MOST} bytes, not {body_max}")
        self._signature, self._body_max, self._clock = signature, body_max, clock
        if isinstance(id_header, _Unset):
            id_header = "idempotency-key" if signature is None else signature.id_header
        self._id_header = id_header and id_header.lower()

    def _admit(self, headers: Mapping[str, str], body: bytes, topic: str, raw: object) -> Delivery | WebhookReply:
        if self._signature is not None:
            flaw = self._signature.find_flaw(headers, body, now_ms=self._clock())
            if flaw is not None:
                logger.warning("a webhook on %s was refused: %s", topic, flaw.value)
                malformed = flaw is SignatureFlaw.MALFORMED
                status = HTTPStatus.BAD_REQUEST if malformed else HTTPStatus.UNAUTHORIZED
                return WebhookReply(status, f"The request is refused: {flaw.value}")
        message_id = None if self._id_header is None else headers.get(self._id_header, "").strip()
        if message_id == "":
            return WebhookReply(HTTPStatus.BAD_REQUEST, f"The header {self._id_header} is missing: it names the event")
        content_type = headers.get("content-type", "")
        return Delivery(body, id=message_id, topic=topic, content_type=content_type, headers=headers, raw=raw)

    def _answer(self, verdict: Verdict) -> WebhookReply:
        retry = {"retry-after": str(max(1, -(-verdict.delay_ms // 1000)))}
        match verdict.settling:
            case Settling.ACKNOWLEDGE:
                return WebhookReply(HTTPStatus.OK)
            case Settling.DELIVER_AGAIN if verdict.handling is Handling.IN_PROGRESS:
                return WebhookReply(HTTPStatus.CONFLICT, "This event is being handled: send it again later", retry)
            case Settling.DELIVER_AGAIN | Settling.STOP:
                return WebhookReply(
                    HTTPStatus.SERVICE_UNAVAILABLE, "It could not be handled now: send it again later", retry
                )
            case Settling.DEAD_LETTER if verdict.handling is Handling.UNNAMED:
                return WebhookReply(HTTPStatus.BAD_REQUEST, "The event has no id that can be used")
            case Settling.DEAD_LETTER | Settling.PARK:
                title = "This event cannot be handled: do not send it again"
                return WebhookReply(HTTPStatus.UNPROCESSABLE_ENTITY, title)

    def _is_for_keeping(self, verdict: Verdict) -> bool:
        return verdict.settling in (Settling.DEAD_LETTER, Settling.PARK) and verdict.handling is not Handling.UNNAMED


NOT_POST = WebhookReply(HTTPStatus.METHOD_NOT_ALLOWED, "Webhooks are sent by POST", {"allow": "POST"})
TOO_LARGE = WebhookReply(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The body is too large")
NO_LENGTH = WebhookReply(HTTPStatus.LENGTH_REQUIRED, "The length of the body is not given")
NOT_KEPT = WebhookReply(HTTPStatus.SERVICE_UNAVAILABLE, LATER, {"retry-after": str(RETRY_S)})
REPEATED = WebhookReply(HTTPStatus.BAD_REQUEST, "A header that names the event is there twice")


class WebhookReceiver(AnyReceiver):
    """The receiver as an ASGI application: mount it where the sender posts to.

        app = WebhookReceiver(inbox.consumer(handle), signature=StandardWebhooks("whsec_…"))

    `AnyReceiver` says what it answers.
    """

    def __init__(
        self,
        consumer: DeliveryConsumer,
        *,
        signature: SignatureScheme | _Unset | None = UNSET,
        id_header: str | _Unset | None = UNSET,
        dead_letter: Callable[[Delivery, Verdict], Awaitable[object]] | None = None,
        body_max: int = BODY_MAX,
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        super().__init__(signature=signature, id_header=id_header, body_max=body_max, clock=clock)
        self._consumer, self._dead_letter = consumer, dead_letter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                if (reply := await self._receive(scope, receive)) is not None:
                    headers = [(name.encode(), value.encode("latin-1")) for name, value in reply.all_headers()]
                    await send({"type": "http.response.start", "status": int(reply.status), "headers": headers})
                    await send({"type": "http.response.body", "body": reply.body})
            case "lifespan":
                await _live(receive, send)
            case _:
                await send({"type": "websocket.close"})

    async def _receive(self, scope: Scope, receive: Receive) -> WebhookReply | None:
        if scope["method"] != "POST":
            return NOT_POST
        headers = dict[str, str]()
        for name, value in scope["headers"]:
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            if key == self._id_header and key in headers:
                return REPEATED
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        if (body := await self._read(receive)) is None or isinstance(body, WebhookReply):
            return body
        delivery = self._admit(headers, body, scope["path"], scope)
        return delivery if isinstance(delivery, WebhookReply) else await self._handle(delivery)

    async def _read(self, receive: Receive) -> bytes | WebhookReply | None:
        """The body; None if the sender has left."""
        body = bytearray()
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                return None
            body += event.get("body", b"")
            if len(body) > self._body_max:
                return TOO_LARGE
            if not event.get("more_body", False):
                return bytes(body)

    async def _handle(self, delivery: Delivery) -> WebhookReply:
        verdict = await self._consumer(delivery)
        if self._dead_letter is not None and self._is_for_keeping(verdict):
            try:
                await self._dead_letter(delivery, verdict)
            except Exception:
                logger.exception("%s: dead_letter= failed", self._consumer.handler)
                return NOT_KEPT
            return WebhookReply(HTTPStatus.OK)
        return self._answer(verdict)


class WsgiWebhookReceiver(AnyReceiver):
    """The receiver as a WSGI application, for a consumer of `Inbox`. `AnyReceiver` says what it answers."""

    def __init__(
        self,
        consumer: SyncDeliveryConsumer,
        *,
        signature: SignatureScheme | _Unset | None = UNSET,
        id_header: str | _Unset | None = UNSET,
        dead_letter: Callable[[Delivery, Verdict], object] | None = None,
        body_max: int = BODY_MAX,
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        super().__init__(signature=signature, id_header=id_header, body_max=body_max, clock=clock)
        self._consumer, self._dead_letter = consumer, dead_letter

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        reply = self._receive(environ)
        start_response(f"{reply.status.value} {reply.status.phrase}", reply.all_headers())
        return [reply.body]

    def _receive(self, environ: WSGIEnvironment) -> WebhookReply:
        if environ["REQUEST_METHOD"] != "POST":
            return NOT_POST
        body = self._read(environ)
        if isinstance(body, WebhookReply):
            return body
        headers = {name[5:].replace("_", "-").lower(): str(environ[name]) for name in environ if name[:5] == "HTTP_"}
        headers["content-type"] = str(environ.get("CONTENT_TYPE") or "")
        topic = str(environ.get("PATH_INFO", "")).encode("latin-1").decode(errors="replace")
        delivery = self._admit(headers, body, topic, environ)
        return delivery if isinstance(delivery, WebhookReply) else self._handle(delivery)

    def _read(self, environ: WSGIEnvironment) -> bytes | WebhookReply:
        """The body. Nothing is read past its length: many servers would wait for ever."""
        given = str(environ.get("CONTENT_LENGTH") or "")
        if given.isascii() and given.isdecimal():
            length = int(given[:18])
        elif environ.get("wsgi.input_terminated"):
            length = self._body_max + 1
        else:
            return NO_LENGTH
        if given and length > self._body_max:
            return TOO_LARGE
        body = bytearray()
        while len(body) < length and (chunk := environ["wsgi.input"].read(min(CHUNK, length - len(body)))):
            body += chunk
        return bytes(body) if len(body) <= self._body_max else TOO_LARGE

    def _handle(self, delivery: Delivery) -> WebhookReply:
        verdict = self._consumer(delivery)
        if self._dead_letter is not None and self._is_for_keeping(verdict):
            try:
                self._dead_letter(delivery, verdict)
            except Exception:
                logger.exception("%s: dead_letter= failed", self._consumer.handler)
                return NOT_KEPT
            return WebhookReply(HTTPStatus.OK)
        return self._answer(verdict)


async def _live(receive: Receive, send: Send) -> None:
    """For a receiver that is the whole application: there is nothing to start and nothing to stop."""
    while True:
        event = await receive()
        await send({"type": f"{event['type']}.complete"})
        if event["type"] == "lifespan.shutdown":
            return
