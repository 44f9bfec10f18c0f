"""The journal of a history: the model, on the clock of the machine that all clients share.

It stands for a file. What it has replied is durable, and a client that dies keeps nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from semel.core import journal_model
from semel.core.journal import (
    BeginAttempt,
    CloseIntent,
    ForgetIntent,
    IntentState,
    JournalCall,
    LeaveIntent,
    OpenIntent,
    PurgeIntents,
    ReadIntent,
    RenewIntent,
)
from semel.core.journal_model import IntentBook
from simulation.calls.scenario import OperatorFault, Where

if TYPE_CHECKING:
    from simulation.calls.world import CallWorld

T = TypeVar("T")
NAMES: dict[type[JournalCall[object]], Where] = {
    OpenIntent: "open",
    RenewIntent: "renew",
    BeginAttempt: "begin",
    CloseIntent: "close",
    LeaveIntent: "leave",
    ReadIntent: "look",
}


class SimulatedJournal:
    def __init__(self, world: CallWorld) -> None:
        self.world = world
        self.book = IntentBook()

    def answer(self, call: JournalCall[T]) -> T:
        before, now_ms = self.book, self.world.date_ms()
        self.book, reply = journal_model.answer(before, call, now_ms)
        self.world.oracle.journal.answered(before, self.book, call, reply, now_ms)
        return reply

    def operate(self, fault: OperatorFault) -> None:
        """People tidy up. They forget an intent that nobody asks for, if they find that nothing was done."""
        match fault.act:
            case "purge":
                self.world.reached.update(["purged"] if self.answer(PurgeIntents("", 0, 10)) else [])
            case "forget":
                for entry in self.book.entries.values():
                    unsure = entry.state is IntentState.DOUBTFUL or entry.is_too_old(self.world.date_ms())
                    if unsure and not self.world.oracle.is_used(entry.id.name):
                        self.world.reached.update(
                            ["forgotten"] if self.answer(ForgetIntent(entry.id, entry.key)) else []
                        )
            case "clock":
                self.world.reached.add("journal clock")
                self.world.ahead_ms += fault.ms
