"""How much is measured: everything, a quick look, or just enough to see that it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    name: str
    rounds: int
    round_s: float
    calls: int
    """In-process calls in a round."""
    samples: int
    """Single calls whose latencies are looked at."""
    levels: tuple[int, ...]
    """How many keys are stored when growth is looked at."""
    keys: int
    """How many keys are stored to see what one needs."""
    expired: int
    """How many records are purged beside live traffic."""
    loads: tuple[int, ...] = (1, 16, 64, 256)
    peers: bool = True
    many: int = 1_000_000
    """How many keys are stored when PostgreSQL is looked at at size."""
    expiring: float = 0.4
    """The share of them that is past retention: what the turnovers may purge."""
    turnover_s: float = 60.0
    turnover_rate: float = 1_000.0


FULL = Size("full", 5, 1.0, 4_000, 300, (1_000, 100_000, 1_000_000), 100_000, 1_000_000)
BIG = Size(
    "big",
    5,
    1.0,
    4_000,
    300,
    (1_000, 100_000, 1_000_000, 5_000_000),
    100_000,
    1_000_000,
    many=10_000_000,
    turnover_s=540.0,
    turnover_rate=2_200.0,
)
QUICK = Size("quick", 3, 0.3, 600, 100, (1_000, 20_000, 100_000), 10_000, 50_000, many=50_000, turnover_s=10.0)
TINY = Size("tiny", 1, 0.05, 10, 3, (50, 200), 100, 200, loads=(1, 4), peers=False, many=2_000, turnover_s=0.3)
SIZES = {size.name: size for size in (FULL, BIG, QUICK, TINY)}
