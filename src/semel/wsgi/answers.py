"""Answers as a WSGI server takes them: a status line, headers of latin-1 text, an iterable that it closes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import Context
from http import HTTPStatus
from types import TracebackType
from wsgiref.types import StartResponse

from semel.answers import DIRECTIVE
from semel.core.http import Headers, Response

PHRASES = {status.value: status.phrase for status in HTTPStatus}
DIRECTIVE_NAME = DIRECTIVE.decode()
ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None] | None
WireHeaders = list[tuple[str, str]]


class Whole(list[bytes]):
    """A complete answer, of one part, so that the server can tell its length."""

    def __init__(self, body: bytes, close: Callable[[], None] | None = None) -> None:
        super().__init__([body] if body else [])
        self._close = close

    def close(self) -> None:
        if self._close is not None:
            self._close()


class Streamed:
    """An answer that goes on."""

    def __init__(self, parts: Iterator[bytes], close: Callable[[], None]) -> None:
        self._parts = parts
        self.close = close

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._parts)


def parts_in(context: Context, iterator: Iterator[bytes]) -> Iterator[bytes]:
    """What is left of `iterator`, each part made in `context`, whoever asks for it."""
    while True:
        try:
            part = context.run(next, iterator)
        except StopIteration:
            return
        yield part


def close_in(context: Context, iterable: object) -> None:
    if (close := getattr(iterable, "close", None)) is not None:
        context.run(close)


def plain(status: int, text: bytes) -> Response:
    """An answer to a request that is none: no problem of a key's."""
    return Response(status, ((b"content-type", b"text/plain"), (b"content-length", b"%d" % len(text))), text)


def respond(start_response: StartResponse, response: Response, close: Callable[[], None] | None = None) -> Whole:
    """Give the server a complete answer. It calls `close` when the answer has been sent."""
    start_response(status_line(response.status), wire_headers(response.headers))
    return Whole(response.body, close)


def status_line(status: int) -> str:
    """The phrase is the registered one: only the number is stored, and a repeat must not differ from the first."""
    return f"{status} {PHRASES.get(status, 'Unknown')}"


def wire_headers(headers: Headers) -> WireHeaders:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def undirected(headers: WireHeaders) -> WireHeaders:
    """Without the directives, which are for us alone."""
    return [header for header in headers if header[0].lower() != DIRECTIVE_NAME]


def start_undirected(start_response: StartResponse) -> StartResponse:
    """Without a key there is nothing to direct: directives are dropped here, too."""

    def start(status: str, headers: WireHeaders, exc_info: ExcInfo = None, /) -> Callable[[bytes], object]:
        return start_response(status, undirected(headers), exc_info)

    return start
