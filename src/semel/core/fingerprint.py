"""The fingerprint: a versioned digest of the parts of a request that make it *this* request.

Parts are framed by their lengths before they are hashed, so that no part can imitate the end of one and the start of
another. With a secret the digest is keyed (HMAC), and a stored fingerprint reveals nothing about a guessable body.
"""

from __future__ import annotations

import hashlib
import hmac
from binascii import b2a_base64
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from struct import Struct as Packing
from struct import pack
from typing import Literal

from msgspec import Struct

VERSION = "1"
FUNCTION = "f"
URL_SAFE = bytes.maketrans(b"+/", b"-_")
FIVE = Packing(">6Q").pack
"""The frame of five parts: their number, and the length of each."""

Body = Literal["raw", "json"]


class RequestParts(Struct, frozen=True, gc=False):
    """A request as callables for `fingerprint` and `scope` see it.

    Header names are lower case, order and repeats are kept.
    """

    method: str
    path: str
    query: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Which parts count. `include` and `exclude` are JSON pointers into a body that is compared as JSON."""

    body: Body | None = "raw"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    query: bool = True

    def __post_init__(self) -> None:
        for name in ("include", "exclude", "headers"):
            given: Iterable[str] = getattr(self, name)
            if isinstance(given, str):
                raise TypeError(f"Fingerprint.{name} must be several texts, not one: write ({given!r},)")
            object.__setattr__(self, name, tuple(given))
        if self.body not in ("raw", "json", None):
            raise ValueError(f"Fingerprint.body must be 'raw', 'json' or None, not {self.body!r}")
        if (self.include or self.exclude) and self.body != "json":
            raise ValueError("Fingerprint.include and exclude choose JSON members: they need body='json'")
        for pointer in (*self.include, *self.exclude):
            if pointer and not pointer.startswith("/"):
                raise ValueError(f"{pointer!r} is not a JSON pointer: it must be empty or start with '/'")


Canonicalise = Callable[[bytes, Fingerprint], "bytes | None"]
"""RFC 8785 form of a JSON body with the chosen members, or None when there is no exact one."""


def fingerprint(
    request: RequestParts, spec: Fingerprint, *, canonicalise: Canonicalise, secret: bytes | None = None
) -> str:
    """Digest the parts of `request` that `spec` chooses."""
    parts = [request.method.encode(), request.path.encode(), request.query.encode() if spec.query else b""]
    for wanted in spec.headers:
        name = wanted.lower().encode()
        values = [value for header, value in request.headers if header.lower() == name]
        parts += [name, len(values).to_bytes(4, "big"), *values]
    if spec.body is not None:
        canonical = canonicalise(request.body, spec) if spec.body == "json" else None
        # A body with no exact canonical form counts as its bytes, and the tag keeps it apart from every canonical one.
        parts += [b"raw", request.body] if canonical is None else [b"json", canonical]
    return digest(parts, secret=secret)


def raw(request: RequestParts, secret: bytes | None = None) -> str:
    """The digest of `Fingerprint()`, which nearly all requests get: the same as `digest` for exactly these parts."""
    method, path, query, body = request.method.encode(), request.path.encode(), request.query.encode(), request.body
    framed = FIVE(5, len(method), len(path), len(query), 3, len(body)) + method + path + query + b"raw" + body
    hashed = hmac.digest(secret, framed, hashlib.sha256) if secret else hashlib.sha256(framed).digest()
    return f"{VERSION}.{b2a_base64(hashed, newline=False).translate(URL_SAFE, b'=').decode()}"


def of_function(fingerprint: str) -> bool:
    """Whether the key belongs to a function, a block or a flow, so that its result is a value and no HTTP answer."""
    return fingerprint.startswith(f"{FUNCTION}{VERSION}.")


def of_request(fingerprint: str) -> bool:
    """Whether the key belongs to an HTTP request."""
    return fingerprint.startswith(f"{VERSION}.")


def function_digest(parts: Iterable[bytes]) -> str:
    """The digest of the parts that identify a call, marked as that of a function."""
    return FUNCTION + digest(parts)


def digest(parts: Iterable[bytes], *, secret: bytes | None = None) -> str:
    """`version.digest` over length-framed parts, keyed when a secret is given."""
    parts = tuple(parts)
    framed = b"".join((pack(f">{len(parts) + 1}Q", len(parts), *map(len, parts)), *parts))
    hashed = hmac.digest(secret, framed, hashlib.sha256) if secret else hashlib.sha256(framed).digest()
    return f"{VERSION}.{b2a_base64(hashed, newline=False).translate(URL_SAFE, b'=').decode()}"
