"""Requests and answers of the demo's service."""

from __future__ import annotations

import re
import uuid
from urllib.parse import parse_qs

import msgspec

from semel.asgi.types import Receive, Scope
from semel.core.http import Response

BODY_MAX = 65_536
ACCOUNT = re.compile(r"[A-Za-z0-9-]{1,40}")
GUEST = "guest"
PROBLEM = b"application/problem+json"


def header(scope: Scope, wanted: bytes) -> str:
    """The value of a request header, empty when it is not there."""
    return next((value.decode("latin-1").strip() for name, value in scope["headers"] if name == wanted), "")


def account_of(scope: Scope) -> str | None:
    """The account that pays: the header `Account`, or `account` of the query where a browser cannot send headers.

    None when it cannot be an account.
    """
    asked = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("account", [""])[0]
    account = header(scope, b"account") or asked or GUEST
    return account if ACCOUNT.fullmatch(account) else None


def is_from_another_site(scope: Scope) -> bool:
    """Whether a page of another site made a browser send this. Programs that are no browsers send no such header.

    `Sec-Fetch-Site` is the browser's own word. Older browsers send `Origin`, which has to be where the request went to.
    """
    site, origin = header(scope, b"sec-fetch-site"), header(scope, b"origin")
    if site:
        return site not in ("same-origin", "none")
    return bool(origin) and origin.partition("://")[2].lower() != header(scope, b"host").lower()


async def read_body(receive: Receive) -> bytes | Response | None:
    """The body, the refusal of one that is too large, or None when the client left."""
    chunks: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message.get("body", b""))
        if sum(map(len, chunks)) > BODY_MAX:
            return refusal(413, "The request body is too large", f"The limit is {BODY_MAX} bytes.")
        if not message.get("more_body", False):
            return b"".join(chunks)


def answer(status: int, value: object, content_type: bytes = b"application/json") -> Response:
    body = msgspec.json.encode(value) + b"\n"  # for people who read it in a terminal
    headers = (
        (b"content-type", content_type),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    )
    return Response(status, headers, body)


def refusal(status: int, title: str, detail: str) -> Response:
    """A problem of the demo's own, with the members that semel's problems have."""
    document = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return answer(status, document | {"instance": uuid.uuid4().urn, "retryable": False}, PROBLEM)
