"""The gateway's figures (`benchmarks.gateway` says what is compared), as part of the suite."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

from benchmarks import gateway
from benchmarks.places import Places
from benchmarks.results import PER_SECOND, Found
from benchmarks.rounds import alternate, measured
from benchmarks.sizes import Size

PROXY = "bare aiohttp proxy"
GATEWAY = "semel gateway"


def measure(size: Size, places: Places) -> Iterator[Found]:
    with gateway.servers() as (bare, ours):
        cells = {
            ("no key", PROXY): partial(run, bare, size.round_s, keyed=False),
            ("no key", GATEWAY): partial(run, ours, size.round_s, keyed=False),
            ("first", GATEWAY): partial(run, ours, size.round_s, keyed=True),
        }
        for (case, who), values in alternate(cells, size.rounds).items():
            yield measured(case, who, "sqlite", gateway.CALLERS, PER_SECOND, values)


def run(port: int, seconds: float, *, keyed: bool) -> float:
    return asyncio.run(gateway.per_second(port, seconds, keyed=keyed))
