"""The gateway's figures (`benchmarks.gateway` says what is compared), as part of the suite."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks import gateway
from benchmarks.load import Mode
from benchmarks.places import Places
from benchmarks.results import PER_SECOND, Found
from benchmarks.rounds import alternate, measured
from benchmarks.sizes import Size

PROXY = "bare aiohttp proxy"
GATEWAY = "semel gateway"
CASES: dict[str, Mode] = {"no key": "none", "first": "new"}


def measure(size: Size, places: Places) -> Iterator[Found]:
    with gateway.servers() as (bare, ours):
        cells = {
            (case, who): partial(gateway.per_second, port, size.round_s, mode)
            for case, mode in CASES.items()
            for who, port in ((PROXY, bare), (GATEWAY, ours))
        }
        for (case, who), values in alternate(cells, 2 * size.rounds).items():
            yield measured(case, who, "sqlite", gateway.CALLERS, PER_SECOND, values)
