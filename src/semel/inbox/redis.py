"""Consumes a Redis stream, as one of the consumers of a group."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack, cast

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from semel.core.messages import Delivery
from semel.core.policy_values import Duration
from semel.core.verdicts import Verdict
from semel.errors import BrokerMisconfigured
from semel.inbox.worker import (
    CALL_S,
    MISSING,
    POLL_S,
    BrokerConsumer,
    DeliveryConsumer,
    WorkerOptions,
    logger,
    milliseconds,
    needs_dead_letter,
    reason_headers,
)

__all__ = ["RedisConsumer"]

PAYLOAD, CONTENT_TYPE, ID = b"payload", b"content-type", b"semel-id"
Entry = tuple[bytes, Mapping[bytes, bytes]]
Connect = Callable[[], Awaitable["Redis"]]
IF_MINE = """
local mine = 0
for i = 4, #ARGV do
  if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2]) > 0 then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'IDLE', ARGV[3], 'JUSTID')
    mine = mine + 1
  end
end
return mine
"""
"""Sets how long entries have been idle, but takes none back that another consumer has claimed meanwhile."""
LEAVE = """
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) == 0 then
  redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
end
"""
"""Removes a consumer that owes nothing. Redis forgets what a removed consumer owes, so both are one step."""


@dataclass(frozen=True)
class RedisPlace:
    """Where a consumer takes entries from, and where dead letters go."""

    stream: str
    group: str
    dead_letter: str
    visibility_ms: int


class RedisConsumer(BrokerConsumer["RedisDelivery"]):
    """Handles the entries of a stream, as one consumer of a group.

    - An entry is acknowledged (`XACK`) after its record is stored. It stays in the stream, which you trim; trim only
      what is older than the longest outage of your consumers, since Redis also trims what was never handled.
    - The group is named after the inbox, and is made if it is not there, with the stream. It begins with the first
      entry of the stream (`0`): a group that began with the next one (`$`) would skip what was published before the
      first start of this consumer.
    - An entry whose consumer died is claimed by the others (`XAUTOCLAIM`) after `visibility`. Entries that are being
      handled are kept by a heartbeat of a third of that, so a handler may take as long as it needs.
    - An entry that is to be delivered again can be claimed after its delay, or after `visibility` if that is shorter.
    - A dead letter is an entry of the stream `dead_letter`: the same fields, and `semel-reason`, `semel-handling` and
      `semel-attempt`. The entry is acknowledged after that was added.
    - A Redis that evicts keys at will (`maxmemory-policy allkeys-…`) is refused: it would evict the stream.

    The field `payload` is the payload, `semel-id` the message's id, `content-type` the content type. All other fields
    are headers. `connection` is a URL (`redis://`, `rediss://`), or a function that returns a client.
    """

    failures = (exceptions.RedisError, OSError)

    def __init__(
        self,
        connection: str | Connect,
        stream: str,
        consumer: DeliveryConsumer,
        *,
        dead_letter: str | object = MISSING,
        group: str | None = None,
        visibility: Duration = 60,
        **options: Unpack[WorkerOptions],
    ) -> None:
        super().__init__(consumer, options)
        if not isinstance(dead_letter, str) or not dead_letter:
            raise needs_dead_letter("RedisConsumer", f'"{stream}.dead", the name of another stream')
        if dead_letter == stream:
            raise BrokerMisconfigured(
                f'dead letters in {stream!r} itself would be consumed again: write dead_letter="{stream}.dead"'
            )
        self.place = RedisPlace(stream, group or consumer.handler, dead_letter, milliseconds("visibility", visibility))
        self._connection = connection

    async def _open(self) -> RedisSource:
        client = await self._connect()
        try:
            await self._check(client)
            await self._join(client)
        except BaseException:
            await client.aclose()
            raise
        return RedisSource(client, self.place)

    async def _connect(self) -> Redis:
        if not isinstance(self._connection, str):
            return await self._connection()
        return Redis.from_url(self._connection, socket_timeout=CALL_S, retry=Retry(NoBackoff(), 0))

    async def _check(self, client: Redis) -> None:
        try:
            info = await client.info("memory")
        except exceptions.AuthenticationError as error:
            raise BrokerMisconfigured(f"Redis refuses the login: check user and password: {error}") from error
        except exceptions.ResponseError as error:
            logger.warning(
                "%s: make sure that Redis does not evict (maxmemory-policy noeviction): %s", self._name, error
            )
            return
        policy = str(info.get("maxmemory_policy", ""))
        if policy.startswith("allkeys-"):
            raise BrokerMisconfigured(
                f"Redis has maxmemory-policy {policy}: short of memory it evicts {self.place.stream!r} with messages "
                "that were never handled. Run CONFIG SET maxmemory-policy noeviction, and write maxmemory-policy "
                "noeviction into redis.conf"
            )

    async def _join(self, client: Redis) -> None:
        try:
            await client.xgroup_create(self.place.stream, self.place.group, id="0", mkstream=True)
        except exceptions.ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise BrokerMisconfigured(
                    f"cannot make group {self.place.group!r} of {self.place.stream!r}: {error}"
                ) from error


class RedisSource:
    """One consumer of the group."""

    def __init__(self, client: Redis, place: RedisPlace) -> None:
        self.client, self.place = client, place
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.heartbeat_s: float | None = place.visibility_ms / 3000
        self._set_idle = client.register_script(IF_MINE)
        self._next_claim_s = 0.0
        self._cursor = b"0-0"

    async def take(self, most: int) -> Sequence[RedisDelivery]:
        entries = await self._claim_abandoned(most) or await self._read_new(most)
        return [RedisDelivery(self, entry) for entry in entries]

    async def keep(self, handling: Sequence[RedisDelivery]) -> None:
        await self.set_idle(0, [each.entry_id for each in handling])

    async def set_idle(self, idle_ms: int, entry_ids: Sequence[bytes]) -> None:
        await self._set_idle([self.place.stream], [self.place.group, self.name, idle_ms, *entry_ids])

    async def close(self) -> None:
        try:
            await self.client.eval(LEAVE, 1, self.place.stream, self.place.group, self.name)
        finally:
            await self.client.aclose()

    async def _read_new(self, most: int) -> Sequence[Entry]:
        wanted: dict[Any, Any] = {self.place.stream: ">"}
        wait_ms = round(POLL_S * 1000)
        found: Any = await self.client.xreadgroup(self.place.group, self.name, wanted, count=most, block=wait_ms)
        if not found:
            return ()
        ((_, entries),) = found.items() if isinstance(found, dict) else found
        return cast("Sequence[Entry]", entries)

    async def _claim_abandoned(self, most: int) -> Sequence[Entry]:
        """Entries of dead consumers, and those that are to be delivered again."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._next_claim_s:
            return ()
        place = self.place
        self._cursor, entries, deleted = await self.client.xautoclaim(
            place.stream, place.group, self.name, place.visibility_ms, start_id=self._cursor, count=most
        )
        if self._cursor == b"0-0" and not entries:
            self._next_claim_s = now_s + POLL_S
        if deleted:
            logger.error("%d entries of %s were trimmed before they were handled", len(deleted), place.stream)
        return cast("Sequence[Entry]", entries)


class RedisDelivery:
    """One entry of the stream, owed by this consumer."""

    def __init__(self, source: RedisSource, entry: Entry) -> None:
        self._source = source
        self.entry_id, fields = entry
        self._fields = fields
        message_id = fields.get(ID)
        self.delivery = Delivery(
            fields.get(PAYLOAD, b""),
            id=None if message_id is None else _text(message_id),
            topic=source.place.stream,
            content_type=_text(fields.get(CONTENT_TYPE, b"")),
            headers={
                _text(name): _text(value) for name, value in fields.items() if name not in (PAYLOAD, CONTENT_TYPE)
            },
            raw=entry,
        )

    async def acknowledge(self) -> None:
        place = self._source.place
        await self._source.client.xack(place.stream, place.group, self.entry_id)

    async def deliver_again(self, delay_ms: int) -> None:
        idle_ms = max(0, self._source.place.visibility_ms - delay_ms)
        await self._source.set_idle(idle_ms, [self.entry_id])

    async def bury(self, verdict: Verdict) -> None:
        fields: dict[Any, Any] = {
            **self._fields,
            **{name.encode(): text for name, text in reason_headers(verdict).items()},
        }
        await self._source.client.xadd(self._source.place.dead_letter, fields)
        await self.acknowledge()


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
