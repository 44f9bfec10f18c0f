"""One request's place among the new keys of its tenant: taken before the claim, given back if nothing new ran.

It is taken first, so that count and decision are one step: however many requests come at once, the quota holds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from semel.core.decisions import Decision, Released, Run, Settlement
from semel.core.effects import Effect, Plan, Wait, do
from semel.core.policy import Policy
from semel.core.records import Key, Member
from semel.errors import StoreError
from semel.http.quota import Charge, Charged, GiveBack

logger = logging.getLogger("semel")


class Place(Member):
    NONE = "not counted"
    HELD = "counted"
    UNCOUNTED = "the counter failed, and the policy says to go on without it"


class Allowance:
    """What is counted for one request. Every front makes one for each request under a quota."""

    __slots__ = ("_charged", "_key", "_policy", "place")

    def __init__(self, policy: Policy, key: Key) -> None:
        self._policy = policy
        self._key = key
        self._charged: Charged | None = None
        self.place = Place.NONE

    def take(self) -> Plan[int | None]:
        """Count one new key: None when it was counted, else the seconds until the tenant may have another one.

        Under `on_store_error="open"` a counter that fails stops nothing; else its failure is raised.
        """
        try:
            found = yield from do(Charge(self._policy, self._key.tenant))
        except StoreError:
            if self._policy.on_store_error == "open":
                self.place = Place.UNCOUNTED
            raise
        if isinstance(found, int):
            return found
        self._charged, self.place = found, Place.HELD
        return None

    def give_back(self) -> Plan[None]:
        """Stop counting the key. If that fails, it counts until its window is over."""
        charged = self._end()
        if charged is not None:
            try:
                yield from do(GiveBack(charged))
            except StoreError:
                logger.warning("a key of tenant %r counts although it is not new", self._key.tenant, exc_info=True)

    def give_back_later(self) -> None:
        if (charged := self._end()) is not None:
            charged.give_back_later()

    def _end(self) -> Charged | None:
        charged, self._charged = self._charged, None
        if charged is not None:
            self.place = Place.NONE
        return charged

    def watch(self, plan: Plan[Decision]) -> Plan[Decision]:
        """Drive `plan`, and hold no place while it waits for another request, which was counted itself."""
        step: Callable[[Any], Effect[Any]] = plan.send
        given: Any = None
        try:
            while True:
                try:
                    effect = step(given)
                except StopIteration as stop:
                    decision: Decision = stop.value
                    break
                if isinstance(effect, Wait):
                    yield from self.give_back()
                try:
                    step, given = plan.send, (yield effect)
                except StoreError as error:
                    step, given = plan.throw, error
        finally:
            plan.close()
        if not isinstance(decision, Run) or decision.lease.attempt > 1:
            yield from self.give_back()
        return decision

    def settle(self, plan: Plan[Settlement]) -> Plan[Settlement]:
        """End the attempt by `plan`. A key that is free again does not count."""
        settlement = yield from plan
        if isinstance(settlement, Released):
            yield from self.give_back()
        return settlement
