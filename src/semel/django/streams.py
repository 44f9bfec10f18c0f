"""The body of an answer. A streamed body is collected before it is sent; above the limit it streams on after that."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from itertools import chain
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from semel.http.held import HeldBody

Collected = tuple[HttpResponseBase, "bytes | None"]
"""The response to send, and its body: None when that is larger than what is kept."""


def collect(response: HttpResponseBase, size_max: int, held_max: int = 0) -> Collected:
    """Collect the body. Up to `held_max` bytes are held: exactly-once sends nothing before the view has ended."""
    if not isinstance(response, StreamingHttpResponse):
        return _content(response, size_max)
    if held_max:
        return _hold(response, iter(response), size_max, held_max)
    source = iter(response)  # Django makes a list of an asynchronous iterator here, as it does when it sends
    taken: list[bytes] = []
    size = 0
    for chunk in source:
        taken.append(chunk)
        size += len(chunk)
        if size > size_max:
            response.streaming_content = chain(taken, source)
            return response, None
    return _whole(response, b"".join(taken))


async def acollect(response: HttpResponseBase, size_max: int, held_max: int = 0) -> Collected:
    """The same for tasks. A plain iterator may block, so it runs in the thread where Django would run it."""
    if not isinstance(response, StreamingHttpResponse):
        return _content(response, size_max)
    if not response.is_async:
        return await sync_to_async(collect)(response, size_max, held_max)
    source: AsyncIterator[bytes] = aiter(response)
    if held_max:
        held = HeldBody(held_max)
        async for chunk in source:
            held.add(chunk)
        return _from_held(response, held, size_max)
    taken: list[bytes] = []
    size = 0
    async for chunk in source:
        taken.append(chunk)
        size += len(chunk)
        if size > size_max:
            response.streaming_content = _chain(taken, source)
            return response, None
    return _whole(response, b"".join(taken))


def _content(response: Any, size_max: int) -> Collected:
    body: bytes = response.content
    return response, body if len(body) <= size_max else None


def _hold(response: StreamingHttpResponse, source: Iterable[bytes], size_max: int, held_max: int) -> Collected:
    held = HeldBody(held_max)
    for chunk in source:
        held.add(chunk)
    return _from_held(response, held, size_max)


def _from_held(response: StreamingHttpResponse, held: HeldBody, size_max: int) -> Collected:
    if held.size <= size_max:
        return _whole(response, held.whole())
    made = StreamingHttpResponse(held.chunks(), status=response.status_code, reason=response.reason_phrase)
    made.headers, made.cookies = response.headers, response.cookies
    made._resource_closers.extend([held.close, *response._resource_closers])
    return made, None


def _whole(response: HttpResponseBase, body: bytes) -> Collected:
    """The same answer in one piece, as its replays will be, so that middleware around us treats both alike."""
    made = HttpResponse(body, status=response.status_code, reason=response.reason_phrase)
    made.headers, made.cookies = response.headers, response.cookies
    made._resource_closers.extend(response._resource_closers)
    return made, body


async def _chain(taken: list[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    for chunk in taken:
        yield chunk
    async for chunk in rest:
        yield chunk
