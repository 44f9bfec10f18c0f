"""A keyed request up to the decision: it is read and claimed. Then it gets a replay or a problem, or the work runs."""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from semel.asgi.body import KEPT, unread
from semel.asgi.execution import AsgiExecution
from semel.asgi.handlers import answer_for
from semel.asgi.transaction import TransactionExecution
from semel.asgi.types import Message, Receive, Scope, Send, send_response
from semel.core.fingerprint import RequestParts
from semel.core.http import Headers
from semel.core.policy import Policy
from semel.http.admission import Answered, Keyed
from semel.http.answers import Answers
from semel.http.callers import ASGI_ORDER, explain
from semel.http.gate import Admitted, Gate, Refused, too_large_body

if TYPE_CHECKING:
    from semel.asgi.middleware import IdempotencyMiddleware, Identify


async def serve(
    front: IdempotencyMiddleware,
    admitted: Admitted,
    answers: Answers,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Answer one keyed request.

    If the caller leaves during the claim, the claim is released.
    """
    gate, policy, headers = front.gate, admitted.policy, tuple(scope["headers"])
    if KEPT in scope:
        receive = unread(scope, receive)
    try:
        body = await read_body(policy, headers, receive)
    except Exception as error:  # nothing was claimed
        await answer_for(front.app, scope, receive, send, error)
        return
    if body is None:
        return
    if isinstance(body, Refused):
        await send_response(send, gate.refuse(body, answers, scope["method"], scope["path"], headers))
        return
    tenant = await caller_of(scope, gate, front.identify)
    path, raw = scope["path"], scope.get("raw_path", b"").decode("latin-1")
    if raw != path or "%" in raw or "?" in raw:  # hardly any request
        raw = raw_path(path, raw)
    query = scope.get("query_string", b"").decode("latin-1")
    # Do not keep the parts in a variable: objects alive during the claim slow down garbage collection.
    claim = gate.claim(admitted, tenant, RequestParts(scope["method"].upper(), raw, query, headers, body))
    if front.transactions is not None:
        transaction = front.transactions.request()
        keyed = Keyed(front.host, gate, policy, answers, claim, headers, transaction=transaction)
        await TransactionExecution(front, keyed, transaction, body, scope, receive, send).outlive_caller()
        return
    keyed = Keyed(front.host, gate, policy, answers, claim, headers)
    begun = await front.host.begin(keyed)
    if isinstance(begun, Answered):
        await send_response(send, begun.response)
    else:
        await AsgiExecution(front, keyed, body, scope, receive, send).outlive_caller(begun)


async def read_body(policy: Policy, headers: Headers, receive: Receive) -> bytes | Refused | None:
    """The whole body, a problem when it is too large, or None when the client left meanwhile."""
    length, size_max = dict(headers).get(b"content-length", b""), policy.body_max
    # Cut the text first: Python refuses to read thousands of digits.
    if not length.isdigit() or int(length.lstrip(b"0")[:18] or 0) <= size_max:
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body", False):  # nearly all bodies
            whole: bytes | None = bytes(message.get("body", b""))
        else:
            whole = await _read_parts(size_max, message, receive)
        if whole is None or len(whole) <= size_max:
            return whole
    return too_large_body(size_max, policy)


async def _read_parts(size_max: int, message: Message, receive: Receive) -> bytes | None:
    """The body that begins with `message`, read until it is too large; None when the client left."""
    body = bytearray()  # a list of tiny parts would need thirty times their size
    while message["type"] != "http.disconnect":
        body += message.get("body", b"")
        if len(body) > size_max or not message.get("more_body", False):
            return bytes(body)
        message = await receive()
    return None


async def caller_of(scope: Scope, gate: Gate, identify: Identify | None) -> str | None:
    """The caller's name: from `identify`, which may be async, else from the request itself."""
    if identify is None:
        return _find_caller(scope, gate)
    try:
        caller = identify(scope)
        return await caller if not isinstance(caller, str) and inspect.isawaitable(caller) else caller
    except Exception as error:
        explain(error, scope, ASGI_ORDER)
        raise


def _find_caller(scope: Scope, gate: Gate) -> str | None:
    """The caller that the request shows: the authenticated user, else the holder of its credentials."""
    user = scope.get("user")
    known = user is not None and getattr(user, "is_authenticated", True)
    authorization = next((value for name, value in scope["headers"] if name == b"authorization"), None)
    return gate.caller(_name_of(user) if known else None, authorization)


def _name_of(user: object) -> str:
    """A name that tells this user from every other one, in every request."""
    if isinstance(user, str):
        return user
    for attribute in ("identity", "id", "username"):  # not display_name: two people may have the same
        with contextlib.suppress(NotImplementedError):  # Starlette's users raise it for a missing attribute
            if name := getattr(user, attribute, None):
                return str(name)
    raise TypeError(
        f"scope['user'] is a {type(user).__name__} without identity, id or username, so callers "
        "cannot be told apart: pass identify= to IdempotencyMiddleware, a function from the scope to the caller's name"
    )


def raw_path(path: str, raw: str) -> str:
    """The path as received, still percent-encoded, so that two different paths stay different.

    If a middleware in front of ours rewrote the path, the new one counts: the old one does not name what will run.
    """
    raw = raw.partition("?")[0]
    return raw if unquote(raw) == path else quote(path)
