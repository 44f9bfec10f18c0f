"""What the end of a call means, for events and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from semel.core.call_values import AnswerOrigin, CallAnswered, CallRefusal, CallRefused, CallResult
from semel.core.calls import CallConclusion
from semel.core.retries import NEXT_STEPS, NextStep, RepeatLimit

DOUBTS = (CallRefusal.DOUBTFUL, CallRefusal.TOO_OLD)
CANCELLED, JOURNAL, ERROR = "cancelled", "journal", "error"
"""Why a call was interrupted: from outside, by its journal, by anything else."""


def judge_call(result: CallResult) -> tuple[CallConclusion, str]:
    """How a call ended, and why it has no answer that tells how the operation ended."""
    if isinstance(result, CallRefused):
        outcome = CallConclusion.DOUBTFUL if result.refusal in DOUBTS else CallConclusion.REFUSED
        return outcome, result.refusal.name.lower()
    end = result.end if isinstance(result, CallAnswered) else result.failure.end
    if isinstance(result, CallAnswered) and NEXT_STEPS[end] is NextStep.CLOSE:
        return OF_ORIGIN[result.origin], ""
    outcome = CallConclusion.DOUBTFUL if NEXT_STEPS[end] is NextStep.DOUBT else CallConclusion.UNDECIDED
    return outcome, (result.limit or end).name.lower()


OF_ORIGIN: Mapping[AnswerOrigin, CallConclusion] = MappingProxyType(
    {
        AnswerOrigin.FRESH: CallConclusion.ANSWERED,
        AnswerOrigin.REPLAYED: CallConclusion.REPLAYED,
        AnswerOrigin.JOURNAL: CallConclusion.JOURNAL,
    }
)
REASONS: Mapping[CallConclusion, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(OF_ORIGIN.values(), ("",)),
        CallConclusion.UNDECIDED: tuple(
            member.name.lower()
            for member in (
                *RepeatLimit,
                *(end for end, step in NEXT_STEPS.items() if step in (NextStep.REPEAT, NextStep.LEAVE_OPEN)),
            )
        ),
        CallConclusion.DOUBTFUL: tuple(
            member.name.lower()
            for member in (*DOUBTS, *(end for end, step in NEXT_STEPS.items() if step is NextStep.DOUBT))
        ),
        CallConclusion.REFUSED: tuple(refusal.name.lower() for refusal in CallRefusal if refusal not in DOUBTS),
        CallConclusion.INTERRUPTED: (CANCELLED, JOURNAL, ERROR),
    }
)
"""The reasons that each outcome may have."""
