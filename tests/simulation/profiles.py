"""The simulations: leases on a store, exactly-once in transactions of a database, and messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulation import invariants, scenario, world
from simulation.calls import invariants as call_invariants
from simulation.calls import scenario as call_scenario
from simulation.calls import world as call_world
from simulation.history import History
from simulation.messages import invariants as message_invariants
from simulation.messages import scenario as message_scenario
from simulation.messages import world as message_world
from simulation.transactions import invariants as transaction_invariants
from simulation.transactions import scenario as transaction_scenario
from simulation.transactions import world as transaction_world


@dataclass(frozen=True)
class Profile:
    name: str
    draw: Callable[[int], Any]
    run: Callable[..., History[Any, Any, Any]]
    kind: type[Any]
    """What a scenario is."""
    invariants: dict[str, tuple[str, str]]
    must_reach: frozenset[str]
    corpus: Path
    brief: int = 2_000
    """How many histories the tests run; every event must be reached in them. `make sim` runs more."""


LEASES = Profile(
    "leases",
    scenario.draw,
    world.run,
    scenario.Scenario,
    invariants.INVARIANTS,
    invariants.MUST_REACH,
    Path(__file__).with_name("corpus.jsonl"),
)
EXACTLY_ONCE = Profile(
    "exactly-once",
    transaction_scenario.draw,
    transaction_world.run,
    transaction_scenario.TransactionScenario,
    transaction_invariants.INVARIANTS,
    transaction_invariants.MUST_REACH,
    Path(__file__).with_name("transactions") / "corpus.jsonl",
    brief=2_600,
)
MESSAGES = Profile(
    "messages",
    message_scenario.draw,
    message_world.run,
    message_scenario.MessageScenario,
    message_invariants.INVARIANTS,
    message_invariants.MUST_REACH,
    Path(__file__).with_name("messages") / "corpus.jsonl",
)
CALLERS = Profile(
    "callers",
    call_scenario.draw,
    call_world.run,
    call_scenario.CallScenario,
    call_invariants.INVARIANTS,
    call_invariants.MUST_REACH,
    Path(__file__).with_name("calls") / "corpus.jsonl",
    brief=1_200,
)
PROFILES = {profile.name: profile for profile in (LEASES, EXACTLY_ONCE, MESSAGES, CALLERS)}
