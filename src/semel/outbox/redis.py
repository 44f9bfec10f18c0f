"""Publishes to Redis streams by redis-py: one entry for each message, appended in pipelines of whatever waits."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import redis.asyncio
from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from semel.core.messages import Message
from semel.errors import BrokerMisconfigured, BrokerUnavailable, NotPublished, Poison, SemelError
from semel.outbox.connection import TIMEOUT_MS, SharedConnection, check_trust, take_timeout
from semel.outbox.headers import pack_headers
from semel.outbox.publisher import BrokerUrl

SCHEMES = {"redis": "redis", "valkey": "redis", "rediss": "rediss", "valkeys": "rediss"}
PAYLOAD = "payload"
BATCH_MAX = 512
LENGTH_MAX = 10**12
REPLICAS_MAX = 100
PREFIX = re.compile(r"[\x21-\x7e]{0,64}")
AWAY = (exceptions.ReadOnlyError, exceptions.OutOfMemoryError, exceptions.MasterDownError, exceptions.TryAgainError)
AWAY_WORDS = re.compile("MISCONF|OOM|BUSY|NOREPLICAS|LOADING")
REFUSED = re.compile("NOAUTH|WRONGPASS|NOPERM|MOVED|ERR unknown command|ERR AUTH|DENIED")


def open_publisher(url: BrokerUrl) -> RedisPublisher:
    """`redis://user:password@host:6379/0?maxlen=100000`, or `rediss://` for TLS; `valkey://` is the same."""
    place = url.parts._replace(scheme=SCHEMES[url.parts.scheme], query="", fragment="").geturl()
    return RedisPublisher(
        place,
        prefix=url.text_option("prefix"),
        maxlen=url.number("maxlen", 0, least=0, most=LENGTH_MAX) or None,
        replicas=url.number("replicas", 0, least=0, most=REPLICAS_MAX),
        accept_no_persistence=url.flag("accept_no_persistence"),
        accept_eviction=url.flag("accept_eviction"),
        timeout_ms=take_timeout(url),
        ca_file=url.text_option("ca_file") or None,
    )


class RedisPublisher:
    """Appends to a stream of Redis; the stream is `prefix` and the message's topic.

    - `publish` returns after the reply of `XADD`. With `replicas=N`, N replicas have the entry, too (`WAIT`); if they
      have not within `timeout_ms`, `BrokerUnavailable` is raised.
    - An entry has the fields `payload`, `semel-id`, `content-type`, `semel-key` if there is an ordering key, and one
      field for each header of the message. The id that Redis gives to the entry is a new one for each `XADD`: Redis
      does not notice a message that is published again. Consumers must go by `semel-id`.
    - What Redis acknowledged can be lost: by a failover to a replica that lags behind, and by a crash up to the second
      that `appendfsync everysec` allows. A server without an append-only file would lose every message, one that evicts
      keys whole streams: both are refused with `BrokerMisconfigured`, unless `accept_no_persistence` and
      `accept_eviction` say that you know better.
    - `maxlen` trims a stream to about so many entries, whether they were read or not.

    For a single server and its replicas, not for Redis Cluster. `ca_file` names the certificates to trust for TLS.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "",
        maxlen: int | None = None,
        replicas: int = 0,
        accept_no_persistence: bool = False,
        accept_eviction: bool = False,
        timeout_ms: int = TIMEOUT_MS,
        ca_file: str | None = None,
    ) -> None:
        if not PREFIX.fullmatch(prefix):
            raise BrokerMisconfigured(f"prefix must be up to 64 visible ASCII characters, not {prefix!r}")
        self._url, self._prefix, self._replicas = url, prefix, replicas
        self._trim: tuple[str | int, ...] = ("MAXLEN", "~", maxlen) if maxlen else ()
        self._lossy_accepted = {"accept_no_persistence": accept_no_persistence, "accept_eviction": accept_eviction}
        self._timeout_ms = timeout_ms
        self._options: dict[str, Any] = {"ssl_ca_certs": ca_file} if ca_file else {}
        shown = BrokerUrl.parse(url).shown
        self._shared = SharedConnection(shown, timeout_ms, self._connect, self._disconnect)
        self._waiting: list[tuple[list[str | int | bytes], asyncio.Future[None]]] = []
        self._sending: asyncio.Task[None] | None = None

    async def publish(self, message: Message) -> None:
        """Waits for the pipeline that is under way, then for its own: at most twice `timeout_ms`."""
        loop = asyncio.get_running_loop()
        if self._sending is not None and self._sending.get_loop() is not loop:
            self._sending, self._waiting = None, []
        confirmed: asyncio.Future[None] = loop.create_future()
        self._waiting.append((self._pack(message), confirmed))
        if self._sending is None or self._sending.done():
            self._sending = loop.create_task(self._send_all())
        await confirmed

    async def close(self) -> None:
        await self._shared.close()

    async def _send_all(self) -> None:
        while self._waiting:
            batch = [each for each in self._waiting[:BATCH_MAX] if not each[1].done()]
            del self._waiting[:BATCH_MAX]
            try:
                replies = await self._send([words for words, _ in batch])
            except Exception as error:
                replies = [error] * len(batch)
            for (_, confirmed), reply in zip(batch, replies, strict=True):
                if confirmed.done():
                    continue
                if isinstance(reply, Exception):
                    confirmed.set_exception(self._explain(reply))
                else:
                    confirmed.set_result(None)

    async def _send(self, entries: list[list[str | int | bytes]]) -> list[object]:
        async with self._shared.use() as client:
            pipeline = client.pipeline(transaction=False)
            for words in entries:
                pipeline.execute_command(*words)
            if self._replicas:
                pipeline.execute_command("WAIT", self._replicas, max(1, self._timeout_ms // 2))
            try:
                replies = await pipeline.execute(raise_on_error=False)
            except BaseException:
                self._shared.lose(client)  # a reply that is still to come would be taken for the next one's
                raise
        if self._replicas and (have := replies.pop()) < self._replicas:
            missing = BrokerUnavailable(
                f"{self._shared.shown}: {have} of {self._replicas} replicas confirmed within {self._timeout_ms // 2} ms"
            )
            replies = [each if isinstance(each, Exception) else missing for each in replies]
        return list(replies)

    def _pack(self, message: Message) -> list[str | int | bytes]:
        words: list[str | int | bytes] = ["XADD", self._prefix + message.topic, *self._trim, "*"]
        words += (PAYLOAD, message.payload)
        for name, value in pack_headers(message).items():
            if name == PAYLOAD:
                raise Poison(f"message {message.id} has a header {PAYLOAD!r}, the name of the field of the payload")
            words += (name, value)
        return words

    def _explain(self, error: Exception) -> Exception:
        """An error for one of several tasks, which must not share one object."""
        told = str(error)
        if isinstance(error, SemelError):
            return type(error)(told)
        if isinstance(error, exceptions.AuthenticationError | exceptions.NoPermissionError) or REFUSED.match(told):
            return BrokerMisconfigured(f"{self._shared.shown} refuses: check user, password and rights: {told}")
        away = isinstance(error, AWAY) or AWAY_WORDS.match(told)
        if isinstance(error, exceptions.ResponseError) and not away:
            return NotPublished(f"{self._shared.shown} did not take the message: {told}")
        if isinstance(error, exceptions.RedisError | OSError):
            return BrokerUnavailable(f"{self._shared.shown}: {told or type(error).__name__}")
        return error

    async def _connect(self) -> redis.asyncio.Redis:
        timeout_s = self._timeout_ms / 1000
        client = redis.asyncio.Redis.from_url(
            self._url,
            retry=Retry(NoBackoff(), 0),  # a repeated XADD would be a second entry
            socket_connect_timeout=timeout_s,
            socket_timeout=None,
            socket_keepalive=True,
            **self._options,
        )
        try:
            self._check(await client.info())
        except BaseException as error:
            await client.aclose()
            check_trust(self._shared.shown, error)
            raise
        return client

    def _check(self, told: dict[str, Any]) -> None:
        """Refuse a server that loses acknowledged messages by its settings."""
        flaws = dict.fromkeys(self._lossy_accepted, "")
        if not told.get("aof_enabled"):
            flaws["accept_no_persistence"] = "has no append-only file: set appendonly yes"
        if told.get("maxmemory") and (policy := told.get("maxmemory_policy")) != "noeviction":
            flaws["accept_eviction"] = f"evicts keys ({policy}): set maxmemory-policy noeviction"
        for option, flaw in flaws.items():
            if flaw and not self._lossy_accepted[option]:
                raise BrokerMisconfigured(
                    f"{self._shared.shown} {flaw}, or it would lose messages that it acknowledged; "
                    f"{option}=true accepts that"
                )

    async def _disconnect(self, client: redis.asyncio.Redis) -> None:
        await client.aclose()
