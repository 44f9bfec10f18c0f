"""What callers order, and what a handler does about it: a list of steps that tasks and threads perform alike."""

from __future__ import annotations

import enum
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

LEASE_S = 0.3
WAIT_S = 2.0
"""How long a twin waits for the first one: much longer than the lease."""
RESULT_MAX = 4_096
POSITIONS = 4
"""Rows of one payment."""
PART = 3_000
ACCOUNTS = 6
PAUSE_S = 0.008
CONTROL = "none"
"""The arm without protection."""


@dataclass(frozen=True)
class Arm:
    """One kind of connection, in one kind of server."""

    name: str
    database: str
    in_threads: bool = False


ARMS = (
    Arm("psycopg", "postgres"),
    Arm("asyncpg", "postgres"),
    Arm("sqlalchemy-asyncpg", "postgres"),
    Arm("sqlalchemy-psycopg", "postgres"),
    Arm("sqlalchemy-aiosqlite", "sqlite"),
    Arm("threads-psycopg", "postgres", in_threads=True),
    Arm("threads-sqlite", "sqlite", in_threads=True),
)


def database_of(name: str) -> str:
    """Of an arm; the control is on PostgreSQL."""
    return next((arm.database for arm in ARMS if arm.name == name), "postgres")


class Kind(enum.StrEnum):
    """What is special about an order."""

    PLAIN = "plain"
    SLOW = "slow"
    BLOCKS = "blocks the event loop"
    UNKNOWN = "raises OutcomeUnknown"
    CUT_OFF = "is cut off"
    LARGE = "answers with more than is kept"
    TORN = "raises in the middle of a large answer"
    DECLINES = "declines"
    FAILS = "raises"
    CROSSES = "deadlocks"
    ACCEPTED = "is accepted with 202"


@dataclass(frozen=True)
class Order:
    """One logical operation. Every repeat sends the same bytes."""

    arm: str
    key: str
    kind: Kind = Kind.PLAIN
    accounts: tuple[int, ...] = field(default=())
    """Balances that are changed, in this order: two orders that cross end in a deadlock."""
    pause_s: float = 0.0
    """How long a slow one rests in the middle."""
    odds: float = 0.5
    """How often a handler that may raise or be cut off is."""

    @property
    def body(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, body: bytes) -> Order:
        told = json.loads(body)
        return cls(**told | {"kind": Kind(told["kind"]), "accounts": tuple(told["accounts"])})


@dataclass(frozen=True)
class Write:
    position: int


@dataclass(frozen=True)
class Change:
    account: int


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Block:
    seconds: float


@dataclass(frozen=True)
class Part:
    data: bytes


@dataclass(frozen=True)
class Give:
    """The handler ends here: it raises, or it is cut off."""

    up: Kind


Step = Write | Change | Pause | Block | Part | Give


def steps(order: Order, run: str, chance: random.Random) -> Iterator[Step]:
    """The handler of one run. Its rows are apart in time, so that faults come before, between and after them."""
    gives_up = order.kind is Kind.FAILS or chance.random() < order.odds
    parts = iter(parts_of(order, run))
    for position in range(1, POSITIONS + 1):
        yield Pause(chance.random() * PAUSE_S)
        yield Write(position)
        if order.kind in (Kind.LARGE, Kind.TORN):
            yield Part(next(parts))
        match order.kind:
            case Kind.SLOW | Kind.ACCEPTED if position == 2:
                yield Pause(order.pause_s)
            case Kind.BLOCKS if position == 2:
                yield Block(1.5 * LEASE_S)
            case Kind.UNKNOWN | Kind.CUT_OFF | Kind.FAILS if position == 2 and gives_up:
                yield Give(order.kind)
            case Kind.TORN if position == 3 and gives_up:
                yield Give(order.kind)
            case Kind.CROSSES if position <= len(order.accounts):
                yield Change(order.accounts[position - 1])
                yield Pause(0.03)
            case _:
                pass


def answer_of(order: Order, run: str) -> bytes:
    return json.dumps({"key": order.key, "run": run}).encode()


def parts_of(order: Order, run: str) -> list[bytes]:
    """The same as one answer that is too large to keep, in as many parts as there are rows."""
    told = json.dumps({"key": order.key, "run": run, "more": "x" * PART * (POSITIONS - 1)}).encode()
    return [told[begin : begin + PART] for begin in range(0, PART * (POSITIONS - 1), PART)] + [
        told[PART * (POSITIONS - 1) :]
    ]


def status_of(order: Order) -> int:
    return 402 if order.kind is Kind.DECLINES else 201
