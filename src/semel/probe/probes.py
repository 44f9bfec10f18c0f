"""The tries: what is sent, in which order, and what was seen."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from semel.probe.bodies import change_request
from semel.probe.effects import Count
from semel.probe.wire import ProbeReply, ProbeRequest, send

LONG_KEY = 5_000
SINGLE_TRIES = 10
"""Everything that is sent besides the parallel ones."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one try saw: the answers, and how often the work took effect meanwhile if that can be counted."""

    replies: tuple[ProbeReply, ...]
    effects: int | None

    @property
    def reply(self) -> ProbeReply:
        return self.replies[0]


@dataclass(frozen=True, slots=True)
class Observations:
    first: Seen
    repeat: Seen
    parallel: Seen
    settled: Seen
    """One more with the key of the parallel ones, when all of them are answered."""
    other_body: Seen
    control: Seen
    """The other body under a key of its own."""
    stranger: Seen | None
    """The first key with another identity; None when the request does not identify its caller."""
    stranger_made_up: bool
    unkeyed: Seen
    empty_key: Seen
    long_key: Seen


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    request: ProbeRequest
    other_body: bytes | None = None
    identity: tuple[str, str] | None = None
    parallel: int = 20
    timeout_s: float = 30.0
    count: Count | None = None
    on_progress: Callable[[str], None] = lambda _: None

    @property
    def requests(self) -> int:
        return self.parallel + SINGLE_TRIES


class FirstFailed(Exception):
    """The very first request was not accepted, so nothing can be said about repeats of it."""

    def __init__(self, reply: ProbeReply) -> None:
        super().__init__(str(reply))
        self.reply = reply


def observe(settings: ProbeSettings) -> Observations:
    """Make all tries. Real requests are sent, and some of them are meant to take effect."""
    request, key, crowd_key = settings.request, str(uuid.uuid4()), str(uuid.uuid4())
    other = change_request(request, settings.other_body)
    stranger = _stranger(settings)
    first = _try(settings, "first request", request.under(key))
    if not first.reply.ok:
        raise FirstFailed(first.reply)
    return Observations(
        first=first,
        repeat=_try(settings, "the same again", request.under(key)),
        parallel=_try(settings, f"{settings.parallel} at once", *[request.under(crowd_key)] * settings.parallel),
        settled=_try(settings, "one more of those", request.under(crowd_key)),
        other_body=_try(settings, "another body under the first key", other.under(key)),
        control=_try(settings, "another body under its own key", other.under(str(uuid.uuid4()))),
        stranger=None if stranger is None else _try(settings, "another identity", stranger.under(key)),
        stranger_made_up=settings.identity is None,
        unkeyed=_try(settings, "twice without a key", request, request, at_once=False),
        empty_key=_try(settings, "an empty key", request.under("")),
        long_key=_try(settings, f"a key of {LONG_KEY} characters", request.under("k" * LONG_KEY)),
    )


def _stranger(settings: ProbeSettings) -> ProbeRequest | None:
    if settings.identity is not None:
        return settings.request.instead(*settings.identity)
    if (name := settings.request.credential) is None:
        return None
    return settings.request.instead(name, f"Bearer semel-try-{uuid.uuid4().hex}")


def _try(settings: ProbeSettings, what: str, *requests: ProbeRequest, at_once: bool = True) -> Seen:
    settings.on_progress(what)
    before = settings.count() if settings.count else 0
    if at_once and len(requests) > 1:
        replies = _at_once(requests, settings.timeout_s)
    else:
        replies = [send(request, settings.timeout_s) for request in requests]
    return Seen(tuple(replies), settings.count() - before if settings.count else None)


def _at_once(requests: Sequence[ProbeRequest], timeout_s: float) -> list[ProbeReply]:
    start = threading.Barrier(len(requests))

    def go(request: ProbeRequest) -> ProbeReply:
        start.wait()
        return send(request, timeout_s)

    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(go, requests))
