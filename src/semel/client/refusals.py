"""The error for a call that the journal does not allow to send: what is in the way, and the way out."""

from __future__ import annotations

import re

from semel.client.journal import Indeterminate
from semel.core.call_values import CallRefusal, CallRefused, OutgoingCall
from semel.core.journal import CallRequest, IntentEntry, IntentState
from semel.core.retries import AttemptEnd, find_header
from semel.errors import InProgress, KeyReused

BOUNDARY = re.compile(r'multipart/.*boundary="?([^";]+)', re.IGNORECASE)


def refusal_of(refused: CallRefused, call: OutgoingCall) -> Exception:
    """The error to raise. Nothing was sent, or nothing more."""
    entry, request = refused.entry, call.request
    about = f"intent {entry.id.name!r}: {refused.refusal.value}"
    match refused.refusal:
        case CallRefusal.OTHER_KEY:
            return KeyReused(
                f"{about}; nothing was sent. The journal has the key {entry.key}, and this request has {call.key}: "
                "leave the key out of the request, and semel sends the one of the journal; another operation needs "
                "another name"
            )
        case CallRefusal.DRIFTED:
            return KeyReused(
                f"{about}; nothing was sent. The journal has {entry.request.method} {entry.request.url} with the "
                f"digest {entry.request.digest[:16]}, and this request has {refused.digest[:16]}: "
                f"{_differences(entry.request, request)}. {_way_out(entry, request)}"
            )
        case CallRefusal.TOO_OLD | CallRefusal.DOUBTFUL:
            return Indeterminate.of(entry, refused.refusal)
        case CallRefusal.BUSY:
            return InProgress(f"{about}. Ask again under the same name: the key stays the same")


def _differences(kept: CallRequest, request: CallRequest) -> str:
    """Which parts are not the same. No value is shown: a URL or a body may hold a secret."""
    parts = {
        "the method": (kept.method.upper(), request.method.upper()),
        "the URL": (kept.url, request.url),
        "the content type": (_type_of(kept), _type_of(request)),
        "the body": (kept.body, request.body),
        "the dialect": (kept.dialect, request.dialect),
    }
    names = [name for name, (before, now) in parts.items() if before != now]
    return f"{' and '.join(names)} {'differs' if len(names) == 1 else 'differ'}"


def _way_out(entry: IntentEntry, request: CallRequest) -> str:
    kept = entry.request
    if AttemptEnd.MOVED.value in entry.error:
        return "The service redirected the first request, so send it to the new address, under a new name"
    if kept.dialect != request.dialect:
        return f"It was begun in the dialect {kept.dialect}, and this one is {request.dialect}"
    if _is_same_form(kept, request):
        return (
            "It is the same form with another multipart boundary, which libraries draw for each request: name the "
            "boundary yourself, the same in each run"
        )
    if entry.state is IntentState.ANSWERED:
        return "A new operation needs a new name"
    last = f" (its last attempt: {entry.error})" if entry.error else ""
    return (
        f"A new operation needs a new name. The first request has no answer yet{last}: if you know that it did not "
        f"take effect, journal.forget({entry.id.name!r}) frees the name"
    )


def _is_same_form(kept: CallRequest, request: CallRequest) -> bool:
    """Whether two requests differ in nothing but the boundary of a form with files."""
    before, now = (BOUNDARY.match(_type_of(each)) for each in (kept, request))
    if before is None or now is None or (kept.method, kept.url) != (request.method, request.url):
        return False
    return kept.body.replace(before[1].encode(), now[1].encode()) == request.body


def _type_of(request: CallRequest) -> str:
    return find_header(request.headers, "content-type")
