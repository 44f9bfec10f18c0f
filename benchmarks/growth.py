"""What happens as keys pile up: from an empty table to millions, with the same connections and plans all the way."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from functools import partial

import psycopg
import redis
import uvloop

from benchmarks.apps import SEMEL
from benchmarks.calls import each_us, pair, per_second, replay
from benchmarks.filling import fill, filled
from benchmarks.places import DURABLE, Places, path_of
from benchmarks.results import BYTES, PER_SECOND, Found
from benchmarks.rounds import latencies, measured
from benchmarks.sizes import Size
from semel import open_async_store
from semel.store import AsyncStore
from servers.redis import EMPTY_S

TOGETHER = 64
VACUUMED_ABOVE, VACUUMED_SHARE = 50, 0.2
"""The defaults of autovacuum."""


def measure(size: Size, places: Places) -> Iterator[Found]:
    for store in DURABLE:
        yield from uvloop.run(bytes_per_key(store, size, places))
        yield from uvloop.run(grown(store, size, places))


def place_for(store: str, places: Places) -> str:
    """An empty place of its own."""
    match store:
        case "postgres":
            return places.fresh_database()
        case "sqlite":
            return f"sqlite:///{places.fresh_file()}"
        case _:
            with redis.Redis.from_url(places.redis_url, socket_timeout=EMPTY_S) as client:
                client.flushdb()
            return places.redis_url


async def grown(store: str, size: Size, places: Places) -> list[Found]:
    url, found, stored = place_for(store, places), list[Found](), 0
    if store == "postgres":
        unattended(url)
    ours = open_async_store(url)
    await pair(ours)  # connects, and plans its statements while there is nothing
    for level in size.levels:
        fill(store, url, stored, level)
        stored = level
        known = partial(any_known, ours, level)
        await per_second(partial(pair, ours), TOGETHER, size.round_s / 2)
        for case, once in (("first", partial(pair, ours)), ("replay", known)):
            found += latencies(f"growth, {case}, lone", SEMEL, store, level, await each_us(once, size.samples))
            rates = [await per_second(once, TOGETHER, size.round_s) for _ in range(max(1, size.rounds - 2))]
            found.append(measured(f"growth, {case}, {TOGETHER} callers", SEMEL, store, level, PER_SECOND, rates))
    await ours.close()
    return found


def unattended(url: str) -> None:
    """Nothing vacuums or analyses from here on: it would disturb us, and correct a plan that was made for nothing."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER TABLE semel_records SET (autovacuum_enabled = off)")
        connection.execute("VACUUM ANALYZE semel_records")


async def any_known(store: AsyncStore, level: int) -> None:
    await replay(store, filled(random.randrange(level)))


async def bytes_per_key(store: str, size: Size, places: Places) -> list[Found]:
    """With keys that went through the store, so that what it leaves behind in the pages counts, too.

    A key leaves a dead row behind in PostgreSQL. Autovacuum looks once a minute, which is longer than this takes: so it
    is done here, as often as autovacuum would by the number of rows.
    """
    url = place_for(store, places)
    ours = open_async_store(url)
    await pair(ours)
    before, count, cleaned = occupied(store, url), 0, 0

    async def once() -> None:
        nonlocal count
        count += 1
        await pair(ours)

    while count < size.keys:
        await per_second(once, 256, 0.1)
        if store == "postgres" and count - cleaned > VACUUMED_ABOVE + VACUUMED_SHARE * count:
            cleaned = count
            vacuum(url)
    await ours.close()
    return [measured("bytes per key", SEMEL, store, size.keys, BYTES, [(occupied(store, url) - before) / count])]


def vacuum(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM semel_records")


def occupied(store: str, url: str) -> int:
    match store:
        case "sqlite":
            path = path_of(url)
            return sum(os.path.getsize(each) for each in path.parent.glob(f"{path.name}*"))
        case "postgres":
            with psycopg.connect(url) as connection:
                [(size,)] = connection.execute("SELECT pg_total_relation_size('semel_records')").fetchall()
                return int(size)
        case _:
            with redis.Redis.from_url(url) as client:
                return int(client.info("memory")["used_memory"])
