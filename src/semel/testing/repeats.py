"""What retrying callers do to an endpoint, and what it must not do then.

The checks are a plan: it yields what to ask and is sent what came back, so blocking and async clients go through the
same ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from semel.testing.clients import Answer, ClientCall

T = TypeVar("T")
LASTING = ("content-type", "content-encoding", "location", "etag", "link")
"""Headers that mean something for the operation. Others (dates, request ids, cookies) may differ between repeats."""
NOT_NOW = (202, 409, 425, 429, 503)
"""What a repeat may be told while the first request is still running."""
ABOUT_THE_KEY = (409, 410, 422)


@dataclass(frozen=True, slots=True)
class At:
    """Calls that are to be sent; more than one at the same moment. The reply is their answers."""

    once: tuple[ClientCall, ...]


class Count:
    """The effects are to be counted. The reply is their number, or None without `effects`."""


Asked = At | Count
Checks = Generator[Asked, Any, T]


@dataclass(frozen=True, slots=True)
class RepeatedRequest:
    """What is asked, in its variants."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes
    changed: bytes
    header: str
    new_key: Callable[[], str]
    other_identity: dict[str, str] | None

    def __str__(self) -> str:
        return f"{self.method} {self.url}"

    def call(self, key: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> ClientCall:
        merged = {name.lower(): value for name, value in (self.headers | dict(headers or {})).items()}
        merged[self.header.lower()] = key
        return ClientCall(self.method, self.url, tuple(merged.items()), self.body if body is None else body)


def checks(request: RepeatedRequest, parallel: int) -> Checks[None]:
    before = yield Count()
    key = request.new_key()
    [first] = yield At((request.call(key),))
    after = yield Count()
    if not 200 <= first.status < 400:
        raise AssertionError(
            f"{request} was answered {first}, so nothing can be said about repeats of it: give a request that succeeds "
            f"(its headers were {', '.join(request.headers) or 'none'} and {request.header})."
        )
    grown = None if before is None else after - before
    if grown == 0:
        raise AssertionError(
            f"effects= did not change by the first {request} ({first}), so it would not see a second one. "
            "Count something that this request does: rows, mails, charges."
        )
    yield from _repeats(request, key, first)
    yield from _another_body(request, key, first)
    if parallel > 1:
        yield from _at_once(request, parallel, grown)
    if request.other_identity is not None:
        yield from _another_caller(request, key, first)


def _repeats(request: RepeatedRequest, key: str, first: Answer) -> Checks[None]:
    before = yield Count()
    marked = False
    for _ in range(2):
        [again] = yield At((request.call(key),))
        marked = again.header("idempotent-replayed") is not None
        after = yield Count()
        if after != before:
            raise AssertionError(
                f"{request}: a repeat under the same {request.header} took effect again ({after - before} more).\n"
                f"{_shown(first=first, repeat=again)}\n"
                "Nothing recognised the repeat. Put the idempotency middleware in front of this endpoint, and check "
                f"that its methods, rules and header names cover {request} with {request.header}."
            )
        if not _same(again, first):
            raise AssertionError(
                f"{request}: a repeat under the same {request.header} got another answer.\n"
                f"{_shown(first=first, repeat=again)}\n"
                "A repeat must get the first answer, byte for byte. Either the work ran again (is this endpoint behind "
                "the idempotency middleware?), or the answer was not stored (result_max, release_statuses), or "
                "something in front of the middleware changes it."
            )
    if before is None and not marked:
        warnings.warn(
            f"the answers to {request} are alike, which those of an unprotected service may be, too: "
            "pass effects=, a function that counts what the request does",
            stacklevel=4,
        )


def _another_body(request: RepeatedRequest, key: str, first: Answer) -> Checks[None]:
    before = yield Count()
    [other] = yield At((request.call(key, body=request.changed),))
    after = yield Count()
    if after != before or not 400 <= other.status < 500:
        what = "took effect" if after != before else "was not refused"
        raise AssertionError(
            f"{request}: another body under the same {request.header} {what}.\n"
            f"{_shown(first=first, changed=other)}\n"
            "One key is one request: refuse the other one (422), or its caller takes the first one's answer for its "
            "own. Let the fingerprint cover the body (Policy.fingerprint)."
        )


def _at_once(request: RepeatedRequest, parallel: int, grown: int | None) -> Checks[None]:
    before = yield Count()
    key = request.new_key()
    answers: list[Answer] = yield At((request.call(key),) * parallel)
    after = yield Count()
    real = [answer for answer in answers if answer.status not in NOT_NOW]
    shown = _shown(**{f"answer {number}": answer for number, answer in enumerate(answers, 1)})
    if grown is not None and after - before > grown:
        raise AssertionError(
            f"{request}: {parallel} requests at once under one {request.header} took effect {after - before} times "
            f"instead of {grown}.\n{shown}\n"
            "The key is looked up, and the answer saved afterwards, but nothing claims the key before the work runs. "
            "Claim it in one atomic step (a unique row, SET NX); semel's stores do."
        )
    if grown is not None and after == before:
        raise AssertionError(
            f"{request}: a request under a new {request.header} took no effect.\n{shown}\n"
            "Is it taken for a repeat of an earlier one? The key itself must tell operations apart, not only the body."
        )
    if not real:
        raise AssertionError(
            f"{request}: of {parallel} requests at once under one {request.header} none was served.\n{shown}\n"
            "One of them must run, and get its answer; the others may be told to come back (409)."
        )
    [last] = yield At((request.call(key),))
    if any(not _same(answer, real[0]) for answer in (*real, last)):
        raise AssertionError(
            f"{request}: {parallel} requests at once under one {request.header} got different answers.\n{shown}\n"
            f"  afterwards: {last}\n"
            "Either the work ran more than once, because nothing claims the key before it runs, or a failure was "
            "answered instead of 409 while the first was running. Claim the key in one atomic step; semel's stores do."
        )


def _another_caller(request: RepeatedRequest, key: str, first: Answer) -> Checks[None]:
    before = yield Count()
    [other] = yield At((request.call(key, headers=request.other_identity),))
    after = yield Count()
    shown = _shown(first=first, **{"another caller": other})
    served = other.status < 400
    if other.header("idempotent-replayed") == "true" or (served and after == before and _same(other, first)):
        raise AssertionError(
            f"{request}: another caller got the first caller's answer by using the same {request.header}.\n{shown}\n"
            "Keys belong to their callers: tell them apart by account (identify=), and put the middleware behind "
            "authentication." + ("" if before is not None else " If both may be answered alike, pass effects=.")
        )
    if other.status in ABOUT_THE_KEY:
        raise AssertionError(
            f"{request}: another caller was refused because of the first caller's {request.header}.\n{shown}\n"
            "One caller can block, or find out, the keys of another. Keep them apart by account (identify=)."
        )


def _same(one: Answer, other: Answer) -> bool:
    return (one.status, one.body) == (other.status, other.body) and all(
        one.header(name) == other.header(name) for name in LASTING
    )


def _shown(**answers: Answer) -> str:
    width = max(map(len, answers)) + 1
    return "\n".join(f"  {name + ':':{width}} {answer}" for name, answer in answers.items())
