"""What one history of messages is made of, drawn from its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from simulation.scenario import (
    CALLS,
    MESSAGE_FAULTS,
    Caller,
    MessageFault,
    Operation,
    ProcessFault,
    ProcessFaultKind,
)
from simulation.transactions.scenario import STATEMENT_FAULTS, Driver, Sent, StatementFault

Where = Literal["take", "settle", "purge", "wait", "publish", "deliver", "verdict", "operator"]
FaultKind = Literal[
    "refused", "lost", "reply-lost", "late", "slow-request", "slow-reply", "outage", "crash", "fails", "error",
    "closed", "misconfigured", "duplicated", "foreign", "unnamed", "redrive", "discard", "dead-again",
]  # fmt: skip
CALL_FAULTS: tuple[FaultKind, ...] = (
    "refused", "lost", "reply-lost", "reply-lost", "late", "slow-request", "slow-reply", "outage", "crash",
)  # fmt: skip
FAULTS: dict[Where, tuple[FaultKind, ...]] = {
    "take": CALL_FAULTS,
    "settle": CALL_FAULTS,
    "purge": ("refused",),
    "wait": ("refused",),
    "publish": (
        "lost", "lost", "reply-lost", "reply-lost", "late", "slow-reply", "outage", "crash", "fails", "error", "closed",
        "misconfigured",
    ),
    "deliver": ("duplicated", "duplicated", "foreign", "unnamed"),
    "verdict": ("lost", "lost", "late", "outage"),
    "operator": ("redrive", "redrive", "discard", "dead-again"),
}  # fmt: skip
WHERES: tuple[Where, ...] = (
    *("take",) * 3, *("settle",) * 5, "purge", "wait", *("publish",) * 6, *("deliver",) * 2, *("verdict",) * 2,
    "operator", "operator",
)  # fmt: skip
STATEMENTS: tuple[Sent, ...] = ("connect", "begin", "claim", "complete", "write", *("commit",) * 6)
Publishing = Literal["fine", "poison", "fails", "fails-always"]
Handling = Literal["fine", "slow", "raises", "raises-always", "final", "nothing-done"]


@dataclass(frozen=True, slots=True)
class Choices:
    """The settings of the relays and of the consumers."""

    guarantee: Literal["exactly-once", "at-most-once", "at-least-once"]
    """Of the consumers: with a transaction, or under a lease."""
    order: Literal["key", "none"]
    dead_block: bool
    batch: int
    concurrency: int
    lease_ms: int
    attempts_max: int
    keep_ms: int
    consumers: int
    prefetch: int
    together: int
    """How many deliveries a consumer is given at once."""
    tries_max: int
    ack_wait_ms: int
    """The broker delivers again what has no verdict after this."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A message, and what happens to it at the broker and in its handler."""

    key: str | None
    publishing: Publishing
    handling: Handling
    times: int
    """How often it fails, if that is not always."""


@dataclass(frozen=True, slots=True)
class Adding:
    """A transaction that adds messages; a message may be added by several."""

    at_ms: int
    takes_ms: int
    adds: tuple[int, ...]
    commits: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """Strikes the nth call of this kind; an operator acts after `ms`."""

    where: Where
    kind: FaultKind
    nth: int
    ms: int


@dataclass(frozen=True, slots=True)
class MessageScenario:
    seed: int
    choices: Choices
    driver: Driver
    processes: int
    """The relays, and then the consumers."""
    step_ms: float
    messages: tuple[Planned, ...]
    addings: tuple[Adding, ...]
    process_faults: tuple[ProcessFault, ...] = ()
    message_faults: tuple[StatementFault, ...] = ()
    """On the way to the consumers' database."""
    store_faults: tuple[Fault, ...] = ()
    lease_faults: tuple[MessageFault, ...] = ()
    """On the way to the store of consumers that work under a lease."""
    operations: tuple[Operation, ...] = ()
    callers: tuple[Caller, ...] = ()


def draw(seed: int) -> MessageScenario:
    rng = random.Random(seed)
    lease_ms = rng.choice((400, 2_000))
    order: Literal["key", "none"] = "none" if rng.random() < 0.1 else "key"
    choices = Choices(
        rng.choice(("exactly-once", "exactly-once", "at-most-once", "at-least-once")),
        order,
        order == "key" and rng.random() < 0.3,
        rng.choice((1, 2, 10)),
        rng.choice((1, 2, 10)),
        lease_ms,
        rng.choice((2, 3)),
        rng.choice((0, 86_400_000)),
        rng.choice((1, 1, 2)),
        rng.choice((1, 2, 4)),
        rng.choice((1, 1, 3)),
        rng.choice((1, 2, 5)),
        rng.choice((300, 5_000)),
    )
    processes = rng.choice((1, 2, 2, 3)) + choices.consumers
    messages = tuple(_planned(rng) for _ in range(rng.choice((1, 2, 3, 5))))
    calm = rng.random() < 0.1
    leases = choices.guarantee != "exactly-once"
    return MessageScenario(
        seed,
        choices,
        Driver(rng.choice((1, 2, 3)), rng.choice(("closes", "cancels")), rng.random() < 0.2, rng.choice((0, 30, 500))),
        processes,
        rng.choice((0.0, 0.02, 1.0)),
        messages,
        tuple(_adding(rng, len(messages), lease_ms) for _ in range(rng.choice((1, 2, 3, 4)))),
        () if calm else _process_faults(rng, processes, lease_ms),
        () if calm or leases else tuple(_statement_fault(rng, lease_ms) for _ in range(rng.choice((0, 0, 1, 2)))),
        () if calm else tuple(_fault(rng, lease_ms) for _ in range(rng.choice((0, 1, 2, 3, 4)))),
        tuple(_lease_fault(rng, lease_ms) for _ in range(rng.choice((0, 0, 1, 2)))) if leases and not calm else (),
    )


def _planned(rng: random.Random) -> Planned:
    publishing: tuple[Publishing, ...] = (*("fine",) * 8, "poison", "fails", "fails", "fails-always")
    handling: tuple[Handling, ...] = (*("fine",) * 5, "slow", "raises", "raises-always", "final", "nothing-done")
    key = rng.choice(("k", "k", "k", "other", None))
    return Planned(key, rng.choice(publishing), rng.choice(handling), rng.choice((1, 1, 2)))


def _adding(rng: random.Random, messages: int, lease_ms: int) -> Adding:
    adds = tuple(rng.randrange(messages) for _ in range(rng.choice((1, 1, 2, 3))))
    at_ms = rng.choice((0, 0, 5, 50, lease_ms, 3 * lease_ms, 62_000 if rng.random() < 0.2 else 0))
    return Adding(at_ms, rng.choice((0, 1, 10, lease_ms)), tuple(dict.fromkeys(adds)), rng.random() < 0.85)


def _process_faults(rng: random.Random, processes: int, lease_ms: int) -> tuple[ProcessFault, ...]:
    kinds: tuple[ProcessFaultKind, ...] = (
        "crash",
        "crash",
        "pause",
        "pause",
        "pause",
        "shutdown",
        "shutdown",
        "cancel",
    )
    return tuple(
        ProcessFault(
            rng.choice(kinds),
            rng.randrange(processes),
            int(120 * rng.random() ** 1.5),
            rng.choice((10, lease_ms, 3 * lease_ms, 3 * lease_ms)),
        )
        for _ in range(rng.choice((0, 1, 1, 2, 3)))
    )


def _statement_fault(rng: random.Random, lease_ms: int) -> StatementFault:
    kind = rng.choice(STATEMENT_FAULTS)
    takes = (lease_ms, 3_000) if kind == "outage" else (1, 5, 30, 200, 2 * lease_ms)
    sent = rng.choice(STATEMENTS)
    if (kind, sent) == ("refused", "commit"):  # which no database does to a transaction that only reads
        kind = "deadlock"
    return StatementFault(kind, sent, int(4 * rng.random() ** 2), rng.choice(takes))


def _lease_fault(rng: random.Random, lease_ms: int) -> MessageFault:
    kind = rng.choice(MESSAGE_FAULTS)
    takes = (lease_ms, 3_000) if kind == "outage" else (5, 30, 200, 2 * lease_ms)
    return MessageFault(kind, rng.choice(CALLS), int(4 * rng.random() ** 2), rng.choice(takes))


def _fault(rng: random.Random, lease_ms: int) -> Fault:
    where = rng.choice(WHERES)
    kind = rng.choice(FAULTS[where])
    takes = (5, 30, 200, lease_ms, 2 * lease_ms)
    if where == "operator":
        takes = (500, 1_500, 4_000, 10_000, 20_000)
    elif kind == "outage":
        takes = (100, lease_ms, 3_000, 3_000, 20_000)
    return Fault(where, kind, int(4 * rng.random() ** 2), rng.choice(takes))
