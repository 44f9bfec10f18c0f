"""What one history of callers is made of, drawn from its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

from simulation.scenario import (
    CALLS,
    MESSAGE_FAULTS,
    Caller,
    Choices,
    MessageFault,
    Operation,
    Outcome,
    ProcessFault,
    ProcessFaultKind,
    StoreFault,
    StoreFaultKind,
    Work,
)

Where = Literal["open", "renew", "begin", "close", "leave", "look", "send"]
WayFaultKind = Literal[
    "crash-before", "crash-after", "pause-before", "pause-after", "unavailable", "reply-lost", "slow",
    "unreached", "lost", "late", "duplicated", "repeated", "slow-request", "slow-reply", "gateway", "throttled",
    "unauthorized", "server-error", "moved", "outage", "server-crash", "crash-answered",
]  # fmt: skip
JOURNAL_FAULTS: tuple[WayFaultKind, ...] = (
    "crash-before", "crash-before", "crash-after", "crash-after", "pause-before", "pause-after", "unavailable",
    "unavailable", "reply-lost", "slow",
)  # fmt: skip
SEND_FAULTS: tuple[WayFaultKind, ...] = (
    "crash-before", "crash-after", "crash-after", "crash-answered", "crash-answered", "pause-before", "unreached",
    "lost", "late", "late", "reply-lost", "reply-lost", "reply-lost", "duplicated", "duplicated", "repeated",
    "repeated", "slow-request", "slow-reply", "gateway", "throttled", "unauthorized", "server-error", "moved",
    "outage", "server-crash", "server-crash",
)  # fmt: skip
FAULTS: dict[Where, tuple[WayFaultKind, ...]] = {
    "open": JOURNAL_FAULTS,
    "renew": (*JOURNAL_FAULTS, "pause-after", "pause-after"),
    "begin": (*JOURNAL_FAULTS, "pause-before", "pause-after"),
    "close": JOURNAL_FAULTS,
    "leave": JOURNAL_FAULTS,
    "look": JOURNAL_FAULTS,
    "send": SEND_FAULTS,
}
WHERES: tuple[Where, ...] = (
    "open", "open", "open", "renew", "begin", "close", "close", "close", "leave",
    "send", "send", "send", "send", "send", "send", "send",
)  # fmt: skip
OperatorAct = Literal["clock", "purge", "forget"]
OUTCOMES: tuple[Outcome, ...] = (
    "created", "created", "created", "created", "created", "created", "streamed", "empty", "redirect", "conflict",
    "failed", "raised", "raised-after-answer", "large", "unfinished",
)  # fmt: skip
"""How an operation ends that was begun for the last time."""
FLIGHT_MS = 60_000
"""No request is longer on its way than this, its sender's pauses included."""
TIMEOUT_MS = 2_000
"""How long a sender waits for an answer."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the callers."""

    journal: bool
    """Without one, each run of the program makes a key of its own."""
    format: Literal["UUID4", "UUID7", "DERIVED"]
    lease_ms: int
    attempts: int
    deadline_ms: int
    poll_ms: int


@dataclass(frozen=True, slots=True)
class Planned:
    """An operation, and what happens when its work is entered: the nth entry does the nth work, or the last one."""

    works: tuple[Work, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """A program asks for the answer to an operation, some of them for another one under the same name."""

    intent: int
    client: int
    at_ms: int
    max_age_ms: int
    differs: Literal["no", "body", "key"]
    """Whether this is the request of the others, or has another body, or a key that the program has made itself."""


@dataclass(frozen=True, slots=True)
class WayFault:
    """Strikes the nth call of this kind, of all clients together."""

    where: Where
    kind: WayFaultKind
    nth: int
    ms: int


@dataclass(frozen=True, slots=True)
class OperatorFault:
    """What people do to the journal and to the clock of its machine."""

    act: OperatorAct
    at_ms: int
    ms: int


@dataclass(frozen=True, slots=True)
class CallScenario:
    seed: int
    choices: Choices
    settings: Settings
    servers: int
    processes: int
    """The servers, and then the clients."""
    watchable: bool
    mixed: bool
    step_ms: float
    intents: tuple[Planned, ...]
    asks: tuple[Ask, ...]
    process_faults: tuple[ProcessFault, ...] = ()
    message_faults: tuple[MessageFault, ...] = ()
    """Between the servers and their store."""
    store_faults: tuple[StoreFault, ...] = ()
    way_faults: tuple[WayFault, ...] = ()
    operator_faults: tuple[OperatorFault, ...] = ()
    operations: tuple[Operation, ...] = ()
    callers: tuple[Caller, ...] = ()

    @property
    def late_ms(self) -> int:
        """By how much a request may be older, when it is carried out, than its journal found when it was sent."""
        ahead_ms = sum(max(0, fault.ms) for fault in self.store_faults if fault.kind == "clock")
        behind_ms = sum(max(0, -fault.ms) for fault in self.operator_faults if fault.act == "clock")
        return FLIGHT_MS + ahead_ms + behind_ms

    @property
    def promised(self) -> bool:
        """Whether the server remembers a key for as long as any request with it may be under way."""
        longest_ms = max((ask.max_age_ms for ask in self.asks), default=0)
        return self.settings.journal and self.choices.retention_ms >= longest_ms + self.late_ms


def draw(seed: int) -> CallScenario:
    rng = random.Random(seed)
    lease_ms = rng.choice((300, 1_000, 3_000))
    max_age_ms = rng.choice((4_000, 20_000, 600_000))
    servers, clients = rng.choice((1, 2)), rng.choice((1, 2, 3))
    calm = rng.random() < 0.1
    store_faults = () if calm else _store_faults(rng)
    operator_faults = () if calm else _operator_faults(rng, max_age_ms)
    intents = tuple(_planned(rng, lease_ms) for _ in range(rng.choice((1, 1, 1, 2))))
    scenario = CallScenario(
        seed,
        Choices(
            "at-most-once",
            rng.choice(("reject", "wait", "accept")),
            rng.choice(("new", "refuse")),
            "closed",
            0,
            lease_ms,
        ),
        Settings(
            True,
            rng.choice(("UUID4", "UUID4", "UUID7", "DERIVED")),
            rng.choice((500, 500, 2_000, 30_000)),
            rng.choice((2, 4, 8)),
            rng.choice((2_000, 20_000, 120_000)),
            rng.choice((200, 1_000)),
        ),
        servers,
        servers + clients,
        rng.random() < 0.5,
        rng.random() < 0.3,
        rng.choice((0.0, 0.02, 1.0)),
        intents,
        tuple(_ask(rng, len(intents), clients, max_age_ms) for _ in range(rng.choice((1, 2, 3, 4, 4)))),
        () if calm else _process_faults(rng, servers + clients),
        () if calm else tuple(_message_fault(rng, lease_ms) for _ in range(rng.choice((0, 0, 1, 2)))),
        store_faults,
        () if calm else tuple(_way_fault(rng) for _ in range(rng.choice((0, 2, 4, 6)))),
        operator_faults,
    )
    short = rng.random() < 0.15
    retention_ms = max_age_ms // 16 if short else max_age_ms + scenario.late_ms
    return replace(scenario, choices=replace(scenario.choices, retention_ms=retention_ms))


def _planned(rng: random.Random, lease_ms: int) -> Planned:
    takes = (0, 0, 5, lease_ms // 2, 2 * lease_ms)
    refusals: tuple[Outcome, ...] = ("refused", "not-executed")
    works = [Work(rng.choice(refusals), rng.choice(takes), 0)] if rng.random() < 0.2 else []
    return Planned((*works, Work(rng.choice(OUTCOMES), rng.choice(takes), rng.choice(takes))))


def _ask(rng: random.Random, intents: int, clients: int, max_age_ms: int) -> Ask:
    return Ask(
        rng.randrange(intents),
        rng.randrange(clients),
        rng.choice((0, 0, 0, 0, 1, 20, 1_000, 10_000, 3 * max_age_ms // 4, max_age_ms - 10, max_age_ms + 10)),
        rng.choice((max_age_ms, max_age_ms, max_age_ms // 2)),
        rng.choice(("body", "key")) if rng.random() < 0.15 else "no",
    )


def _process_faults(rng: random.Random, processes: int) -> tuple[ProcessFault, ...]:
    kinds: tuple[ProcessFaultKind, ...] = ("crash", "crash", "pause", "pause", "shutdown", "cancel")
    return tuple(
        ProcessFault(
            rng.choice(kinds),
            rng.randrange(processes),
            int(60 * rng.random() ** 2),
            rng.choice((10, 1_000, 3_000, 5_000)),
        )
        for _ in range(rng.choice((0, 1, 1, 2)))
    )


def _message_fault(rng: random.Random, lease_ms: int) -> MessageFault:
    kind = rng.choice(MESSAGE_FAULTS)
    takes = (lease_ms, 3_000) if kind == "outage" else (5, 30, 200, 2 * lease_ms)
    return MessageFault(kind, rng.choice(CALLS), int(4 * rng.random() ** 2), rng.choice(takes))


def _store_faults(rng: random.Random) -> tuple[StoreFault, ...]:
    kinds: tuple[StoreFaultKind, ...] = ("clock", "purge", "purge", "unreadable")
    return tuple(
        StoreFault(rng.choice(kinds), rng.choice((10, 2_000, 8_000, 30_000)), rng.choice((-1_000, 500, 6_000, 100_000)))
        for _ in range(rng.choice((0, 0, 1, 2)))
    )


def _way_fault(rng: random.Random) -> WayFault:
    where = rng.choice(WHERES)
    last = 5 if where in ("send", "open") else 3
    takes = (5, 200, 1_000, 3_000, 3_000, 5_000)
    return WayFault(where, rng.choice(FAULTS[where]), int(last * rng.random() ** 2), rng.choice(takes))


def _operator_faults(rng: random.Random, max_age_ms: int) -> tuple[OperatorFault, ...]:
    acts: tuple[OperatorAct, ...] = ("clock", "purge", "purge", "forget", "forget")
    return tuple(
        OperatorFault(
            rng.choice(acts),
            rng.choice((10, 1_000, 2_000, 3_000, 4_000, 8_000, max_age_ms + 5)),
            rng.choice((-5_000, -1_000, 500, 6_000, 100_000)),
        )
        for _ in range(rng.choice((0, 0, 1, 2)))
    )
