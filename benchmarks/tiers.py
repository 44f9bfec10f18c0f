"""`python -m benchmarks.tiers`: the tiered store beside the stores that it is made of, in alternating rounds.

The far database is PostgreSQL behind a proxy that delays each exchange, for PostgreSQL alone and for the tiered store
alike. Redis is as near as always.
"""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from functools import partial
from statistics import median
from typing import Any
from urllib.parse import quote

import uvloop

from benchmarks.calls import each_us, pair, per_second, replay
from benchmarks.places import Places, places
from benchmarks.rounds import aalternate
from semel import open_async_store
from semel.store import AsyncStore
from semel.testing import Fault, FaultProxy

CALLERS, SAMPLES, FAR_MS = 64, 150, 2
ALONE = "PostgreSQL alone"


def tiered(front: str, back: str, **options: object) -> str:
    more = "".join(f"&{name}={value}" for name, value in options.items())
    return f"tiered:?front={quote(front, safe='')}&back={quote(back, safe='')}{more}"


def contenders(place: Places, far: FaultProxy) -> dict[str, dict[str, str]]:
    near, redis = place.fresh_database(), place.redis_url
    distant = far.url.rpartition("/")[0] + "/" + near.rpartition("/")[2]
    return {
        "near": {
            "Redis alone": redis,
            ALONE: near,
            "tiered": tiered(redis, near, name="near"),
            "tiered, eager=false": tiered(redis, near, name="near", eager="false"),
        },
        f"{FAR_MS} ms away": {ALONE: distant, "tiered": tiered(redis, distant, name="far")},
    }


async def lone_us(once: Any) -> float:
    return median(await each_us(once, SAMPLES))


async def compare(urls: dict[str, str], rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    async with AsyncExitStack() as stack:
        stores: dict[str, AsyncStore] = {}
        known: dict[str, Any] = {}
        for who, url in urls.items():
            store = stores[who] = open_async_store(url)
            stack.push_async_callback(store.close)
            known[who] = await pair(store)
            await replay(store, known[who])  # now it is copied, and the time in the database is known
        found: dict[str, dict[str, float]] = {}
        for case in ("replay", "first"):
            once = {
                who: partial(replay, s, known[who]) if case == "replay" else partial(pair, s)
                for who, s in stores.items()
            }
            lone = await aalternate({who: partial(lone_us, each) for who, each in once.items()}, rounds)
            many = await aalternate(
                {who: partial(per_second, each, CALLERS, seconds) for who, each in once.items()}, rounds
            )
            found[f"{case}, lone caller (µs)"] = {who: median(values) for who, values in lone.items()}
            found[f"{case}, {CALLERS} callers (/s)"] = {who: median(values) for who, values in many.items()}
        return found


def main() -> None:
    rounds, seconds = (5, 0.5) if "--quick" in sys.argv else (9, 1.0)
    with places() as place, FaultProxy(place.postgres.url) as far:
        far.inject(Fault.DELAY, times=None, delay_s=FAR_MS / 1000)
        for where, urls in contenders(place, far).items():
            print(f"\nPostgreSQL {where}")
            for case, values in uvloop.run(compare(urls, rounds, seconds)).items():
                shown = (f"{who} {value:,.0f} ({value / values[ALONE]:.2f})" for who, value in values.items())
                print(f"  {case:<28} " + "; ".join(shown), flush=True)


if __name__ == "__main__":
    main()
