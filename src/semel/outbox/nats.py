"""Publishes to NATS JetStream by nats-py: the stream confirms that it stored a message, and drops repeats of it."""

from __future__ import annotations

import asyncio
import ssl
from enum import IntEnum
from itertools import count
from json import loads
from typing import Any

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from semel.core.messages import Message
from semel.errors import BrokerMisconfigured, BrokerUnavailable, NotPublished, Poison
from semel.outbox.connection import TIMEOUT_MS, SharedConnection, check_trust, take_timeout
from semel.outbox.headers import pack_headers
from semel.outbox.publisher import BrokerUrl

NO_RESPONDERS = "503"
BUFFER_MAX = 16 * 1024 * 1024


def open_publisher(url: BrokerUrl) -> NatsPublisher:
    """`nats://user:password@host:4222?stream=ORDERS`, or `tls://` for TLS; several hosts with commas between them."""
    return NatsPublisher(
        url.parts._replace(query="", fragment="").geturl(),
        stream=url.text_option("stream") or None,
        credentials=url.text_option("credentials") or None,
        timeout_ms=take_timeout(url),
        ca_file=url.text_option("ca_file") or None,
    )


class JetStreamError(IntEnum):
    """`err_code` of a refusal."""

    MESSAGE_TOO_LARGE = 10054
    WRONG_STREAM = 10060


class Session:
    """A connection, and the streams' replies on it.

    nats-py can publish and wait for the reply, too: one way takes a task and a time-out for each message, and the other
    (`publish_async`) never ends when a stream refuses a message (2.16).
    """

    def __init__(self) -> None:
        self.client = Client()
        self._inbox = ""
        self._numbers = count()
        self._waiting: dict[str, asyncio.Future[Msg]] = {}

    async def listen(self) -> None:
        self._inbox = self.client.new_inbox()
        await self.client.subscribe(f"{self._inbox}.*", cb=self._receive)

    async def ask(self, subject: str, payload: bytes, headers: dict[str, str]) -> Msg:
        reply: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        name = f"{self._inbox}.{next(self._numbers)}"
        self._waiting[name] = reply
        try:
            await self.client.publish(subject, payload, reply=name, headers=headers)
            return await reply
        finally:
            del self._waiting[name]

    async def _receive(self, message: Msg) -> None:
        reply = self._waiting.get(message.subject)
        if reply is not None and not reply.done():
            reply.set_result(message)


class NatsPublisher:
    """Publishes to the streams of NATS JetStream; the subject is the message's topic.

    - `publish` returns after the stream's acknowledgement: the message is stored, on as many servers as the stream has
      replicas. NATS calls `fsync` in intervals, so a power cut of all of them can lose what they acknowledged last.
    - The headers `Nats-Msg-Id` and `semel-id` are the message's id, so that the stream itself drops a message that is
      published again within its duplicate window (2 minutes unless you configured another one). `semel-key` is the
      ordering key, `content-type` the content type. The message's own headers are headers.
    - A subject that no stream listens to raises `NotPublished`, and is tried again like any failed attempt: a stream
      that is added later still gets the message.
    - A server without JetStream, a refused login and a subject of another stream than `stream` raise
      `BrokerMisconfigured`.

    Streams are never added here: they belong to your deployment. `stream` is the name of the stream that you expect to
    store the messages, `credentials` the path of a NATS credentials file, `ca_file` the certificates to trust for TLS.
    """

    def __init__(
        self,
        url: str,
        *,
        stream: str | None = None,
        credentials: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
        ca_file: str | None = None,
    ) -> None:
        scheme, _, places = url.partition("://")
        self._servers = [f"{scheme}://{place}" for place in places.split(",")]
        self._stream, self._timeout_s = stream, timeout_ms / 1000
        self._options: dict[str, Any] = {"user_credentials": credentials} if credentials else {}
        if scheme == "tls" or ca_file:
            self._options["tls"] = ssl.create_default_context(cafile=ca_file)
        shown = BrokerUrl.parse(url).shown
        self._shared = SharedConnection(
            shown, timeout_ms, self._connect, self._disconnect, lambda session: session.client.is_connected
        )

    async def publish(self, message: Message) -> None:
        headers = pack_headers(message, {"Nats-Msg-Id": message.id})
        if self._stream is not None:
            headers["Nats-Expected-Stream"] = self._stream
        async with self._shared.use() as session:
            try:
                reply = await session.ask(message.topic, message.payload, headers)
                if (reply.headers or {}).get("Status") == NO_RESPONDERS:
                    await self._explain_silence(session, message)
            except nats.errors.MaxPayloadError as error:
                raise Poison(
                    f"{self._shared.shown} takes up to {session.client.max_payload} bytes, and message {message.id} is "
                    "larger: raise max_payload of the server"
                ) from error
            except (nats.errors.BadSubjectError, nats.errors.BadHeaderError) as error:
                raise Poison(f"NATS cannot carry message {message.id} on subject {message.topic!r}: {error}") from error
            except TimeoutError:
                raise
            except (nats.errors.Error, OSError) as error:
                self._shared.lose(session)
                raise BrokerUnavailable(f"{self._shared.shown}: the connection was lost: {error!r}") from error
        self._judge(message, reply)

    async def close(self) -> None:
        await self._shared.close()

    async def _explain_silence(self, session: Session, message: Message) -> None:
        """No stream answered: there is none, or its servers are about to elect a leader."""
        shown = self._shared.shown
        try:
            name = await session.client.jetstream().find_stream_name_by_subject(message.topic)
        except nats.js.errors.NotFoundError as error:
            raise NotPublished(
                f"{shown}: no stream listens to {message.topic!r}: add one, or add the subject to a stream"
            ) from error
        except (nats.js.errors.ServiceUnavailableError, nats.errors.NoRespondersError) as error:
            raise BrokerMisconfigured(f"{shown} has no JetStream: start it with --jetstream: {error}") from error
        raise BrokerUnavailable(f"{shown}: stream {name} does not answer now")

    def _judge(self, message: Message, reply: Msg) -> None:
        """The stream's acknowledgement names the stream; any other reply is a refusal."""
        try:
            told: dict[str, Any] = loads(reply.data)
        except ValueError:
            told = {}
        if told.get("stream") and "error" not in told:
            return
        error: dict[str, Any] = told.get("error", {"description": f"not a reply of JetStream: {reply.data[:80]!r}"})
        answer = f"{self._shared.shown} refuses message {message.id}: {error.get('description')}"
        number = error.get("err_code")
        if number == JetStreamError.MESSAGE_TOO_LARGE:
            raise Poison(f"{answer}: raise max_msg_size of the stream")
        if number == JetStreamError.WRONG_STREAM:
            raise BrokerMisconfigured(f"{answer}: {message.topic!r} does not belong to stream {self._stream}")
        if error.get("code") in (500, 503):
            raise BrokerUnavailable(answer)  # a full stream, too: its consumers make room
        raise NotPublished(answer)

    async def _connect(self) -> Session:
        shown, session = self._shared.shown, Session()
        client, failures = session.client, list[Exception]()

        async def give_up() -> None:
            """nats-py leaves those who wait for a reply waiting."""
            self._shared.lose(session)

        async def keep(error: Exception) -> None:
            """What fails is reported by the publish that it fails for."""
            failures[:] = [error]

        try:
            await client.connect(
                self._servers,
                allow_reconnect=False,
                max_reconnect_attempts=1,  # to each server, also for the first connection; 0 would be without end
                reconnect_time_wait=0,
                connect_timeout=max(1, round(self._timeout_s)),
                pending_size=BUFFER_MAX,
                disconnected_cb=give_up,
                error_cb=keep,
                **self._options,
            )
            await session.listen()
        except (nats.errors.Error, OSError) as error:
            self._shared.dismiss(session)
            for each in (*failures, error):
                check_trust(shown, each)
            if "authorization" in str(error).lower():  # nats-py has no class for it
                raise BrokerMisconfigured(f"{shown} refuses the login: check user and password: {error}") from error
            raise BrokerUnavailable(f"{shown} cannot be reached: {(failures or [error])[0]!r}") from error
        return session

    async def _disconnect(self, session: Session) -> None:
        await session.client.close()
