"""Callers: each repeats its order, with its key, until it is told how it ended. Some leave and come back."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from blackbox.clients import Reply, exchange
from blackbox.exactly_once.orders import ACCOUNTS, CONTROL, LEASE_S, Arm, Kind, Order, database_of

BOUND_S = {"postgres": 15.0, "sqlite": 30.0}
"""No request may be left without an answer for longer. On SQLite it also waits for unrelated writers."""
TRIES_MAX = 80
POLLS_MAX = 40
HERD = 10
SLOW_S = {"postgres": 1.0, "sqlite": 1.5 * LEASE_S}
FINAL = ("201", "402", "409 result-not-kept", "500 internal-error")
LEFT, LOST, OVERDUE = "caller left", "connection lost", "no answer in time"
WEIGHTS = {
    Kind.PLAIN: 50,
    Kind.SLOW: 4,
    Kind.BLOCKS: 1,
    Kind.UNKNOWN: 5,
    Kind.CUT_OFF: 5,
    Kind.LARGE: 8,
    Kind.TORN: 5,
    Kind.DECLINES: 4,
    Kind.FAILS: 3,
    Kind.CROSSES: 5,
    Kind.ACCEPTED: 5,
}


@dataclass(frozen=True)
class Asked:
    """One request and what came of it: a reply, or what happened instead."""

    order: Order
    sent_s: float
    ended_s: float
    reply: Reply | None
    said: str


class Callers:
    """Everything they asked and heard. `ports` says where the servers of an arm are, `kinds` what is ordered."""

    def __init__(self, ports: Callable[[str], list[int]], seed: int, kinds: Mapping[Kind, int] = WEIGHTS) -> None:
        self.asked: list[Asked] = []
        self.polled: list[Asked] = []
        """What monitors of accepted operations said."""
        self.orders: dict[str, Order] = {}
        self.said: dict[str, Counter[str]] = defaultdict(Counter)
        self.ended = False
        self._ports = ports
        self._kinds = kinds
        self._random = random.Random(seed)
        self._count = 0

    @property
    def answered(self) -> int:
        """Requests on protected arms that got an answer."""
        none = (LEFT, LOST, OVERDUE)
        counts = (said for arm, said in self.said.items() if arm != CONTROL)
        return sum(count for said in counts for what, count in said.items() if what not in none)

    @property
    def left(self) -> int:
        return sum(said[LEFT] for said in self.said.values())

    async def run(self, arm: Arm) -> None:
        """One caller: order after order, until the end is called."""
        while not self.ended:
            kind = self._random.choices([*self._kinds], [*self._kinds.values()])[0]
            order = self.order(arm.name, self._possible(kind, arm), SLOW_S[arm.database])
            orders = [order] * self._random.choice((1, 1, 1, 2, 3))
            if order.kind is Kind.CROSSES:
                orders = [order, self._crossing(order)]
            elif order.kind is Kind.SLOW and arm.database == "postgres" and self._random.random() < 0.2:
                orders = [order] * HERD
            await asyncio.gather(*(self.complete(each) for each in orders))
            for _ in range(self._random.randrange(5)):
                await self.ask(order)

    async def run_unprotected(self) -> None:
        """One caller of the control. It never asks for a duplicate: those come from its repeats."""
        while not self.ended:
            await self.complete(self.order(CONTROL, Kind.PLAIN), leaving=0.6, leave_s=0.06)

    def order(self, arm: str, kind: Kind, pause_s: float = 0.0, odds: float = 0.5) -> Order:
        self._count += 1
        accounts = tuple(self._random.sample(range(ACCOUNTS), 2)) if kind is Kind.CROSSES else ()
        order = Order(arm, f"key-{self._count}", kind, accounts, pause_s, odds)
        self.orders[order.key] = order
        return order

    def _possible(self, kind: Kind, arm: Arm) -> Kind:
        """SQLite has one writer and so no deadlocks; threads neither block an event loop nor accept first requests."""
        if kind is Kind.CROSSES and arm.database == "sqlite":
            return Kind.PLAIN
        return Kind.SLOW if kind in (Kind.BLOCKS, Kind.ACCEPTED) and arm.in_threads else kind

    def _crossing(self, order: Order) -> Order:
        other = replace(self.order(order.arm, Kind.CROSSES), accounts=order.accounts[::-1])
        self.orders[other.key] = other
        return other

    async def complete(self, order: Order, leaving: float = 0.08, leave_s: float = 0.3) -> str:
        """Repeat until the operation has ended one way or the other, or patience has.

        `leaving` is how often the caller goes away, within `leave_s`, and comes back.
        """
        said = ""
        for _ in range(TRIES_MAX):
            leaves = self._random.random() < leaving
            asked = await self.ask(order, self._random.uniform(0.005, leave_s) if leaves else None)
            said = asked.said
            if said == "202" and asked.reply is not None:
                said = await self._poll(order, dict(asked.reply.headers)["location"])
            if said in FINAL or self.ended:
                break
            await asyncio.sleep(self._random.uniform(0.01, 0.15))
        return said

    async def ask(self, order: Order, leave_s: float | None = None, port: int | None = None) -> Asked:
        """One request. A caller that leaves after `leave_s` may have been served."""
        prefer = "Prefer: respond-async\r\n" if order.kind is Kind.ACCEPTED else ""
        head = f"POST /{order.arm}/pay HTTP/1.1\r\nIdempotency-Key: {order.key}\r\n{prefer}"
        asked = await self._exchange(order, head, order.body, leave_s, port)
        self.asked.append(asked)
        self.said[order.arm][asked.said] += 1
        return asked

    async def _poll(self, order: Order, place: str) -> str:
        """Ask the monitor until it tells an end. What it says about an operation that does not go on is no end."""
        for _ in range(POLLS_MAX):
            asked = await self._exchange(order, f"GET {place} HTTP/1.1\r\n", b"", None, None)
            self.polled.append(asked)
            if asked.said in FINAL or asked.said.startswith("410") or self.ended:
                return asked.said
            await asyncio.sleep(self._random.uniform(0.01, 0.1))
        return ""

    async def _exchange(self, order: Order, head: str, body: bytes, leave_s: float | None, port: int | None) -> Asked:
        sent_s, reply = time.monotonic(), None
        try:
            async with asyncio.timeout(leave_s or BOUND_S[database_of(order.arm)]):
                reply = await exchange(port or self._random.choice(self._ports(order.arm)), head, body)
            said = reply.said
        except TimeoutError:
            said = LEFT if leave_s else OVERDUE
        except (OSError, ValueError, asyncio.IncompleteReadError):
            said = LOST
        return Asked(order, sent_s, time.monotonic(), reply, said)
