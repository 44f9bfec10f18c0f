"""Requests and answers, by the standard library: nothing is followed, retried or decoded."""

from __future__ import annotations

import http.client
import json
import re
from dataclasses import dataclass, replace
from urllib.parse import SplitResult, urlsplit

Headers = tuple[tuple[str, str], ...]
ANSWER_MAX = 16 * 1024 * 1024
TOKEN = re.compile(r"[0-9A-Za-z!#$%&'*+.^_`|~-]+")
"""What a method or the name of a header is made of (RFC 9110, section 5.6.2)."""
CREDENTIALS = ("authorization", "cookie", "x-api-key", "api-key", "x-auth-token")


class BadRequest(ValueError):
    """What was given cannot be sent."""


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    method: str
    url: str
    headers: Headers = ()
    body: bytes = b""
    key_header: str = "Idempotency-Key"

    def __post_init__(self) -> None:
        if not TOKEN.fullmatch(self.method):
            raise BadRequest(f"METHOD {self.method!r}: write one word, like POST")
        if not TOKEN.fullmatch(self.key_header):
            raise BadRequest(f"--key-header {self.key_header!r}: write the name of a header, like Idempotency-Key")
        try:
            parts = urlsplit(self.url)
            _ = parts.port
        except ValueError as error:
            raise BadRequest(f"URL {self.url!r}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadRequest(f"URL {self.url!r}: write it whole, like http://127.0.0.1:8000/orders")
        if not self.url.isascii() or not self.url.isprintable() or " " in self.url:
            raise BadRequest(f"URL {self.url!r}: percent-encode what is not plain ASCII, a blank as %20")

    def under(self, key: str) -> ProbeRequest:
        return replace(self, headers=(*self.headers, (self.key_header, key)))

    def instead(self, name: str, value: str) -> ProbeRequest:
        """The same request with another value for one header."""
        others = tuple(header for header in self.headers if header[0].lower() != name.lower())
        return replace(self, headers=(*others, (name, value)))

    @property
    def credential(self) -> str | None:
        """The name of the first header that identifies the caller."""
        return next((name for name, _ in self.headers if name.lower() in CREDENTIALS), None)

    @property
    def loopback(self) -> bool:
        host = urlsplit(self.url).hostname or ""
        return host in ("localhost", "::1") or host.startswith("127.")


@dataclass(frozen=True, slots=True)
class ProbeReply:
    """An answer; `failure` says why there is none."""

    status: int = 0
    headers: Headers = ()
    body: bytes = b""
    failure: str = ""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 400

    @property
    def refused(self) -> bool:
        return 400 <= self.status < 500

    @property
    def broken(self) -> bool:
        return not self.status or self.status >= 500

    def header(self, name: str) -> str | None:
        return next((value for found, value in self.headers if found.lower() == name), None)

    @property
    def marked(self) -> bool:
        """The service says that this answer is a stored one, in the words of any library."""
        return any("replay" in name.lower() and value.lower() != "false" for name, value in self.headers)

    def same_as(self, other: ProbeReply) -> bool:
        return (self.status, self.body) == (other.status, other.body)

    def __str__(self) -> str:
        if self.failure:
            return self.failure
        return f"{self.status} replayed" if self.marked else str(self.status)


def send(request: ProbeRequest, timeout_s: float) -> ProbeReply:
    """Send the request once. A failure is an answer, too."""
    parts = urlsplit(request.url)
    connection = _connection(parts, timeout_s)
    try:
        connection.putrequest(request.method, _target(parts))
        for name, value in _complete(request):
            connection.putheader(name, value.encode("latin-1"))
        connection.endheaders(request.body or None)
        answer = connection.getresponse()
        return ProbeReply(answer.status, tuple(answer.getheaders()), answer.read(ANSWER_MAX))
    except TimeoutError:
        return ProbeReply(failure=f"no answer within {timeout_s:g} s")
    except (OSError, http.client.HTTPException) as error:
        return ProbeReply(failure=f"{type(error).__name__}: {error}")
    finally:
        connection.close()


def _connection(parts: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=timeout_s)


def _target(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _complete(request: ProbeRequest) -> Headers:
    """The headers, with those that every client adds."""
    given = {name.lower() for name, _ in request.headers}
    added = {"Content-Length": str(len(request.body)), "Connection": "close", "User-Agent": "semel-try"}
    if request.body and _is_json(request.body):
        added["Content-Type"] = "application/json"
    return (*request.headers, *((name, value) for name, value in added.items() if name.lower() not in given))


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True
