"""Seeded faults: with one of them in the servers a run must find a violation, or its silence means nothing.

Each restores a mistake that the HTTP form of exactly-once once made. `SEMEL_BOX_FAULT` names the one to seed.
`python -m blackbox.exactly_once --control` seeds all of them, one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from blackbox.exactly_once.orders import LEASE_S, Kind
from semel.asgi.transaction import Stage, TransactionExecution
from semel.core.tables import Ending
from semel.http.admission import Keyed
from semel.http.monitors import Monitors
from semel.transaction.requests import RequestPlans
from semel.transaction.twins import OpenKeys


@dataclass(frozen=True)
class Fault:
    """`noticed_by` are invariants, each of which must be violated. `kinds` are what callers order, by weight."""

    breaks: str
    seed: Callable[[], None]
    noticed_by: str
    kinds: Mapping[Kind, int]
    arm: str = "psycopg"


def change(owner: type, name: str, new: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a method by what `new` makes of it. A method that is not there any more is an error."""
    setattr(owner, name, new(getattr(owner, name)))


def end_late_requests() -> None:
    """A claim takes every request that is older than a lease for abandoned, and ends its transaction."""
    begun: dict[RequestPlans[Any], float] = {}

    def claiming(plan: Callable[..., Any]) -> Callable[..., Any]:
        def end_others_first(self: RequestPlans[Any], claim: Any) -> Any:
            for other, moment in list(begun.items()):
                if moment + LEASE_S < time.monotonic():
                    del begun[other]
                    yield from other._roll_back()
            reply = yield from plan(self, claim)
            if self.connection is not None:
                begun[self] = time.monotonic()
            return reply

        return end_others_first

    def ending(plan: Callable[..., Any]) -> Callable[..., Any]:
        def forget(self: RequestPlans[Any]) -> Any:
            begun.pop(self, None)
            yield from plan(self)

        return forget

    change(RequestPlans, "claiming", claiming)
    change(RequestPlans, "ending", ending)


def leave_cut_off_requests() -> None:
    """The transaction of a handler that was cut off stays open."""
    left: set[object] = set()

    def settle(plan: Callable[..., Any]) -> Callable[..., Any]:
        def look(self: Keyed, lease: Any, ended: Any, first: Any = None) -> Any:
            if ended.ending is Ending.INTERRUPTED:
                left.add(self._transaction)
            return plan(self, lease, ended, first)

        return look

    def ending(plan: Callable[..., Any]) -> Callable[..., Any]:
        def keep(self: RequestPlans[Any]) -> Any:
            if self not in left:
                yield from plan(self)

        return keep

    change(Keyed, "settle", settle)
    change(RequestPlans, "ending", ending)


def commit_long_answers_early() -> None:
    """An answer that is longer than is kept commits what was written so far."""

    def take(method: Callable[..., Any]) -> Callable[..., Any]:
        async def commit_in_the_middle(self: TransactionExecution, message: Any) -> None:
            await method(self, message)
            if self._stage is Stage.COLLECTING and self._held.size > self._keyed.policy.result_max:
                await self._settle(self._judge())

        return commit_in_the_middle

    change(TransactionExecution, "_take", take)


def look_at_records_only() -> None:
    """A monitor believes that what it cannot read is not there."""

    def initialise(method: Callable[..., None]) -> Callable[..., None]:
        def as_for_other_stores(self: Monitors, *arguments: Any, **_: Any) -> None:
            method(self, *arguments)

        return as_for_other_stores

    change(Monitors, "__init__", initialise)


def wait_in_the_database() -> None:
    """A twin begins its transaction and waits there, with a connection of the pool."""

    def insert(plan: Callable[..., Any]) -> Callable[..., Any]:
        def patiently(self: RequestPlans[Any], claim: Any, wait_ms: int = 0) -> Any:
            return plan(self, claim, max(wait_ms, self.wait_ms))

        return patiently

    change(RequestPlans, "_insert", insert)
    change(OpenKeys, "enter", lambda _: lambda self, claim: None)


def keep_what_the_database_ended() -> None:
    """A deadlock or a lost connection is an error of the handler, stored and replayed."""
    change(RequestPlans, "gave_up", lambda _: lambda self, error: "")


def trust_a_lost_commit() -> None:
    """A commit whose end is not known is taken for done."""

    def was_stored(_: Callable[..., Any]) -> Callable[..., Any]:
        def yes(self: RequestPlans[Any], lease: Any, error: Exception) -> Any:
            yield from ()
            return True

        return yes

    change(RequestPlans, "_was_stored", was_stored)


FAULTS = {
    fault.breaks: fault
    for fault in (
        Fault(
            "another request ends the transaction of one that is late",
            end_late_requests,
            "a run is committed as a whole, or not at all",
            {Kind.PLAIN: 8, Kind.BLOCKS: 1, Kind.SLOW: 3},
        ),
        Fault(
            "the transaction of a handler that was cut off is left open",
            leave_cut_off_requests,
            "after a handler was cut off its key and its connection are free",
            {Kind.PLAIN: 1},
            arm="asyncpg",
        ),
        Fault(
            "a long answer is committed in the middle of its handler",
            commit_long_answers_early,
            "a run is committed as a whole, or not at all",
            {Kind.PLAIN: 2, Kind.LARGE: 1, Kind.TORN: 1},
            arm="sqlalchemy-asyncpg",
        ),
        Fault(
            "a monitor says 410 of an operation that runs",
            look_at_records_only,
            "no monitor says that an operation did not run which runs or is committed",
            {Kind.PLAIN: 1, Kind.ACCEPTED: 2},
        ),
        Fault(
            "a twin waits with a connection of the pool",
            wait_in_the_database,
            "twins that wait take no connection from other keys",
            {Kind.PLAIN: 1},
            arm="sqlalchemy-psycopg",
        ),
        Fault(
            "what the database rolled back is stored as failed",
            keep_what_the_database_ended,
            "an answer is the order's own end, or says that a repeat runs",
            {Kind.PLAIN: 1, Kind.CROSSES: 2},
            arm="asyncpg",
        ),
        Fault(
            "a commit whose end is not known is taken for done",
            trust_a_lost_commit,
            "every success names the one run that is committed",
            {Kind.PLAIN: 1},
            arm="asyncpg",
        ),
    )
}
