"""A store for threads whose outbox is the model, with a clock that the tests turn."""

from typing import Any, TypeVar

from msgspec.structs import replace

from semel.core import outbox_model
from semel.core.effects import Effect
from semel.core.messages import Message
from semel.core.outbox import AddMessage, DeadMessage, OutboxEntry, SettleMessages, TakeMessages, UnreadableMessage
from semel.errors import StoreUnavailable
from semel.stores.memory import MemoryStore

T = TypeVar("T")
MINUTE_MS = 60_000


class ModelStore(MemoryStore):
    """A store whose outbox is the model. The tests turn its clock."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        super().__init__(clock=lambda: self.now_ms)
        self.state = outbox_model.Outbox()
        self.is_away = False
        self.unreadable: tuple[UnreadableMessage, ...] = ()

    def outbox(self, call: Effect[T]) -> T:
        if self.is_away:
            raise StoreUnavailable("the store does not answer")
        self.state, reply = outbox_model.answer(self.state, call, self.now_ms)
        if self.unreadable and hasattr(reply, "unreadable"):
            reply = replace(reply, unreadable=self.unreadable)  # type: ignore[type-var]
        return reply

    def add(self, id_: str, topic: str = "orders", key: str | None = None, **more: Any) -> None:
        assert self.outbox(AddMessage(Message(id_, topic, more.pop("payload", b'{"n": 1}'), key=key, **more)))

    def take(self, lease_ms: int = MINUTE_MS) -> dict[str, int]:
        taken = self.outbox(TakeMessages("relay", 100, lease_ms))
        return {each.message.id: each.sequence for each in taken}

    def kill(self, *ids: str, error: str = "too large") -> None:
        held = self.take()
        dead = tuple(DeadMessage(held[id_], error) for id_ in ids)
        self.outbox(SettleMessages("relay", dead=dead, untried=tuple(held[id_] for id_ in held if id_ not in ids)))

    def publish(self, *ids: str) -> None:
        held = self.take()
        rest = tuple(held[id_] for id_ in held if id_ not in ids)
        self.outbox(SettleMessages("relay", published=tuple(held[id_] for id_ in ids), untried=rest))

    def entry(self, id_: str) -> OutboxEntry:
        return next(each for each in self.state.in_order() if each.message.id == id_)
