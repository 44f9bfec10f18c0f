"""How a call of the command line ended: as an exit status, as a sentence for people, and as JSON for programs."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NoReturn

import click

from semel.cli.intents import Headers
from semel.cli.output import preview
from semel.core.journal import IntentState
from semel.core.retries import NEXT_STEPS, AttemptEnd, CallAnswer, NextStep
from semel.probe.report import redact

PREVIEW_MAX = 500
FORGET = "journal.forget("
"""Stands in an error that names it as a way out."""


class CallExit(IntEnum):
    """Exit statuses. 2 and 3 mean what they mean everywhere: called wrongly, and no use of the journal.

    1 is none of them: Python itself ends with it, and that must not read as an answer of the service.
    """

    DONE = 0
    REFUSED = 4
    DOUBT = 5
    OTHER_REQUEST = 6
    CHANGE = 7
    AGAIN = 75
    """EX_TEMPFAIL of sysexits.h."""
    STOPPED = 130


EXITS: Mapping[AttemptEnd, CallExit] = MappingProxyType(
    {
        AttemptEnd.ANSWERED: CallExit.REFUSED,
        AttemptEnd.MOVED: CallExit.CHANGE,
        AttemptEnd.NOT_KEPT: CallExit.DOUBT,
        AttemptEnd.STORED_FAILURE: CallExit.REFUSED,
        AttemptEnd.SERVER_ERROR: CallExit.AGAIN,
        AttemptEnd.IN_PROGRESS: CallExit.AGAIN,
        AttemptEnd.LATER: CallExit.AGAIN,
        AttemptEnd.GATEWAY: CallExit.AGAIN,
        AttemptEnd.UNAUTHORIZED: CallExit.CHANGE,
        AttemptEnd.KEY_REFUSED: CallExit.DOUBT,
        AttemptEnd.UNREADABLE: CallExit.DOUBT,
        AttemptEnd.UNKNOWN: CallExit.DOUBT,
        AttemptEnd.FORGOTTEN: CallExit.DOUBT,
        AttemptEnd.DO_NOT_REPEAT: CallExit.CHANGE,
        AttemptEnd.HELD_BACK: CallExit.AGAIN,
        AttemptEnd.UNREACHED: CallExit.AGAIN,
        AttemptEnd.LOST: CallExit.AGAIN,
        AttemptEnd.UNSENDABLE: CallExit.CHANGE,
    }
)
"""The exit status for each end of a call. An answer with a status below 400 is `DONE` instead of `REFUSED`."""
CHANGES: Mapping[AttemptEnd, str] = MappingProxyType(
    {
        AttemptEnd.MOVED: "send it to the new address, under a new name",
        AttemptEnd.UNAUTHORIZED: "run it again with other credentials in -H",
        AttemptEnd.DO_NOT_REPEAT: "ask the service what is wrong, then run it again",
        AttemptEnd.UNSENDABLE: "mend what the message names, then run it again",
    }
)
"""What has to change before a request is sent again."""


def end_call(message: str, status: CallExit) -> NoReturn:
    """End the command without a success."""
    click.echo(f"Error: {message}", err=True)
    click.get_current_context().exit(status)


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """How a call ended. `name` is that of its intent, if it has one."""

    name: str | None
    key: str = ""
    attempts: int = 0
    is_replay: bool = False
    end: AttemptEnd | None = None
    """None if the journal refused to send the request; `refusal` is the exit status then."""
    refusal: CallExit = CallExit.DONE
    answer: CallAnswer | None = None
    lost_size: int | None = None
    """How large the body was, if it was too large for the journal."""
    unkept: str = ""
    error: str = ""

    @property
    def status(self) -> CallExit:
        if self.end is None:
            return self.refusal
        status = EXITS[self.end]
        is_success = self.answer is not None and self.answer.status < 400
        return CallExit.DONE if status is CallExit.REFUSED and is_success else status

    @property
    def final_answer(self) -> CallAnswer | None:
        """The answer, if it is that of the operation and not of one attempt."""
        return self.answer if self.status in (CallExit.DONE, CallExit.REFUSED) else None

    @property
    def state(self) -> str | None:
        """How the journal has the intent now; None without one, or if it was not this call that decided it."""
        if self.name is None or self.end is None:
            return None
        step = NEXT_STEPS[self.end]
        if step is NextStep.CLOSE and not self.unkept:
            return IntentState.ANSWERED.value
        return IntentState.DOUBTFUL.value if step is NextStep.DOUBT else IntentState.OPEN.value

    @property
    def message(self) -> str:
        """Why the call is no success, and what to do."""
        about = "the request" if self.name is None else f"intent {self.name!r}"
        forget = f"semel journal forget {shlex.quote(self.name or '')}"
        if self.end is None:
            ways_out = {
                CallExit.DOUBT: f". On the command line that is: {forget}",
                CallExit.OTHER_REQUEST: f". On the command line that is: {forget}" if FORGET in self.error else "",
                CallExit.AGAIN: ". Run the same command again: it goes on with the same key",
            }
            return f"{self.error}{ways_out.get(self.refusal, '')}"
        why = f"{self.end.value} ({self.error})" if self.error else self.end.value
        if self.answer is not None:
            why = f"{self.answer.status}, {why}{_beginning(self.answer.body)}"
        match self.status:
            case CallExit.REFUSED:
                return f"{about} was refused, and this is the final answer: {why}"
            case CallExit.DOUBT if self.end is AttemptEnd.NOT_KEPT:
                return f"{about}: {why}. Find out at the service how it ended"
            case CallExit.DOUBT:
                return (
                    f"{about}: {why}. It is not sent again. Find out at the service whether it took effect; {forget} "
                    "then lets the name begin anew under a new key"
                )
            case CallExit.CHANGE:
                kept = "" if self.name is None else "The intent stays open, with its key. To go on, "
                return f"{about} is not finished: {why}. {kept}{CHANGES[self.end]}"
            case _:
                again = "that is safe" if self.name is None else "it goes on with the same key"
                return f"{about} is not finished: {why}. Run the same command again: {again}"

    @property
    def warning(self) -> str:
        if self.unkept:
            return (
                f"the journal could not keep this answer: {self.unkept}. The intent is still open: running the command "
                "again sends it again, with the same key"
            )
        if self.lost_size is not None:
            return f"the operation was carried out; its answer of {self.lost_size} bytes was too large to be kept"
        return ""

    def describe(self, secrets: Headers) -> dict[str, Any]:
        """The members are always the same; what is not known is null."""
        body = None if self.answer is None or self.lost_size is not None else self.answer.body
        return {
            "intent": self.name,
            "key": self.key or None,
            "state": self.state,
            "exit": int(self.status),
            "status": None if self.answer is None else self.answer.status,
            "headers": None if self.answer is None else [list(each) for each in self.answer.headers],
            **describe_body(body),
            "body_size": self.lost_size if body is None else len(body),
            "attempts": self.attempts,
            "replayed": self.is_replay,
            "from_journal": self.name is not None and self.answer is not None and self.attempts == 0,
            "end": self.end.name.lower() if self.end else None,
            "error": redact(self.message, secrets) if self.status else None,
            "warning": self.warning or None,
        }


def describe_body(body: bytes | None) -> dict[str, str | None]:
    """As text, or in Base64 if it is no text."""
    if body is None:
        return {"body": None, "body_base64": None}
    try:
        return {"body": body.decode(), "body_base64": None}
    except UnicodeDecodeError:
        return {"body": None, "body_base64": base64.b64encode(body).decode()}


def _beginning(body: bytes) -> str:
    shown = preview(body, PREVIEW_MAX)
    return f": {shown['body']}{'…' if shown['truncated'] else ''}" if body else ""
