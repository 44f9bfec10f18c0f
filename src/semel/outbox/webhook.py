"""Publishes by HTTP: one signed POST for each message, confirmed by the receiver's 2xx."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal
from urllib.parse import quote

import aiohttp

from semel.core.messages import Message
from semel.core.signatures import StandardWebhooks
from semel.errors import BrokerMisconfigured, BrokerUnavailable, NotPublished, Poison
from semel.outbox.connection import TIMEOUT_MS, SharedConnection, take_timeout
from semel.outbox.headers import pack_headers
from semel.outbox.publisher import BrokerUrl

Meaning = Literal["confirmed", "away", "misconfigured", "failed", "poison"]
AWAY = {408, 425, 429, 502, 503, 504}
"""The receiver, or a proxy in front of it, has no time now."""
MISCONFIGURED = {401, 403, 407}
FAILED = {409, 423}
"""409 is also what a receiver with idempotency keys answers while it works on the same message."""
CONNECTIONS = 32
ANSWER_SHOWN = 200
PLACE_OF_TOPIC = "{topic}"
FRAMING = {
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}


def open_publisher(url: BrokerUrl) -> WebhookPublisher:
    """`https://example.com/hooks?secret=whsec_…`: `secret` and the other options are not sent to the receiver.

    A receiver whose own URL has a query needs `WebhookPublisher(url, …)`.
    """
    given = url.text_option("secret").replace(" ", "+")  # what a + of base64 means in a query
    return WebhookPublisher(
        url.parts._replace(query="", fragment="").geturl(),
        secrets=[each for each in given.split(",") if each],
        timeout_ms=take_timeout(url),
        connections=url.number("connections", CONNECTIONS, least=1, most=1000),
    )


class WebhookPublisher:
    """Posts each message to a URL; `{topic}` in it stands for the message's topic.

    - `publish` returns after a 2xx. The payload is the body, as it is.
    - `Idempotency-Key`, `webhook-id` and `semel-id` are the message's id, `semel-key` is its ordering key,
      `semel-topic` its topic, `Content-Type` its content type. The message's own headers are headers.
    - With `secrets` each request is signed by the Standard Webhooks scheme (`webhook-timestamp`, `webhook-signature`).
      With several secrets it has a signature for each: give the receiver the new secret, add it here, and take the old
      one away when every receiver knows the new one.
    - 408, 425, 429, 502, 503, 504 and no answer at all mean that the receiver is away: `BrokerUnavailable`. 401, 403
      and 407 mean that it does not accept this sender, and a redirect that it has moved: `BrokerMisconfigured`. 409,
      423, 500 and any other 5xx count as a failed attempt: `NotPublished`. Any other answer is for good: `Poison`.

    Redirects are not followed, and certificates are verified. Cookies and the environment's proxies are not used.
    """

    def __init__(
        self,
        url: str,
        *,
        secrets: Sequence[str | bytes] = (),
        timeout_ms: int = TIMEOUT_MS,
        connections: int = CONNECTIONS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._url, self._connections, self._clock = url, connections, clock
        parsed = BrokerUrl.parse(url)
        if parsed.parts.scheme not in ("http", "https") or not parsed.parts.hostname:
            raise BrokerMisconfigured(
                f"{parsed.shown} is no URL of a receiver: write something like https://host/hooks"
            )
        try:
            self._signatures = StandardWebhooks(*secrets) if secrets else None
        except (TypeError, ValueError) as error:
            raise BrokerMisconfigured(f"{parsed.shown}: {error}") from None
        self._shared = SharedConnection(parsed.shown, timeout_ms, self._connect, self._disconnect)

    async def publish(self, message: Message) -> None:
        url = self._url.replace(PLACE_OF_TOPIC, quote(message.topic, safe=""))
        headers = self._pack_headers(message)
        async with self._shared.use() as session:
            try:
                async with session.post(url, data=message.payload, headers=headers, allow_redirects=False) as response:
                    told = "" if response.ok else (await response.content.read(ANSWER_SHOWN)).decode(errors="replace")
            except aiohttp.InvalidURL as error:
                raise BrokerMisconfigured(f"{self._shared.shown} is no URL that can be posted to: {error}") from error
            except aiohttp.ClientConnectorCertificateError as error:
                raise BrokerMisconfigured(f"{self._shared.shown}: its certificate is not trusted: {error}") from error
            except TimeoutError:
                raise
            except (aiohttp.ClientError, OSError) as error:
                raise BrokerUnavailable(
                    f"{self._shared.shown} gave no answer: {str(error) or type(error).__name__}"
                ) from error
        self._judge(response, message, " ".join(told.split()))

    async def close(self) -> None:
        await self._shared.close()

    def _judge(self, response: aiohttp.ClientResponse, message: Message, told: str) -> None:
        shown, status = self._shared.shown, response.status
        answer = f"{shown} answered {status} to message {message.id}{': ' if told else ''}{told}"
        match read_status(status):
            case "confirmed":
                return
            case "away":
                raise BrokerUnavailable(answer)
            case "misconfigured" if status < 400:
                moved = response.headers.get("Location", "")
                raise BrokerMisconfigured(f"{answer}: redirects are not followed: publish to {moved or 'its new URL'}")
            case "misconfigured":
                raise BrokerMisconfigured(f"{answer}: it does not accept this sender: check the URL and the secret")
            case "failed":
                raise NotPublished(answer)
            case "poison":
                raise Poison(answer)

    def _pack_headers(self, message: Message) -> dict[str, str]:
        for name in message.headers:
            if name.lower() in FRAMING:
                raise Poison(f"message {message.id} has a header {name!r}, which belongs to HTTP itself: rename it")
        native = {"Idempotency-Key": message.id, StandardWebhooks.ID: message.id}
        if self._signatures is not None:
            native |= self._signatures.sign(message.id, message.payload, now_ms=int(self._clock() * 1000))
        return pack_headers(message, native, topic=True)

    async def _connect(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),  # `SharedConnection` bounds the whole exchange
            auto_decompress=False,
            skip_auto_headers=("User-Agent",),
            trust_env=False,
        )

    async def _disconnect(self, session: aiohttp.ClientSession) -> None:
        await session.close()


def read_status(status: int) -> Meaning:
    """What an answer's status means for its message."""
    if 200 <= status < 300:
        return "confirmed"
    if status in AWAY:
        return "away"
    if status < 400 or status in MISCONFIGURED:
        return "misconfigured"
    return "failed" if status >= 500 or status in FAILED else "poison"
