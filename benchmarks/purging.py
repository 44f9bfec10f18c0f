"""A purge of very many expired records beside live traffic: how long it takes, and what live requests feel of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from statistics import quantiles

import uvloop

from benchmarks.apps import SEMEL
from benchmarks.calls import each_us, pair
from benchmarks.filling import fill
from benchmarks.growth import place_for
from benchmarks.places import Places
from benchmarks.results import MILLISECONDS, PER_SECOND, Found
from benchmarks.rounds import measured
from benchmarks.sizes import Size
from semel import open_async_store
from semel.store import AsyncStore

CALLERS = 4
AT_ONCE = 10_000


def measure(size: Size, places: Places) -> Iterator[Found]:
    for store in ("sqlite", "postgres"):  # Redis collects by itself
        yield from uvloop.run(purged(store, size, places))


async def purged(store: str, size: Size, places: Places) -> list[Found]:
    url = place_for(store, places)
    ours = open_async_store(url)
    await pair(ours)
    fill(store, url, 0, size.expired, expired=True)
    alone = await live(ours, asyncio.create_task(asyncio.sleep(size.round_s)))
    started = time.perf_counter()
    purge = asyncio.create_task(purge_all(ours))
    beside = await live(ours, purge)
    spent = time.perf_counter() - started
    assert purge.result() == size.expired, f"{store}: {purge.result()} of {size.expired} were purged"
    await ours.close()
    found: list[Found] = [measured("purge", SEMEL, store, size.expired, PER_SECOND, [size.expired / spent])]
    for case, values in (("live alone", alone), ("live beside a purge", beside)):
        tail = quantiles(values, n=100)[98] if len(values) > 1 else values[0]
        found.append(measured(f"{case}, p99", SEMEL, store, CALLERS, MILLISECONDS, [tail / 1000]))
        found.append(measured(f"{case}, worst", SEMEL, store, CALLERS, MILLISECONDS, [max(values) / 1000]))
    return found


async def purge_all(store: AsyncStore) -> int:
    gone = 0
    while some := await store.purge(limit=AT_ONCE):
        gone += some
    return gone


async def live(store: AsyncStore, until: asyncio.Task[object]) -> list[float]:
    """What some callers wait for a claim and a completion until that task is done."""
    spent: list[float] = []

    async def caller() -> None:
        while not until.done():
            spent.extend(await each_us(partial(pair, store), 1))

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    await until
    return spent
