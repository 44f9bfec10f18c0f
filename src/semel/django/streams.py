"""The body of an answer. A streamed one is collected before it is sent; one over the limit streams on after that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import chain
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

Collected = tuple[HttpResponseBase, "bytes | None"]
"""The response that delivers the answer, and its body: None when that is larger than what is kept."""


def collect(response: HttpResponseBase, size_max: int) -> Collected:
    if not isinstance(response, StreamingHttpResponse):
        return _content(response, size_max)
    source = iter(response)  # of an asynchronous iterator, Django makes a list here as it would when sending
    taken: list[bytes] = []
    size = 0
    for chunk in source:
        taken.append(chunk)
        size += len(chunk)
        if size > size_max:
            response.streaming_content = chain(taken, source)
            return response, None
    return _whole(response, b"".join(taken))


async def acollect(response: HttpResponseBase, size_max: int) -> Collected:
    """The same for tasks. A plain iterator may block, so it is asked in the thread where Django would ask it."""
    if not isinstance(response, StreamingHttpResponse):
        return _content(response, size_max)
    if not response.is_async:
        return await sync_to_async(collect)(response, size_max)
    source: AsyncIterator[bytes] = aiter(response)
    taken: list[bytes] = []
    size = 0
    async for chunk in source:
        taken.append(chunk)
        size += len(chunk)
        if size > size_max:
            response.streaming_content = _chained(taken, source)
            return response, None
    return _whole(response, b"".join(taken))


def _content(response: Any, size_max: int) -> Collected:
    body: bytes = response.content
    return response, body if len(body) <= size_max else None


def _whole(response: HttpResponseBase, body: bytes) -> Collected:
    """The same answer in one piece, as its replays will be, so that middleware around us treats them alike."""
    made = HttpResponse(body, status=response.status_code, reason=response.reason_phrase)
    made.headers, made.cookies = response.headers, response.cookies
    made._resource_closers.extend(response._resource_closers)
    return made, body


async def _chained(taken: list[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    for chunk in taken:
        yield chunk
    async for chunk in rest:
        yield chunk
