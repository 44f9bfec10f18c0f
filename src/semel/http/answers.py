"""Answers: how the work's own answer ends an operation, and what every other caller gets."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from urllib.parse import quote

from msgspec import Struct

from semel.codecs import responses
from semel.codecs.responses import AnswerNotKept
from semel.core import http
from semel.core.decisions import Decision, NotStored, Replay, Run, Settlement, Stored, Superseded, Undecided
from semel.core.http import Response
from semel.core.policy import Policy
from semel.core.policy_values import ErrorStyle
from semel.core.records import Result
from semel.core.tables import Ending
from semel.errors import NotCommitted, NotExecuted, OutcomeUnknown, RecordUnreadable, Unanswered

DIRECTIVE = b"semel-directive"
"""A response header from the application to the middleware: `not-kept`, `retention=SECONDS`. It is never sent."""
LOOKED_AT = http.MARKS | {DIRECTIVE} | http.DROPPED
"""Headers of an application's answer that the middleware reads, or does not keep. Most answers have none of them."""
TRACEBACK = b"traceback"
"""A text on every debugger's page, in upper or lower case. Such a page shows code and data, so no store keeps it."""
PATH_SAFE = "/:@!$&'()*+,;=~"
"""The characters that a path may hold unquoted (RFC 3986): a path quoted here equals the one that most clients send."""
STILL_ANSWERING = (
    "The operation was started, and was answering with more than is kept. How it ended is not recorded. It will not "
    "run again under this key. Read its state from the resource."
)
FAILED_AT_LENGTH = (
    "The operation failed, and its answer was not kept. It will not run again under this key. Read its state from the "
    "resource."
)
REFUSED_WRITES = (
    "internal-error",
    "The database refused to commit what the request wrote, and rolled it back. Nothing was done; a repeat runs again.",
)
MAY_HAVE_COMMITTED = (
    "store-unavailable",
    "The transaction of this request was not committed, or its end cannot be read now. "
    "Repeat the request with the same key: it runs, or gets the answer of this one.",
)
NO_ANSWER = Response(500, (), b"")
"""For endings that are settled without an answer by semel."""


class Unfinished(RuntimeError):
    """The application returned before its answer was complete."""


class Ended(Struct, frozen=True, gc=False):
    """The end of the work: what is settled, and what the caller gets once that is stored."""

    ending: Ending
    result: Result | None
    response: Response
    kept_ms: int | None = None


class Answers:
    """The answers to one request. Their links begin with `root`, the path at which the caller finds the application."""

    __slots__ = ("_publish", "base", "errors", "root")

    def __init__(self, publish: str | None, root: str = "", errors: ErrorStyle = "problem") -> None:
        self._publish = publish
        self.errors: ErrorStyle = errors
        self.root = quote(root.rstrip("/"), PATH_SAFE) if root else ""
        self.base = None if publish is None else f"{self.root}{publish}"

    def styled(self, errors: ErrorStyle) -> Answers:
        """The answers with errors of this style."""
        if errors == self.errors:
            return self
        made = Answers(self._publish, errors=errors)
        made.root, made.base = self.root, self.base
        return made

    def problem(self, kind: str, detail: str = "", *, retry_after_s: int = http.RETRY_AFTER_S) -> Response:
        return http.problem(
            kind,
            uuid.uuid4().urn,
            detail=detail,
            base=self.base,
            retry_after_s=retry_after_s,
            errors=self.errors,
        )

    # What the work answered

    def answered(self, response: Response, policy: Policy, *, nothing_done: bool, raised: bool = False) -> Ended:
        """The work answered, or it `raised` and the application answered for that: a failure, whatever its status.

        A page that shows a traceback is sent, but never kept.
        """
        not_kept, kept_ms, kept = False, None, response
        if policy.replay_headers is not None or not LOOKED_AT.isdisjoint(
            map(bytes.lower, map(http.NAME, response.headers))
        ):
            response, not_kept, kept_ms = _take_directives(_without_marks(response), policy)
            kept = response.of(http.kept_headers(response.headers, policy))
        ending = Ending.NOTHING_DONE if nothing_done else http.ending_of(response.status, policy)
        ok = response.status < 400
        if raised:
            ending, ok = Ending.RAISED, False
        if ending is Ending.NOTHING_DONE or ending is Ending.REFUSED:
            return Ended(ending, None, response)
        if not_kept or (response.status >= 500 and TRACEBACK in response.body.lower()):
            return Ended(Ending.TOO_LARGE, responses.tombstone(ok=ok), response, kept_ms)
        return Ended(ending, responses.encode(kept, ok=ok), response, kept_ms)

    def too_large(
        self,
        response: Response,
        policy: Policy,
        *,
        nothing_done: bool,
        known: AnswerNotKept = AnswerNotKept.ENDED,
        raised: bool = False,
    ) -> Ended:
        """The answer is larger than what is kept; `known` says whether the work has ended."""
        done = self.answered(response, policy, nothing_done=nothing_done, raised=raised)
        if done.result is None:
            return done
        return Ended(Ending.TOO_LARGE, responses.tombstone(known, ok=done.result.ok), done.response, done.kept_ms)

    def raised(self) -> Ended:
        """The work raised, and the application has no answer for it: the first caller and repeats get one problem."""
        response = self.problem("internal-error")
        return Ended(Ending.RAISED, responses.encode(response, ok=False), response)

    def not_executed(self, detail: str) -> Ended:
        return Ended(Ending.NOTHING_DONE, None, self.problem("not-executed", detail))

    def declared(self, error: BaseException) -> Ended | None:
        """What the work declares by raising: that nothing was done, or that its outcome is unknown."""
        match error:
            case NotExecuted():
                return self.not_executed(str(error))
            case Unanswered():
                return Ended(Ending.INTERRUPTED, None, self.problem("interrupted", str(error)))
            case OutcomeUnknown():
                return Ended(Ending.UNCERTAIN, None, self.problem("interrupted", str(error)))
            case _:
                return None

    # What the store holds

    def answer(self, decision: Decision) -> Response:
        """What a caller that may not run the work gets."""
        match decision:
            case Run():
                raise ValueError("a granted claim is answered by the work")
            case Replay(result=result):
                return self.replay(result)
            case _:
                return self.problem(http.problem_of(decision))

    def settled(self, settlement: Settlement, ended: Ended) -> Response:
        """What the executor's caller gets."""
        match settlement:
            case Stored():
                return ended.response
            case Superseded(Undecided(NotCommitted() as failure)):
                return self.problem(*(REFUSED_WRITES if failure.for_good else MAY_HAVE_COMMITTED))
            case Superseded(Undecided()):
                return self.problem(
                    "store-unavailable",
                    "Another attempt took this operation over, and how it ended cannot be read now.",
                )
            case Superseded(decision):
                return self.answer(decision)
            case NotStored():
                return ended.response.plus(http.NOT_STORED)
            case _:
                return ended.response

    def replay(self, result: Result) -> Response:
        try:
            stored = responses.decode(result, http.REPLAYED)
        except RecordUnreadable:
            return self.problem("record-unreadable")
        if isinstance(stored, Response):
            return stored
        if stored is AnswerNotKept.ANSWERING:
            return self.problem("result-not-kept", STILL_ANSWERING)
        return self.problem("result-not-kept", "" if result.ok else FAILED_AT_LENGTH)


def known_of(headers: http.Headers, size: int) -> AnswerNotKept:
    """What is known of work that has answered `size` bytes so far: it has ended if it announced that length."""
    announced = [value for name, value in headers if name.lower() == b"content-length"]
    return AnswerNotKept.ENDED if announced == [b"%d" % size] else AnswerNotKept.ANSWERING


def without_directives(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [header for header in headers if header[0].lower() != DIRECTIVE]


def _without_marks(response: Response) -> Response:
    """Drop semel's marks from an answer that the application took from another protected service: they are not ours."""
    headers = tuple(header for header in response.headers if header[0].lower() not in http.MARKS)
    return response if len(headers) == len(response.headers) else response.of(headers)


def _take_directives(response: Response, policy: Policy) -> tuple[Response, bool, int | None]:
    """Take the directives out of an answer. A retention is clamped; a directive that is not known is an error."""
    given = [value for name, value in response.headers if name.lower() == DIRECTIVE]
    if not given:
        return response, False, None
    not_kept, kept_ms = False, None
    for directive in b",".join(given).decode("latin-1").split(","):
        name, _, value = directive.strip().partition("=")
        if name == "not-kept":
            not_kept = True
        elif name == "retention" and value.isdecimal():
            kept_ms = max(1, min(int(value) * 1000, policy.retention_ms))
        else:
            raise ValueError(
                f"Semel-Directive {directive.strip()!r} is not known: it is 'not-kept' or 'retention=SECONDS'"
            )
    return response.of(tuple(without_directives(response.headers))), not_kept, kept_ms
