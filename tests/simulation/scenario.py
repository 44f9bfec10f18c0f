"""What one history is made of, drawn from its seed. Everything that can be left out to make it smaller is a list."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from semel import Policy

Outcome = Literal[
    "created", "streamed", "empty", "redirect", "refused", "conflict", "failed", "raised", "raised-after-answer",
    "not-executed", "nothing-done", "large", "unfinished",
    "raised-early", "raised-midway", "raised-late", "unknown", "swallowed", "too-long",
]  # fmt: skip
"""How the work of an entry ends. The last line is of histories with transactions only."""
OUTCOMES: tuple[Outcome, ...] = (
    *("created",) * 8, "streamed", "empty", "redirect", "refused", "refused", "conflict", "failed", "raised",
    "raised-after-answer", "not-executed", "nothing-done", "large", "unfinished",
)  # fmt: skip
NOTHING_DONE = frozenset({"refused", "not-executed", "nothing-done"})

ProcessFaultKind = Literal["crash", "pause", "shutdown", "clock", "cancel"]
MessageFaultKind = Literal[
    "refused", "lost", "reply-lost", "late", "duplicated", "partial", "slow-request", "slow-reply", "outage", "crash",
    "misconfigured", "held",
]  # fmt: skip
MESSAGE_FAULTS: tuple[MessageFaultKind, ...] = (
    "refused", "lost", "reply-lost", "reply-lost", "late", "duplicated", "partial", "slow-request", "slow-reply",
    "outage", "outage", "crash", "crash", "misconfigured", "held",
)  # fmt: skip
CALLS: tuple[Literal["Claim", "Renew", "Complete", "Release", "Read"], ...] = (
    *("Claim",) * 4, *("Complete",) * 4, "Renew", "Renew", "Release", "Release", "Release", "Read",
)  # fmt: skip
StoreFaultKind = Literal["clock", "purge", "resolve", "unreadable"]


@dataclass(frozen=True, slots=True)
class Choices:
    """The policy of the history."""

    guarantee: Literal["at-most-once", "at-least-once"]
    in_flight: Literal["reject", "wait", "accept"]
    expired: Literal["new", "refuse"]
    on_store_error: Literal["closed", "open"]
    retention_ms: int
    lease_ms: int

    @property
    def owed_ms(self) -> int:
        return 2 * self.retention_ms if self.expired == "refuse" else self.retention_ms

    @property
    def unfinished_ms(self) -> int:
        """How long a key is owed that was claimed and not completed."""
        return 3 * self.retention_ms


@dataclass(frozen=True, slots=True)
class Work:
    """What happens when the work is entered: it takes effect after `before_ms`, and answers `after_ms` later."""

    outcome: Outcome
    before_ms: int
    after_ms: int


@dataclass(frozen=True, slots=True)
class Operation:
    """One logical operation of one tenant. The nth entry does the nth work, or the last one."""

    tenant: str
    path: str
    name: str
    body: str
    works: tuple[Work, ...]


@dataclass(frozen=True, slots=True)
class Try:
    """One request of a caller: when, to whom, and how long the caller stays for the answer."""

    process: int
    pause_ms: int
    patience_ms: int
    leaves: Literal["waits", "disconnects", "cancels"]
    prefer_s: int | None


@dataclass(frozen=True, slots=True)
class Caller:
    operation: int
    tries: tuple[Try, ...]
    stops: bool
    """Whether it is content with its first final answer."""


@dataclass(frozen=True, slots=True)
class ProcessFault:
    """Strikes before a step of a process, which may be any await."""

    kind: ProcessFaultKind
    process: int
    step: int
    ms: int


@dataclass(frozen=True, slots=True)
class MessageFault:
    """Strikes the nth request of any process to the store that has such a call in it."""

    kind: MessageFaultKind
    call: Literal["Claim", "Renew", "Complete", "Release", "Read"]
    nth: int
    ms: int


@dataclass(frozen=True, slots=True)
class StoreFault:
    kind: StoreFaultKind
    at_ms: int
    ms: int


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    choices: Choices
    processes: int
    watchable: bool
    mixed: bool
    """Whether calls of all kinds share a batch, as in SQLite, or have a lane for each kind."""
    step_ms: float
    operations: tuple[Operation, ...]
    callers: tuple[Caller, ...]
    process_faults: tuple[ProcessFault, ...] = ()
    message_faults: tuple[MessageFault, ...] = ()
    store_faults: tuple[StoreFault, ...] = ()


def draw(seed: int) -> Scenario:
    rng = random.Random(seed)
    lease_ms = rng.choice((300, 1_000, 3_000))
    choices = Choices(
        rng.choice(("at-most-once", "at-least-once")),
        rng.choice(("reject", "wait", "accept")),
        rng.choice(("new", "new", "refuse")),
        rng.choice(("closed", "closed", "open")),
        rng.choice((1_500, 60_000, 60_000)),
        lease_ms,
    )
    processes = rng.choice((1, 2, 2, 3))
    operations = _operations(rng, lease_ms)
    callers = tuple(_caller(rng, len(operations), processes, lease_ms) for _ in range(rng.choice((1, 2, 2, 3, 4))))
    calm = rng.random() < 0.15
    return Scenario(
        seed,
        choices,
        processes,
        rng.random() < 0.5,
        rng.random() < 0.3,
        rng.choice((0.0, 0.02, 1.0)),
        operations,
        callers,
        () if calm else _process_faults(rng, processes, lease_ms),
        () if calm else _message_faults(rng, lease_ms),
        () if calm else _store_faults(rng, lease_ms),
    )


def _operations(rng: random.Random, lease_ms: int) -> tuple[Operation, ...]:
    """The same key everywhere: again, with another body, of another tenant, at another endpoint."""
    first = Operation("ann", "/pay", "k", "1", _works(rng, lease_ms))
    found = [first]
    if rng.random() < 0.4:
        found.append(Operation("ann", "/pay", "k", "2", _works(rng, lease_ms)))
    if rng.random() < 0.25:
        found.append(Operation("bob", "/pay", "k", "1", _works(rng, lease_ms)))
    if rng.random() < 0.15:
        found.append(Operation("ann", "/refund", "k", "1", _works(rng, lease_ms)))
    return tuple(found)


def _works(rng: random.Random, lease_ms: int) -> tuple[Work, ...]:
    takes = (0, 0, 5, lease_ms // 2, 2 * lease_ms, 2 * lease_ms)
    return tuple(Work(rng.choice(OUTCOMES), rng.choice(takes), rng.choice(takes)) for _ in range(2))


def _caller(rng: random.Random, operations: int, processes: int, lease_ms: int) -> Caller:
    operation = 0 if rng.random() < 0.6 else rng.randrange(operations)
    return Caller(
        operation, tuple(_try(rng, processes, lease_ms) for _ in range(rng.choice((1, 2, 3)))), rng.random() < 0.4
    )


def _try(rng: random.Random, processes: int, lease_ms: int) -> Try:
    return Try(
        rng.randrange(processes),
        rng.choice((0, 0, 1, 5, 60, lease_ms, 2 * lease_ms)),
        rng.choice((20, lease_ms, 20_000)),
        rng.choice(("waits", "waits", "waits", "disconnects", "cancels")),
        rng.choice((0, 1)) if rng.random() < 0.1 else None,
    )


def _process_faults(rng: random.Random, processes: int, lease_ms: int) -> tuple[ProcessFault, ...]:
    kinds: tuple[ProcessFaultKind, ...] = ("crash", "crash", "pause", "pause", "shutdown", "clock")
    return tuple(
        ProcessFault(
            rng.choice(kinds),
            rng.randrange(processes),
            _soon(rng, 60),
            rng.choice((10, lease_ms, 3 * lease_ms, 3 * lease_ms)),
        )
        for _ in range(rng.choice((0, 1, 1, 2)))
    )


def _message_faults(rng: random.Random, lease_ms: int) -> tuple[MessageFault, ...]:
    return tuple(_message_fault(rng, lease_ms) for _ in range(rng.choice((0, 1, 2, 3, 4))))


def _message_fault(rng: random.Random, lease_ms: int) -> MessageFault:
    kind = rng.choice(MESSAGE_FAULTS)
    long = (lease_ms, 3_000)  # an outage that is shorter than the time in which a claim is repeated is soon seen
    return MessageFault(
        kind,
        rng.choice(CALLS),
        _soon(rng, 5),
        rng.choice(long if kind == "outage" else (5, 30, 200, 2 * lease_ms, *long)),
    )


def _store_faults(rng: random.Random, lease_ms: int) -> tuple[StoreFault, ...]:
    kinds: tuple[StoreFaultKind, ...] = ("clock", "purge", "purge", "resolve", "resolve", "unreadable")
    return tuple(
        StoreFault(
            rng.choice(kinds), rng.randrange(4 * lease_ms), rng.choice((-1_000, -lease_ms, 500, 2 * lease_ms, 100_000))
        )
        for _ in range(rng.choice((0, 0, 1, 2, 3)))
    )


def _soon(rng: random.Random, last: int) -> int:
    """Any number up to `last`, early ones more often: that is where most histories still have something to lose."""
    return int(last * rng.random() ** 2)


@lru_cache(maxsize=1_000)
def policy_of(choices: Choices) -> Policy:
    given: dict[str, Any] = {
        name: getattr(choices, name) for name in ("guarantee", "in_flight", "expired", "on_store_error")
    }
    return Policy(
        **given,
        retention=choices.retention_ms / 1000,
        unknown_retention=choices.unfinished_ms / 1000,
        lease=choices.lease_ms / 1000,
        wait=WAIT_MS / 1000,
        result_max=RESULT_MAX,
    )


WAIT_MS = 500
RESULT_MAX = 200
