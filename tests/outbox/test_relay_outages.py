"""A real broker that is away for a while: no attempt is counted, nothing is lost, and keys keep their order."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import redis

from outbox.recording import until
from outbox.shops import Line, Shop, first_by_key, seconds_from
from semel.events import Event, EventKind
from semel.outbox import Relay
from servers.redis import RedisServer


def test_a_broker_that_dies_and_comes_back(private_redis: RedisServer, tmp_path: Path) -> None:
    """SEMEL_RELAY_OUTAGE_S=120 is the long form; one attempt is all that a message has."""
    shop, events = Shop(f"sqlite:///{tmp_path}/shop.db"), list[Event]()

    async def main() -> None:
        url = f"{private_redis.url}?timeout_ms=500"
        relay = Relay(shop.url, url, attempts_max=1, poll=0.05, batch=10, on_event=events.append)
        task = asyncio.ensure_future(relay.run())
        try:
            shop.publish(range(50), keys=3)
            await until(lambda: count(EventKind.MESSAGE_PUBLISHED) == 50)
            private_redis.kill()
            shop.publish(range(50, 100), keys=3)
            due_s = time.monotonic() + seconds_from("SEMEL_RELAY_OUTAGE_S", 3)
            await until(lambda: count(EventKind.RELAY_PAUSED) >= 2)
            while time.monotonic() < due_s:
                await asyncio.sleep(0.05)
            await asyncio.to_thread(private_redis.start)
            async with asyncio.timeout(40):
                while shop.counts().waiting:
                    await asyncio.sleep(0.05)
        finally:
            relay.stop()
            await task

    def count(kind: EventKind) -> int:
        return Counter(each.kind for each in events)[kind]

    asyncio.run(main())
    assert {each.attempt for each in events if each.kind is EventKind.MESSAGE_PUBLISHED} == {1}
    assert count(EventKind.MESSAGE_FAILED) == count(EventKind.MESSAGE_DEAD) == 0
    assert shop.counts().published == 100
    with redis.Redis.from_url(private_redis.url, decode_responses=True) as client:
        found = [dict(fields) for _, fields in client.xrange("orders")]
    lines = [Line(0, each.get("semel-key"), each["semel-id"], each["semel-id"][3:]) for each in found]
    assert {line.id for line in lines} >= {f"id-{number}" for number in range(50, 100)}
    for numbers in first_by_key(lines).values():
        assert numbers == sorted(numbers)
    shop.close()
