"""A request in a WSGI environ. Its texts are decoded as latin-1: each character stands for one byte."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote_from_bytes, unquote_to_bytes
from wsgiref.types import InputStream, WSGIEnvironment

from semel.core.http import Headers
from semel.http.answers import PATH_SAFE

READ_SIZE = 65_536


def headers_of(environ: WSGIEnvironment) -> Headers:
    """The headers, with names in lower case. The server has joined repeated lines with commas, which no bare key holds.

    A server gives latin-1 text. A test client may give any value, also to the application: None is an absent header.
    """
    found = [(name[5:], value) for name, value in environ.items() if name.startswith("HTTP_")]
    found += [(name, environ[name]) for name in ("CONTENT_TYPE", "CONTENT_LENGTH") if environ.get(name)]
    return tuple((_header_name(name), encoded(value)) for name, value in found if value is not None)


def path_of(environ: WSGIEnvironment) -> str:
    """The path below the application's root, decoded: what its routes, and rules, are matched with."""
    return _decoded(environ.get("PATH_INFO", ""))


def root_of(environ: WSGIEnvironment) -> str:
    """Where the application is mounted, as its callers see it."""
    return _decoded(environ.get("SCRIPT_NAME", ""))


def raw_path_of(environ: WSGIEnvironment) -> str:
    """The path as received, still percent-encoded, so that two different paths stay different.

    Servers give it under one of two names. It counts only if it decodes to the path that the application sees: a
    middleware in front of ours may have changed that. Otherwise the decoded path is quoted again, always the same way.
    """
    path = _path_bytes(environ)
    target: str = environ.get("REQUEST_URI") or environ.get("RAW_URI") or ""
    raw = target.partition("?")[0]
    return raw if raw and unquote_to_bytes(raw.encode("latin-1")) == path else quote_from_bytes(path, PATH_SAFE)


def length_of(environ: WSGIEnvironment) -> int | None:
    """How many bytes the body has; None when only the end of the input tells. 0 without either."""
    given = str(environ.get("CONTENT_LENGTH") or "")
    if given.isascii() and given.isdecimal():
        return int(given.lstrip("0")[:18] or 0)  # Python refuses to read thousands of digits
    return None if environ.get("wsgi.input_terminated") else 0


def length_is_known(environ: WSGIEnvironment) -> bool:
    """False for a body in chunks from a server that tells neither its length nor that its input ends."""
    chunked = "chunked" in str(environ.get("HTTP_TRANSFER_ENCODING")).lower()
    return not chunked or bool(environ.get("CONTENT_LENGTH") or environ.get("wsgi.input_terminated"))


def read(stream: InputStream, size: int) -> bytes:
    """Read `size` bytes, or fewer if the input ends before. Never asks for more: many servers would wait for ever."""
    chunks: list[bytes] = []
    while size > 0 and (chunk := stream.read(min(size, READ_SIZE))):
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def encoded(value: object) -> bytes:
    return str(value).encode("latin-1", "backslashreplace")


@lru_cache(1024)
def _header_name(name: str) -> bytes:
    return encoded(name.replace("_", "-").lower())


def _decoded(text: str) -> str:
    return text.encode("latin-1").decode("utf-8", "replace")


def _path_bytes(environ: WSGIEnvironment) -> bytes:
    path: str = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    return path.encode("latin-1")
