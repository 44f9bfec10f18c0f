"""Answers of a service, and their headers as text, whatever library has received them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from urllib.parse import urljoin, urlsplit

from semel.client.journal import Intent
from semel.core.journal import TextHeaders
from semel.core.retries import CallAnswer

ACCEPTED = 202
READ_MAX = 1_048_576
"""The body of an answer that says it is longer is left to the caller, as one that does not say how long it is."""
OF_BODY = frozenset({"content-encoding", "content-length", "transfer-encoding"})
"""Headers that say how a body was sent. They are not true of a body that was read and decoded."""


def is_streamed(intent: Intent | None, status: int, headers: Mapping[str, str]) -> bool:
    """Whether the body of an answer is left to the caller, who may want to read it bit by bit.

    No journal keeps it then, it is no problem document, and it is long. A short one is read here, so that a connection
    that fails meanwhile is repeated.
    """
    if intent is not None or status >= 400 or status == ACCEPTED:
        return False
    length = headers.get("Content-Length", "")
    return not length.isdecimal() or int(length) > READ_MAX


def answer_of(status: int, headers: Iterable[tuple[str, str]], body: bytes) -> CallAnswer:
    """An answer whose body was read and decoded."""
    return CallAnswer(status, tuple(each for each in text_headers(headers) if each[0].lower() not in OF_BODY), body)


def text_headers(headers: Iterable[tuple[str, str | bytes]]) -> TextHeaders:
    """Headers as plain text, whatever kinds of text a library has."""
    return tuple((str(name), _text_of(value)) for name, value in headers)


def encode_headers(headers: TextHeaders) -> list[tuple[bytes, bytes]]:
    """Headers as bytes, for a library that takes text only if it is ASCII."""
    return [(name.encode(), value.encode()) for name, value in headers]


def _text_of(value: str | bytes) -> str:
    if isinstance(value, str):
        try:
            value.encode()
            return str(value)
        except UnicodeEncodeError:  # a library has read bytes as UTF-8 that are none
            value = value.encode("utf-8", "surrogateescape")
    return value.decode("latin-1")


def is_interim(method: str, status: int) -> bool:
    """Whether an answer is none: after a 1xx there is one to come. A GET may ask to switch protocols."""
    return 100 <= status < 200 and (status, method.upper()) != (HTTPStatus.SWITCHING_PROTOCOLS, "GET")


def reason_of(status: int) -> str:
    """The words that go with a status; empty for one without."""
    return next((each.phrase for each in HTTPStatus if each == status), "")


def leads_elsewhere(status: int, location: str | None, url: str) -> bool:
    """Whether an answer redirects to another origin, where the key of the caller must not go."""
    if not location or not 300 <= status < 400:
        return False
    here, there = urlsplit(url), urlsplit(urljoin(url, location))
    return (here.scheme, here.hostname, here.port) != (there.scheme, there.hostname, there.port)
