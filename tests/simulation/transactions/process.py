"""A simulated process whose requests have transactions: the real middleware and the real `AsyncTransactionStore`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from semel.asgi import IdempotencyMiddleware
from semel.events import Event
from semel.transaction import AsyncTransactionStore
from simulation.process import SECRET, AnyProcess
from simulation.transactions.application import application
from simulation.transactions.connection import Connection, Pool
from simulation.transactions.scenario import HELD_MAX, policy_of

if TYPE_CHECKING:
    from simulation.transactions.world import TransactionWorld


class TransactionProcess(AnyProcess):
    world: TransactionWorld

    def __init__(self, world: TransactionWorld, index: int, life: int) -> None:
        super().__init__(world, index, life)
        choices = world.scenario.choices
        self.pool = Pool(self)
        self.store: AsyncTransactionStore[Connection] = AsyncTransactionStore(
            self.pool.begin, wait=choices.wait_ms / 1000, held_max=HELD_MAX
        )
        self.front = IdempotencyMiddleware(
            partial(application, self),
            store=self.store,
            policy=policy_of(choices),
            identify=lambda scope: scope["simulation"].operation.tenant,
            secret=SECRET,
            on_event=self._happened,
        )

    def _happened(self, event: Event) -> None:
        if not self.loop.dead:
            self.world.reached.add(event.kind.value)

    def crash(self, down_ms: int) -> None:
        if not self.loop.dead:
            super().crash(down_ms)
            self.world.server.lose_process(self)
