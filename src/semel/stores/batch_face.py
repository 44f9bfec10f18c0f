"""The async face of a store that is asked in batches (`batching`), and the fate of a cancelled caller's claim."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from semel.core.effects import Claim, Effect
from semel.core.outbox import SettleMessages, TakeMessages, Taken
from semel.core.protocol import abandon
from semel.core.records import Lease, Occupied
from semel.errors import StoreError
from semel.runtime.drive import adrive
from semel.runtime.local import PerLoop
from semel.runtime.perform import async_performer
from semel.stores.batching import Batcher
from semel.stores.faces import AsyncFace

T = TypeVar("T")
DRAIN_S = 1.0
"""How long a store that is closed goes on giving back claims of callers who are gone; then their leases lapse."""


class CoalescedFace(AsyncFace):
    """Calls of one kind share a lane, with one batch in flight. Stores that take mixed batches override `_lane`."""

    _timeout_s: float | None = None
    """How long a caller waits, whatever becomes of its call meanwhile; `_late` is what it is told then."""
    _late = "the store did not answer in time"

    def __init__(self) -> None:
        self._lanes: PerLoop[dict[object, Batcher[Any, Any]]] = PerLoop(dict)
        self._background: PerLoop[set[asyncio.Task[Any]]] = PerLoop(set)

    @abstractmethod
    async def _send(self, calls: Sequence[Any]) -> Sequence[Any]:
        """Answer calls of one lane, in order, in as few round trips as the store allows."""

    def _lane(self, call: Effect[Any]) -> object:
        return type(call)

    def _call(self, call: Effect[T]) -> Coroutine[Any, Any, T]:
        lanes, name = self._lanes.get(), self._lane(call)
        lane = lanes.get(name)
        if lane is None:
            lane = lanes[name] = Batcher(
                self._send, orphaned=self._orphaned, timeout_s=self._timeout_s, late=self._late
            )
        return lane.call(call)

    async def doubts(self, before: frozenset[str] | None) -> frozenset[str]:
        """Wait for what this process itself has under way. Stores whose servers may have more override this."""
        for lane in list(self._lanes.get().values()):
            await lane.landed()
        return frozenset()

    async def _drain(self) -> None:
        """Let everything that was asked for end. The first step of every `close`."""
        for lane in (self._lanes.take() or {}).values():
            await lane.drain()
        background = self._background.get()
        if background:
            await asyncio.wait(background, timeout=DRAIN_S)
        for task in list(background):
            task.cancel()

    def _orphaned(self, call: Effect[Any], reply: object) -> None:
        """A cancelled caller never learnt that it was granted the key. Nothing ran, so the key goes back, by owner.

        So the owner of a cancelled claim must not be used again: the release is on its way.
        """
        if isinstance(call, Claim) and not isinstance(reply, Occupied):
            self._do_later(adrive(abandon(Lease(call.key, call.owner, 1, 0)), async_performer(self)))
        elif isinstance(call, TakeMessages) and isinstance(reply, tuple) and reply:
            self._do_later(self._give_back(call, cast("tuple[Taken, ...]", reply)))

    def _do_later(self, work: Coroutine[Any, Any, object]) -> None:
        background = self._background.get()
        task = asyncio.get_running_loop().create_task(work)
        background.add(task)
        task.add_done_callback(background.discard)

    async def _give_back(self, call: TakeMessages, taken: tuple[Taken, ...]) -> None:
        """Messages of a relay that was cancelled need not wait for the end of their lease."""
        with suppress(StoreError):
            await self._call(SettleMessages(call.owner, untried=tuple(each.sequence for each in taken)))
