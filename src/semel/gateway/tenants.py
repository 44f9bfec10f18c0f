"""The tenant of a request: a header or a claim that a proxy in front of the gateway has verified."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable

import msgspec

from semel.asgi.types import Scope
from semel.gateway.headers import find_values
from semel.gateway.rules import TenantTable
from semel.http.gate import Gate

Identify = Callable[[Scope], "str | None"]


def identify_by(table: TenantTable | None, gate: Gate) -> Identify:
    """A function from a request to its tenant.

    Where the header or the claim is missing, and where none was chosen, callers are told apart by their credentials.
    """
    header = None if table is None or table.header is None else table.header.lower().encode()
    claim = None if table is None else table.jwt_claim

    def identify(scope: Scope) -> str | None:
        if header is not None and (found := find_values(scope["headers"], header)):
            return b", ".join(found).decode("utf-8", "surrogateescape")
        credentials = find_values(scope["headers"], b"authorization")
        if claim is not None and len(credentials) == 1 and (value := read_claim(credentials[0], claim)) is not None:
            return value
        return gate.bearer(b", ".join(credentials)) if credentials else None

    return identify


def read_claim(authorization: bytes, claim: str) -> str | None:
    """A claim of a bearer token. The signature is NOT verified: a caller that can send a forged token to the gateway
    can have any claim. So a proxy in front of the gateway must verify the token.
    """
    scheme, _, token = authorization.partition(b" ")
    parts = token.strip().split(b".")
    if scheme.lower() != b"bearer" or len(parts) != 3:
        return None
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + b"=" * (-len(parts[1]) % 4)))
    except (binascii.Error, msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # the last: nested without end
        return None
    value = claims.get(claim) if isinstance(claims, dict) else None
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None
