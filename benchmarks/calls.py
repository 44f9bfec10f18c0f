"""What is done at a store: pairs of claim and complete, replays, and how many of them a number of callers get done."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable

from semel import Acquired, Key, Result
from semel.core.records import Occupied
from semel.store import AsyncStore

TENANT, SCOPE = "shop-1", "POST /payments"
FINGERPRINT = "1.bVJ2aUV4cGVyaW1lbnRhbEZpbmdlcnByaW50T2Y0M0N"
ANSWER = Result("http.1", b"x" * 200)
LEASE_MS, RETENTION_MS = 30_000, 86_400_000
Once = Callable[[], Awaitable[None]]


def new_key() -> Key:
    return Key(TENANT, SCOPE, secrets.token_hex(16))


async def pair(store: AsyncStore, key: Key | None = None) -> Key:
    """Claim a key and complete it, as one request does."""
    key = key or new_key()
    claimed = await store.claim(
        key,
        FINGERPRINT,
        owner=secrets.token_urlsafe(16),
        lease_ms=LEASE_MS,
        retention_ms=RETENTION_MS,
        takeover=False,
    )
    assert isinstance(claimed, Acquired), claimed
    assert await store.complete(claimed.lease, ANSWER, retention_ms=RETENTION_MS)
    return key


async def replay(store: AsyncStore, key: Key) -> None:
    claimed = await store.claim(
        key, FINGERPRINT, owner="somebody-else", lease_ms=LEASE_MS, retention_ms=RETENTION_MS, takeover=False
    )
    assert isinstance(claimed, Occupied), f"{key} was not stored"
    assert claimed.record.result is not None


async def per_second(once: Callable[[], Awaitable[object]], callers: int, seconds: float) -> float:
    """How often `callers` tasks get `once` done."""
    done, started = 0, time.perf_counter()
    end = started + seconds

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await once()
            done += 1

    await asyncio.gather(*(caller() for _ in range(callers)))
    return done / (time.perf_counter() - started)


async def each_us(once: Callable[[], Awaitable[object]], samples: int) -> list[float]:
    """How long a lone caller waits, call by call."""
    spent = []
    for _ in range(samples):
        started = time.perf_counter()
        await once()
        spent.append((time.perf_counter() - started) * 1e6)
    return spent
