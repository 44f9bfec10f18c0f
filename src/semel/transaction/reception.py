"""The block of a received message: its record and what its handler writes, in one transaction.

with Session.begin() as session, within(session).receive(message_id, handler="orders.projector") as message:
    if message.duplicate:
        return
    session.add(Order(…))
"""

from __future__ import annotations

from semel.codecs.values import Returned
from semel.core.decisions import Replay
from semel.core.records import Lease, Result
from semel.errors import Misuse
from semel.runtime.operation import Operation, held_lease
from semel.transaction.blocks import RecordBlock


class ReceivedMessage(Operation):
    """The operation of such a block: `derive` and the ids of what it publishes come from the message's id."""

    __slots__ = ("_is_duplicate", "_looked")

    def __init__(self, lease: Lease, *, is_duplicate: bool = False) -> None:
        super().__init__(lease)
        self._is_duplicate = is_duplicate
        self._looked = False

    @property
    def duplicate(self) -> bool:
        """Whether this handler has handled the message before: then its work must not run again."""
        self._looked = True
        return self._is_duplicate

    def check_looked(self) -> None:
        """Called after a block without an error: one that ignores `duplicate` would run again at the next delivery."""
        if not self._looked:
            raise Misuse(
                "the block was left without looking at message.duplicate, so a second delivery runs its work again. "
                "Write `if message.duplicate: return` first in the block."
            )

    def _message_id(self, number: int) -> str:
        if self._is_duplicate:
            raise Misuse(
                "a message is published in the block of a duplicate, so it was published before. "
                "Write `if message.duplicate: return` first in the block."
            )
        return super()._message_id(number)


class MessageBlock(RecordBlock[ReceivedMessage]):
    """One message for one handler."""

    call = "receive"

    def _make_granted(self, lease: Lease) -> ReceivedMessage:
        return ReceivedMessage(lease)

    def _make_replayed(self, decision: Replay) -> ReceivedMessage:
        return ReceivedMessage(held_lease(decision.record), is_duplicate=True)

    def _check_looked(self, operation: ReceivedMessage) -> None:
        operation.check_looked()

    def _result(self, operation: ReceivedMessage) -> Result:
        return self._settings.values.encode(Returned(None))
