"""What one history with transactions is made of, drawn from its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from semel import Policy
from simulation.scenario import Caller, Operation, Outcome, ProcessFault, ProcessFaultKind, Try, Work

OUTCOMES: tuple[Outcome, ...] = (
    *("created",) * 7, "streamed", "streamed", "large", "large", "empty", "redirect", "refused", "conflict", "failed",
    "raised", "raised-early", "raised-midway", "raised-after-answer", "raised-late", "not-executed", "nothing-done",
    "unknown", "swallowed", "too-long", "unfinished",
)  # fmt: skip
Sent = Literal["connect", "begin", "claim", "insist", "complete", "read", "write", "commit", "rollback"]
"""What travels to the database. The waiting claim is `insist`; the savepoints around it are not struck on their own."""
SENT: tuple[Sent, ...] = (
    "connect", "begin", "claim", "claim", "insist", "complete", "complete", "read", "write", "write", "write",
    *("commit",) * 6, "rollback", "rollback",
)  # fmt: skip
StatementFaultKind = Literal[
    "lost", "reply-lost", "late", "slow-request", "slow-reply", "deadlock", "refused", "outage", "crash"
]
STATEMENT_FAULTS: tuple[StatementFaultKind, ...] = (
    "lost", "lost", "reply-lost", "reply-lost", "reply-lost", "late", "late", "slow-request", "slow-reply", "deadlock",
    "refused", "outage", "crash",
)  # fmt: skip
ServerFaultKind = Literal["terminate", "purge"]
RESULT_MAX = 200
HELD_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Choices:
    """The policy of the history, and the store's bound on waiting."""

    in_flight: Literal["reject", "wait", "accept"]
    expired: Literal["new", "refuse"]
    retention_ms: int
    lease_ms: int
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Driver:
    """How the connections of the history behave."""

    pool_size: int
    on_cancel: Literal["closes", "cancels"]
    """What a driver does whose task is cancelled: close the connection, or cancel the statement and keep it."""
    holds_back: bool
    """Whether writes are sent when the session is flushed, as ORMs do."""
    notice_ms: int
    """How long the server takes to notice that a client is gone."""


@dataclass(frozen=True, slots=True)
class StatementFault:
    """Strikes the nth statement of this kind that any process sends."""

    kind: StatementFaultKind
    sent: Sent
    nth: int
    ms: int


@dataclass(frozen=True, slots=True)
class ServerFault:
    kind: ServerFaultKind
    at_ms: int


@dataclass(frozen=True, slots=True)
class TransactionScenario:
    seed: int
    choices: Choices
    driver: Driver
    processes: int
    step_ms: float
    operations: tuple[Operation, ...]
    callers: tuple[Caller, ...]
    process_faults: tuple[ProcessFault, ...] = ()
    message_faults: tuple[StatementFault, ...] = ()
    store_faults: tuple[ServerFault, ...] = ()


def draw(seed: int) -> TransactionScenario:
    rng = random.Random(seed)
    lease_ms = rng.choice((300, 1_000))
    choices = Choices(
        rng.choice(("reject", "wait", "accept")),
        rng.choice(("new", "new", "refuse")),
        rng.choice((1_500, 60_000, 60_000)),
        lease_ms,
        rng.choice((500, 10_000)),
    )
    driver = Driver(
        rng.choice((1, 1, 2, 3)),
        rng.choice(("closes", "cancels")),
        rng.random() < 0.3,
        rng.choice((0, 0, 30, 2_000)),
    )
    processes = rng.choice((1, 2, 2, 3))
    operations = _operations(rng, lease_ms)
    callers = tuple(_caller(rng, len(operations), processes, lease_ms) for _ in range(rng.choice((1, 2, 2, 3, 4))))
    calm = rng.random() < 0.15
    return TransactionScenario(
        seed,
        choices,
        driver,
        processes,
        rng.choice((0.0, 0.02, 1.0)),
        operations,
        callers,
        () if calm else _process_faults(rng, processes, lease_ms),
        () if calm else tuple(_statement_fault(rng, lease_ms) for _ in range(rng.choice((0, 1, 1, 2, 3)))),
        () if calm else _server_faults(rng, lease_ms),
    )


def _operations(rng: random.Random, lease_ms: int) -> tuple[Operation, ...]:
    """The same key everywhere: again, with another body, of another tenant, at another endpoint."""
    found = [Operation("ann", "/pay", "k", "1", _works(rng, lease_ms))]
    if rng.random() < 0.3:
        found.append(Operation("ann", "/pay", "k", "2", _works(rng, lease_ms)))
    if rng.random() < 0.25:
        found.append(Operation("bob", "/pay", "k", "1", _works(rng, lease_ms)))
    if rng.random() < 0.15:
        found.append(Operation("ann", "/refund", "k", "1", _works(rng, lease_ms)))
    return tuple(found)


def _works(rng: random.Random, lease_ms: int) -> tuple[Work, ...]:
    takes = (0, 0, 5, lease_ms // 2, 2 * lease_ms)
    return tuple(Work(rng.choice(OUTCOMES), rng.choice(takes), rng.choice(takes)) for _ in range(2))


def _caller(rng: random.Random, operations: int, processes: int, lease_ms: int) -> Caller:
    operation = 0 if rng.random() < 0.6 else rng.randrange(operations)
    tries = tuple(_try(rng, processes, lease_ms) for _ in range(rng.choice((1, 2, 3))))
    return Caller(operation, tries, rng.random() < 0.4)


def _try(rng: random.Random, processes: int, lease_ms: int) -> Try:
    return Try(
        rng.randrange(processes),
        rng.choice((0, 0, 1, 5, 60, lease_ms, 2 * lease_ms)),
        rng.choice((20, lease_ms, 20_000)),
        rng.choice(("waits", "waits", "waits", "disconnects", "cancels")),
        rng.choice((0, 0, 1)) if rng.random() < 0.2 else None,
    )


def _process_faults(rng: random.Random, processes: int, lease_ms: int) -> tuple[ProcessFault, ...]:
    kinds: tuple[ProcessFaultKind, ...] = ("crash", "pause", "pause", "shutdown", "clock", "cancel", "cancel", "cancel")
    return tuple(
        ProcessFault(
            rng.choice(kinds),
            rng.randrange(processes),
            int(90 * rng.random() ** 1.5),
            rng.choice((10, lease_ms, 3 * lease_ms, 3 * lease_ms)),
        )
        for _ in range(rng.choice((0, 1, 1, 2)))
    )


def _statement_fault(rng: random.Random, lease_ms: int) -> StatementFault:
    kind, sent = rng.choice(STATEMENT_FAULTS), rng.choice(SENT)
    takes = (lease_ms, 3_000) if kind == "outage" else (1, 5, 30, 200, 2 * lease_ms)
    return StatementFault(kind, sent, int(4 * rng.random() ** 2), rng.choice(takes))


def _server_faults(rng: random.Random, lease_ms: int) -> tuple[ServerFault, ...]:
    kinds: tuple[ServerFaultKind, ...] = ("terminate", "purge")
    return tuple(ServerFault(rng.choice(kinds), rng.randrange(4 * lease_ms)) for _ in range(rng.choice((0, 0, 1, 2))))


@lru_cache(maxsize=1_000)
def policy_of(choices: Choices) -> Policy:
    return Policy(
        guarantee="exactly-once",
        required=True,
        in_flight=choices.in_flight,
        expired=choices.expired,
        retention=choices.retention_ms / 1000,
        lease=choices.lease_ms / 1000,
        wait=choices.wait_ms / 1000,
        result_max=RESULT_MAX,
    )
