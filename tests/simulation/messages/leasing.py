"""The store of consumers whose effects are elsewhere: that of the leases, and counts of failed attempts in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from semel.core.attempts import CountAttempt
from semel.core.effects import Effect
from semel.core.records import Key
from simulation.store import RemoteStore, Server

if TYPE_CHECKING:
    from simulation.messages.process import ConsumerProcess
    from simulation.messages.world import MessageWorld


class Deaf:
    """An oracle that hears nothing: what a store may do is judged by the simulation of leases."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return self._ignore

    def _ignore(self, *_: object) -> None: ...


class LeaseServer(Server):
    def __init__(self, world: MessageWorld) -> None:
        told = SimpleNamespace(message_faults=world.scenario.lease_faults, mixed=False)
        part = SimpleNamespace(
            time=world.time,
            note=world.note,
            reached=world.reached,
            store_ms=world.database_ms,
            scenario=told,
            oracle=Deaf(),
            server=self,
        )
        self._judge = world.oracle.counted
        super().__init__(part)  # type: ignore[arg-type]  # it has what a store asks of its world
        self.counts: Counter[Key] = Counter()
        self._answer_call, self._perform = self._perform, self._count_or_ask

    def _count_or_ask(self, call: Effect[Any]) -> Any:
        if not isinstance(call, CountAttempt):
            return self._answer_call(call)
        counted = self.store.count_attempt(call.key, call.error, retention_ms=call.retention_ms)
        self.counts[call.key] = counted
        self._judge(call.key, counted)
        return counted

    def face_of(self, process: ConsumerProcess) -> RemoteStore:
        told: Any = SimpleNamespace(world=self.world, loop=process.loop, name=process.name, crash=process.crash)
        told.store = RemoteStore(told)
        face: RemoteStore = told.store
        return face
