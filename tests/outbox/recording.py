"""An outbox in memory, which is the model with a clock, and a publisher that keeps what it is given."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from semel.core import outbox_model
from semel.core.effects import Effect
from semel.core.messages import Message
from semel.core.outbox import AddMessage, MessageState, OutboxEntry
from semel.errors import StoreUnavailable
from semel.runtime.clock import boot_ms

T = TypeVar("T")
PATIENCE_S = 10.0


class MemoryOutbox:
    """Answers as the model does. `away` fails calls; `lost` carries them out, and fails them then."""

    def __init__(self, clock_ms: Callable[[], int] = boot_ms) -> None:
        self.clock_ms, self.state = clock_ms, outbox_model.Outbox()
        self.away: Callable[[Effect[object]], bool] = lambda call: False
        self.lost: Callable[[Effect[object]], bool] = lambda call: False
        self.calls: list[Effect[object]] = []
        self.is_closed = False
        self._added = asyncio.Event()

    async def claim(self) -> None: ...

    async def outbox(self, call: Effect[T]) -> T:
        self.calls.append(call)
        await asyncio.sleep(0)
        if self.away(call):
            raise StoreUnavailable("the store does not answer")
        reply = self._answer(call)
        if self.lost(call):
            raise StoreUnavailable("the connection was lost")
        return reply

    async def wait_for_messages(self, timeout_ms: int) -> None:
        if self.away(AddMessage(Message("any", "any", b""))):
            raise StoreUnavailable("the store does not answer")
        self._added.clear()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._added.wait()
        except TimeoutError:
            pass

    async def close(self) -> None:
        self.is_closed = True

    def add(self, *messages: Message) -> None:
        for message in messages:
            assert self._answer(AddMessage(message))
        self._added.set()

    def entries(self, state: MessageState | None = None) -> list[OutboxEntry]:
        return [each for each in self.state.in_order() if state in (None, each.state)]

    def held(self) -> list[OutboxEntry]:
        return [each for each in self.entries(MessageState.WAITING) if each.lease_until_ms > self.clock_ms()]

    def _answer(self, call: Effect[T]) -> T:
        self.state, reply = outbox_model.answer(self.state, call, self.clock_ms())
        return reply


class RecordingPublisher:
    """Keeps every message that was published. `before` runs before it confirms, and may raise."""

    def __init__(self, before: Callable[[Message], Awaitable[None]] | None = None) -> None:
        self.published: list[Message] = []
        self.before = before
        self.is_closed = False

    async def publish(self, message: Message) -> None:
        if self.before is not None:
            await self.before(message)
        self.published.append(message)

    async def close(self) -> None:
        self.is_closed = True

    def ids(self, key: str | None = None) -> list[str]:
        return [message.id for message in self.published if key in (None, message.key)]


def message(number: int, key: str | None = None, topic: str = "orders") -> Message:
    return Message(f"id-{number}", topic, b"{}", "application/json", key=key)


async def until(ready: Callable[[], object], otherwise: str = "it did not happen in time") -> None:
    """Let the event loop run until it is so."""
    loop = asyncio.get_running_loop()
    due_s = loop.time() + PATIENCE_S
    while not ready():
        assert loop.time() < due_s, otherwise
        await asyncio.sleep(0.002)
