"""One keyed request and its immediate repeat, whatever the framework: what is compared, and what was found.

This runs inside the frameworks' own test suites. A front (`transparency.fronts`) gives every unsafe request a key,
lets it run, repeats it and hands both answers to `Trial.compare`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

from semel.core.http import MARKS
from semel.core.policy import Policy
from semel.core.policy_values import NEVER_REPLAYED
from semel.runtime.operation import current_operation

MARK = "semel.transparency"
"""Where a scope, an environ or a request's META holds the trial."""
HEADER = "Idempotency-Key"
LIMIT = 2**30
POLICY = Policy(
    methods=("POST", "PUT", "PATCH", "DELETE"),
    release_statuses=(),  # so that every answer is stored, and every repeat must be a replay
    body_max=LIMIT,
    result_max=LIMIT,
)
NOT_COMPARED = frozenset(NEVER_REPLAYED) | frozenset(name.decode() for name in MARKS)


class ExecutedAgain(AssertionError):
    """The repeat of a request reached the application."""


@dataclass
class Answer:
    """What a caller got. `status` is the whole status line where the front has one."""

    status: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    is_complete: bool = False

    def header(self, name: str) -> str | None:
        return next((value for found, value in self.headers if found.lower() == name), None)

    def compared_headers(self) -> list[tuple[str, str]]:
        lower = ((name.lower(), value) for name, value in self.headers)
        return sorted((name, value) for name, value in lower if name not in NOT_COMPARED)


@dataclass
class Ledger:
    """What was found since the last `take`; the plugin takes it after every test."""

    repeats: int = 0
    differences: list[str] = field(default_factory=list)

    def take(self) -> tuple[int, list[str]]:
        found = self.repeats, self.differences
        self.repeats, self.differences = 0, []
        return found


LEDGER = Ledger()


class Trial:
    """The key of one request, and how often the application was entered under it."""

    def __init__(self) -> None:
        self.key = str(uuid.uuid4())
        self.entered = 0

    def enter(self) -> None:
        """The application is about to run: once, or semel is not transparent."""
        if current_operation() is None:
            return
        self.entered += 1
        if self.entered > 1:
            raise ExecutedAgain("the repeat was executed")

    def compare(self, request: str, first: Answer, again: Answer) -> None:
        LEDGER.repeats += 1
        LEDGER.differences += [f"{request}: {text}" for text in differences(first, again, self.entered)]


def differences(first: Answer, again: Answer, entered: int) -> Iterable[str]:
    if entered > 1:
        yield "the repeat was executed"
    if again.header("idempotent-replayed") != "true":
        yield f"the repeat is not marked as a replay: {again.status}, {again.body[:200]!r}"
    if first.status != again.status:
        yield f"status {first.status!r}, and {again.status!r} in the repeat"
    if first.body != again.body:
        yield f"body {first.body[:200]!r}, and {again.body[:200]!r} in the repeat"
    if first.compared_headers() != again.compared_headers():
        yield f"headers {first.compared_headers()}, and {again.compared_headers()} in the repeat"
