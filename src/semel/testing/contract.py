"""The two contracts: the same tests for both faces, and a few more for what only tasks can do."""

from __future__ import annotations

from abc import abstractmethod

from semel.store import AsyncStore, Clock, Store
from semel.testing.ambiguity import Ambiguity
from semel.testing.claims import Claims
from semel.testing.counts import AttemptCounts
from semel.testing.inspection import Inspection
from semel.testing.keys import Keys
from semel.testing.loop_thread import BlockingStore
from semel.testing.migrations import Migrations
from semel.testing.ownership import Ownership
from semel.testing.parity import Parity
from semel.testing.processes import Forks, Processes
from semel.testing.races import Races
from semel.testing.real_time import RealTime
from semel.testing.removal import Removal
from semel.testing.resolution import Resolution
from semel.testing.retention import Retention
from semel.testing.tasks import TaskCalls
from semel.testing.watches import Watches


class _Contract(
    Parity,
    Processes,
    Races,
    RealTime,
    Migrations,
    Inspection,
    Watches,
    AttemptCounts,
    Removal,
    Resolution,
    Ambiguity,
    Keys,
    Retention,
    Ownership,
    Claims,
):
    """Everything that holds for both faces. pytest begins with the last one: what is simple fails first."""


class StoreContract(Forks, _Contract):
    """What every `Store` must do. See `semel.testing` for how to use it."""

    @abstractmethod
    def open(self, clock: Clock | None) -> Store:
        """A new handle on this test's records; None is the store's own clock. Also called in other processes."""

    def handle(self, clock: Clock | None) -> Store:
        return self.open(clock)


class AsyncStoreContract(TaskCalls, _Contract):
    """What every `AsyncStore` must do: the same, and what happens to callers that are cancelled."""

    @abstractmethod
    def open(self, clock: Clock | None) -> AsyncStore:
        """A new handle on this test's records; None is the store's own clock. Also called in other processes."""

    def handle(self, clock: Clock | None) -> Store:
        return BlockingStore(self.open(clock))
