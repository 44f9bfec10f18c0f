"""Which headers a gateway passes on, in both directions, and what it says about itself (RFC 9110, section 7.6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from email.utils import formatdate

from semel.asgi.types import Scope
from semel.core.http import NAME
from semel.core.policy_values import HOP_BY_HOP

Pair = tuple[bytes, bytes]

VIA = b"1.1 semel"
HOPS = frozenset(name.encode() for name in HOP_BY_HOP) | {b"http2-settings"}
# Expect: the gateway has asked for the body itself. It writes the other headers anew.
REPLACED = frozenset((b"expect", b"host", b"content-length", b"via", b"forwarded", b"x-forwarded-for"))
REWRITTEN = REPLACED | {b"x-forwarded-proto", b"x-forwarded-host"}
HTTP2 = b"h2c"
OFFER = frozenset((b"upgrade", b"http2-settings"))
"""What belongs to the offer of HTTP/2: headers, and the names of them in `Connection`."""
BODILESS = frozenset((204, 304))


def drop_hop_by_hop(headers: Iterable[Pair]) -> list[Pair]:
    """Without the headers that belong to one connection: the known ones, and those that `Connection` names."""
    headers = list(headers)
    if HOPS.isdisjoint(map(bytes.lower, map(NAME, headers))):
        return headers  # the usual case
    hops = HOPS
    for name, value in headers:
        if name.lower() == b"connection":
            hops = hops | set(_split_tokens(value))
    return [(name, value) for name, value in headers if name.lower() not in hops]


def offers_http2_alone(method: bytes, headers: Iterable[Pair]) -> bool:
    """Whether the request can go on as HTTP/1: it offers h2c, as Java's client does, and nothing else."""
    offered = [token for value in find_values(headers, b"upgrade") for token in _split_tokens(value)]
    return method != b"CONNECT" and set(offered) == {HTTP2}


def drop_offer(headers: Iterable[Pair]) -> Iterator[Pair]:
    """The headers of a request as if it had not offered another protocol."""
    for name, value in headers:
        if name == b"connection":
            if kept := [token for token in _split_tokens(value) if token not in OFFER]:
                yield name, b", ".join(kept)
        elif name not in OFFER:
            yield name, value


def _split_tokens(value: bytes) -> list[bytes]:
    return [token.strip().lower() for token in value.split(b",")]


def rewrite_for_upstream(scope: Scope, *, host: bytes, dropped: frozenset[bytes]) -> list[Pair]:
    """What the upstream gets, without a key of ours: order and repeats are kept.

    A name with an underscore is dropped, as other proxies do. For CGI, WSGI and PHP `X_Account` is `X-Account`, so it
    would be a second spelling of a header that a proxy in front of the gateway has checked.
    """
    kept, ours = [(b"host", host)], dict[bytes, list[bytes]]()
    for name, value in drop_hop_by_hop(scope["headers"]):
        if name in REWRITTEN:
            ours.setdefault(name, []).append(value)
        if name not in REPLACED and name not in dropped and b"_" not in name:
            kept.append((name, value))
    if b"content-length" in ours:
        kept.append((b"content-length", b"%d" % int(ours[b"content-length"][0])))
    kept.extend(_describe_hop(scope, ours))
    return kept


def _describe_hop(scope: Scope, said: Mapping[bytes, Sequence[bytes]]) -> Iterator[Pair]:
    """`Via`, `Forwarded` and its older relatives, each after the values of proxies in front of the gateway."""
    client = scope.get("client")
    address = str(client[0]).encode("latin-1") if client else b"unknown"
    named = b'"[' + address + b']"' if b":" in address else address
    asked = said.get(b"host", (b"",))[0]
    protocol = str(scope.get("scheme", "http")).encode()
    forwarded = b"for=" + named + b";proto=" + protocol
    if asked and b'"' not in asked and b"\\" not in asked:
        forwarded += b';host="' + asked + b'"'
    version = str(scope.get("http_version", "1.1")).encode()
    yield b"via", b", ".join((*said.get(b"via", ()), version + b" semel"))
    yield b"forwarded", b", ".join((*said.get(b"forwarded", ()), forwarded))
    yield b"x-forwarded-for", b", ".join((*said.get(b"x-forwarded-for", ()), address))
    # Only the first proxy knows these: if one is in front of the gateway, its values stay.
    if b"x-forwarded-proto" not in said:
        yield b"x-forwarded-proto", protocol
    if asked and b"x-forwarded-host" not in said:
        yield b"x-forwarded-host", asked


def rewrite_for_caller(status: int, method: str, headers: Iterable[Pair]) -> list[Pair]:
    """What the caller gets. A status without a body has no length either: servers count what they send."""
    kept = drop_hop_by_hop(headers)
    if status in BODILESS and method != "HEAD":
        kept = [(name, value) for name, value in kept if name.lower() != b"content-length"]
    return [*kept, (b"via", VIA)]


def add_date(headers: Sequence[Pair]) -> list[Pair]:
    """Every answer is dated; the upstream's own date stands."""
    if b"date" in map(bytes.lower, map(NAME, headers)):
        return list(headers)
    return [*headers, (b"date", formatdate(usegmt=True).encode())]


def find_values(headers: Iterable[Pair], wanted: bytes) -> list[bytes]:
    return [value for name, value in headers if name == wanted]
