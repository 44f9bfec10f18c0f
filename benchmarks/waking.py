"""How soon a waiter wakes, in the process of the one who completes and in another one.

Times of two processes can be compared: both read the machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import uvloop

from benchmarks.apps import SEMEL
from benchmarks.calls import ANSWER, FINGERPRINT, LEASE_MS, RETENTION_MS, new_key
from benchmarks.places import DURABLE, STORES, Places
from benchmarks.results import Found
from benchmarks.rounds import latencies
from benchmarks.sizes import Size
from semel import Acquired, Key, Lease, open_async_store
from semel.store import AsyncStore, AsyncWatchable

OWNER = "the-one-who-works"
SETTLED_S = 0.01
"""Long enough for a waiter to have begun to wait."""


def measure(size: Size, places: Places) -> Iterator[Found]:
    for store in STORES:
        url = places.url(store, fresh="waking")
        yield from latencies("wake, same process", SEMEL, store, 1, uvloop.run(within(url, size.samples)))
    for store in DURABLE:
        url = places.url(store, fresh="waking")
        after, whole = uvloop.run(across(url, size.samples))
        yield from latencies("wake, other process", SEMEL, store, 1, after)
        yield from latencies("complete and wake, other process", SEMEL, store, 1, whole)


async def claimed(store: AsyncStore) -> Lease:
    reply = await store.claim(
        new_key(), FINGERPRINT, owner=OWNER, lease_ms=LEASE_MS, retention_ms=RETENTION_MS, takeover=False
    )
    assert isinstance(reply, Acquired)
    return reply.lease


async def woken_at(store: AsyncStore, key: Key) -> int:
    assert isinstance(store, AsyncWatchable)
    assert await store.wait(key, owner=OWNER, timeout_ms=10_000)
    return time.monotonic_ns()


async def within(url: str, samples: int) -> list[float]:
    """From the acknowledged completion to the waiter, which may even be first."""
    store, spent = open_async_store(url), []
    for _ in range(samples):
        lease = await claimed(store)
        waiter = asyncio.create_task(woken_at(store, lease.key))
        await turned(SETTLED_S)
        assert await store.complete(lease, ANSWER, retention_ms=RETENTION_MS)
        done = time.monotonic_ns()
        spent.append(max(0, await waiter - done) / 1000)
    await store.close()
    return spent


async def turned(seconds: float) -> None:
    """The loop goes on turning, as it does in a server that has other requests: none wakes from sleep for this one."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        await asyncio.sleep(0)


async def across(url: str, samples: int) -> tuple[list[float], list[float]]:
    """From the acknowledged completion, and from its beginning, to the waiter in the other process."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    other = multiprocessing.get_context("spawn").Process(target=wait_for_keys, args=(url, theirs), daemon=True)
    other.start()
    theirs.close()  # so that we hear of its death
    store = open_async_store(url)
    after: list[float] = []
    whole: list[float] = []
    for number in range(samples + 1):
        lease = await claimed(store)
        ours.send(lease.key)
        await asyncio.to_thread(ours.recv)  # it is about to wait
        await asyncio.sleep(SETTLED_S)
        began = time.monotonic_ns()
        assert await store.complete(lease, ANSWER, retention_ms=RETENTION_MS)
        done = time.monotonic_ns()
        woken: int = await asyncio.to_thread(ours.recv)
        if number and woken > began:  # the first one connects; a waiter may wake early, and that is another thing
            after.append(max(0, woken - done) / 1000)
            whole.append((woken - began) / 1000)
    ours.send(None)
    await store.close()
    await asyncio.to_thread(other.join, 10)
    return after, whole


def wait_for_keys(url: str, pipe: Connection) -> None:
    """The other process."""

    async def run() -> None:
        store = open_async_store(url)
        while (key := await asyncio.to_thread(pipe.recv)) is not None:
            pipe.send("waiting")
            pipe.send(await woken_at(store, key))
        await store.close()

    uvloop.run(run())
