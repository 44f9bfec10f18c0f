"""Answers as a WSGI server takes them: a status line, headers of latin-1 text, an iterable that it closes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http import HTTPStatus
from types import TracebackType
from wsgiref.types import StartResponse

from semel.core.http import Headers, Response
from semel.http.answers import DIRECTIVE
from semel.runtime.operation import Inside, Operation
from semel.wsgi.request import encoded

PHRASES = {status.value: status.phrase for status in HTTPStatus}
DIRECTIVE_NAME = DIRECTIVE.decode()
ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None] | None
WireHeaders = list[tuple[str, str]]
Phrase = Callable[[int], str]
"""The reason phrase that a status usually has."""


class Whole(list[bytes]):
    """A complete answer in one part, so that the server knows its length."""

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


def parts_in(operation: Operation, iterator: Iterator[bytes]) -> Iterator[bytes]:
    """The rest of `iterator`. `operation` is current while each part is made, in every thread that asks for one."""
    while True:
        try:
            with Inside(operation):
                part = next(iterator)
        except StopIteration:
            return
        yield part


def close_in(operation: Operation, iterable: object) -> None:
    if (close := getattr(iterable, "close", None)) is not None:
        with Inside(operation):
            close()


def plain(status: int, text: bytes) -> Response:
    """A plain-text answer to a request that is malformed as such; its key is not the problem."""
    return Response(status, ((b"content-type", b"text/plain"), (b"content-length", b"%d" % len(text))), text)


def usual_phrase(status: int) -> str:
    """The registered reason phrase."""
    return PHRASES.get(status, "Unknown")


def status_line(response: Response, usual: Phrase) -> str:
    """The status line with the answer's own phrase, or with the usual one, which an answer does not keep."""
    phrase = usual(response.status) if response.reason is None else response.reason.decode("latin-1")
    return f"{response.status} {phrase}"


def read_status(line: str, usual: Phrase) -> tuple[int, bytes | None]:
    """The status of an application's status line, and its phrase if that is not the usual one."""
    number, _, phrase = line.partition(" ")
    status = int(number)
    return status, None if phrase == usual(status) else encoded(phrase)


def wire_headers(headers: Headers) -> WireHeaders:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def undirected(headers: WireHeaders) -> WireHeaders:
    """The headers without the directives, which are for the middleware only."""
    return [header for header in headers if header[0].lower() != DIRECTIVE_NAME]


def start_undirected(start_response: StartResponse) -> StartResponse:
    """Drop the directives from the answer to a request without a key: they have no effect there, and are not sent."""

    def start(status: str, headers: WireHeaders, exc_info: ExcInfo = None, /) -> Callable[[bytes], object]:
        return start_response(status, undirected(headers), exc_info)

    return start
