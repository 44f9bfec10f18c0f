"""What HTTP says: a decision or a settlement in, an answer out.

Problems are RFC 9457 documents. Their types are data (`PROBLEMS`), which is also what the published policy document
shows. Nothing of another request's body ever appears in one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from types import MappingProxyType
from typing import assert_never

from msgspec import Struct

from semel.core.decisions import Expired, InFlight, Mismatch, Undecided, Unknown, Unreadable
from semel.core.policy import Policy
from semel.core.policy_values import NEVER_REPLAYED, ErrorStyle
from semel.core.tables import Ending

Headers = tuple[tuple[bytes, bytes], ...]

WELL_KNOWN = "/.well-known/idempotency"
REPLAYED = (b"idempotent-replayed", b"true")
NOT_STORED = (b"idempotency-stored", b"false")
MARKS = frozenset({REPLAYED[0], NOT_STORED[0]})
RETRY_AFTER_S = 1
NAME = itemgetter(0)
DROPPED = frozenset(name.encode() for name in NEVER_REPLAYED)
DESCRIBE_BODY = frozenset(("content-type", "content-length", "content-encoding"))
"""Always kept, whatever the policy says: without them a replayed body would mean something else."""


class Response(Struct, frozen=True, gc=False):
    """An answer: header order and repeats are kept, names are as the application sent them."""

    status: int
    headers: Headers
    body: bytes
    reason: bytes | None = None
    """The reason phrase, where it is not the usual one of its status. Only HTTP/1 and WSGI have one."""

    def plus(self, *headers: tuple[bytes, bytes]) -> Response:
        return self.of((*self.headers, *headers))

    def of(self, headers: Headers) -> Response:
        """The same answer with other headers."""
        return Response(self.status, headers, self.body, self.reason)


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """One kind of problem. `retryable` says whether the same request may succeed later."""

    status: int
    title: str
    retryable: bool
    advice: str


REPEAT_LATER = "Repeat the request with the same key after the time in Retry-After."
PROBLEMS: Mapping[str, ProblemKind] = MappingProxyType(
    {
        "key-missing": ProblemKind(
            400,
            "An idempotency key is required",
            False,
            "Send one key for each logical operation, and the same key with every retry of it.",
        ),
        "key-malformed": ProblemKind(
            400,
            "The idempotency key cannot be read",
            False,
            "Send one key of 1 to 255 characters, for example a UUID.",
        ),
        "key-reused": ProblemKind(
            422,
            "The idempotency key belongs to another request",
            False,
            "Use a new key for a new operation; repeat a request unchanged.",
        ),
        "in-progress": ProblemKind(409, "The first request with this key is still running", True, REPEAT_LATER),
        "outcome-unknown": ProblemKind(
            409,
            "The outcome of the first request is unknown",
            False,
            "It was interrupted after it started. Find out whether it took effect before you try with a new key.",
        ),
        "result-not-kept": ProblemKind(
            409,
            "The answer to the first request was not kept",
            False,
            "The operation was carried out and will not run again. Read its state from the resource.",
        ),
        "key-expired": ProblemKind(
            410,
            "The idempotency key was used and is past retention",
            False,
            "Use a new key for a new operation.",
        ),
        "body-too-large": ProblemKind(
            413, "The request body is too large to be protected", False, "Send a smaller body."
        ),
        "internal-error": ProblemKind(
            500,
            "The request failed",
            False,
            "It was started and failed; a repeat with this key gets this same answer.",
        ),
        "not-executed": ProblemKind(503, "The request was not carried out", True, f"Nothing was done. {REPEAT_LATER}"),
        "unreachable": ProblemKind(
            502, "The service behind this one cannot be reached", True, f"Nothing was done. {REPEAT_LATER}"
        ),
        "interrupted": ProblemKind(
            504,
            "The request was interrupted, and its outcome is unknown",
            False,
            "It may have taken effect. Find out whether it did before you send it under a new key.",
        ),
        "record-unreadable": ProblemKind(
            500,
            "The stored record cannot be read",
            False,
            "It was written by another version of the service. Nothing was run.",
        ),
        "too-many-keys": ProblemKind(429, "Too many new idempotency keys", True, REPEAT_LATER),
        "store-unavailable": ProblemKind(
            503,
            "The service cannot decide whether this request is a repeat",
            True,
            f"Nothing was run. {REPEAT_LATER}",
        ),
    }
)


def type_of(kind: str, base: str | None) -> str:
    """The type of a problem: the section of the policy document that explains it, or a name without a document."""
    return f"urn:semel:{kind}" if base is None else f"{base}#{kind}"


def describe(kind: str, base: str | None) -> tuple[bytes, bytes]:
    """The header by which an answer that is no problem document says what a problem document would say."""
    return b"link", f'<{type_of(kind, base)}>; rel="describedby"'.encode()


STRIPE_STATUSES = {"key-reused": 400}
"""Where Stripe's API answers another status."""
STRIPE_CODES = {
    "key-reused": {"type": "idempotency_error"},
    "in-progress": {"type": "invalid_request_error", "code": "idempotency_key_in_use"},
    "too-many-keys": {"type": "invalid_request_error", "code": "rate_limit"},
}
"""What Stripe's libraries tell these problems by. The others have semel's own codes."""


def status_of(kind: str, errors: ErrorStyle) -> int:
    """The status of a problem."""
    status = PROBLEMS[kind].status
    return STRIPE_STATUSES.get(kind, status) if errors == "stripe" else status


def problem(
    kind: str,
    instance: str,
    *,
    detail: str = "",
    base: str | None = WELL_KNOWN,
    retry_after_s: int = RETRY_AFTER_S,
    errors: ErrorStyle = "problem",
) -> Response:
    """The answer for a problem of `kind`.

    `instance` is a urn:uuid of this occurrence, `base` where the types are explained.
    """
    what = PROBLEMS[kind]
    after = ((b"retry-after", str(max(1, retry_after_s)).encode()),) if what.retryable else ()
    if errors == "stripe":
        response = _stripe_error(kind, instance, detail or what.advice, base)
        return response.plus(*after)
    document = {
        "type": type_of(kind, base),
        "title": what.title,
        "status": what.status,
        "detail": detail or what.advice,
        "instance": instance,
        "retryable": what.retryable,
    }
    body = json.dumps(document).encode()
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if base is not None:
        headers.append((b"link", f'<{base}>; rel="describedby"'.encode()))
    return Response(what.status, (*headers, *after), body)


def _stripe_error(kind: str, instance: str, message: str, base: str | None) -> Response:
    """A problem as Stripe's libraries read it. Its kind is in the link."""
    what, status = PROBLEMS[kind], status_of(kind, "stripe")
    own = {"type": "api_error" if status >= 500 else "invalid_request_error", "code": kind.replace("-", "_")}
    body = json.dumps({"error": {**STRIPE_CODES.get(kind, own), "message": f"{what.title}. {message}"}}).encode()
    headers = (
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"request-id", instance.removeprefix("urn:uuid:").encode()),
        (b"stripe-should-retry", b"true" if what.retryable else b"false"),
        describe(kind, base),
    )
    return Response(status, headers, body)


def problem_of(decision: Mismatch | InFlight | Unknown | Expired | Unreadable | Undecided) -> str:
    """The kind of problem for a decision other than run and replay."""
    match decision:
        case Mismatch():
            return "key-reused"
        case InFlight():
            return "in-progress"
        case Unknown():
            return "outcome-unknown"
        case Expired():
            return "key-expired"
        case Unreadable():
            return "record-unreadable"
        case Undecided():
            return "store-unavailable"
        case _:
            assert_never(decision)


def ending_of(status: int, policy: Policy) -> Ending:
    """How work with this status ended. A failure is an answer, too; a refusal before the work ran is not."""
    if status in frozenset(policy.release_statuses):
        return Ending.REFUSED
    return Ending.SUCCEEDED if status < 400 else Ending.FAILED


def kept_headers(headers: Sequence[tuple[bytes, bytes]], policy: Policy) -> Headers:
    """The headers that a replay carries: those of one connection, moment or caller only if the policy names them."""
    if policy.replay_headers is None:
        return tuple([header for header in headers if header[0].lower() not in DROPPED])
    wanted = DESCRIBE_BODY | frozenset(policy.replay_headers)
    return tuple((name, value) for name, value in headers if name.lower().decode("latin-1") in wanted)
