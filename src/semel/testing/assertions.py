"""`assert_idempotent(client, "POST", "/orders", json=…)`: is this endpoint safe to retry?

It asks as retrying callers do: one after the other, all at once, with another body, as another caller.
"""

from __future__ import annotations

import asyncio
import inspect
import json as json_module
from collections.abc import Awaitable, Callable, Mapping
from uuid import uuid4

from semel.testing.clients import asend, is_async, send, send_at_once
from semel.testing.repeats import Count, RepeatedRequest, checks

Effects = Callable[[], int]
AsyncEffects = Callable[[], "int | Awaitable[int]"]


def assert_idempotent(
    client: object,
    method: str,
    url: str,
    *,
    json: object = None,
    content: bytes | str = b"",
    headers: Mapping[str, str] | None = None,
    changed: object = None,
    effects: Effects | None = None,
    other_identity: Mapping[str, str] | None = None,
    parallel: int = 8,
    header: str = "Idempotency-Key",
    new_key: Callable[[], str] = lambda: str(uuid4()),
) -> None:
    """Fail unless repeats of this request are safe: one after the other, all at once, changed, and by another caller.

    ```python
    from fastapi import FastAPI
    from fastapi.testclient import TestClient
    from semel.fastapi import protect
    from semel.testing import assert_idempotent

    payments = []
    app = FastAPI()
    protect(app, store="memory://", identify=lambda scope: "shop")

    @app.post("/payments", status_code=201)
    def pay(amount: int) -> dict[str, int]:
        payments.append(amount)
        return {"payment": len(payments)}

    with TestClient(app) as client:
        assert_idempotent(client, "POST", "/payments?amount=10", effects=lambda: len(payments), parallel=0)
    ```

    `effects` counts what the request does (rows, mails, charges): without it a service that works twice and answers
    alike cannot be told from one that works once. `other_identity` are headers of another caller, which must not get
    the first one's answer. `changed` is a body that must be refused under the same key; by default one value of `json`
    is changed. `parallel=0` leaves out the requests at once, for a database that only one thread can use.
    """
    if is_async(client):
        raise TypeError(f"{type(client).__module__}.AsyncClient is asked with: await aassert_idempotent(client, …)")
    request = _request(method, url, json, content, headers, changed, header, new_key, other_identity)
    steps = checks(request, parallel)
    reply: object = None
    while True:
        try:
            asked = steps.send(reply)
        except StopIteration:
            return
        if isinstance(asked, Count):
            reply = None if effects is None else effects()
        else:
            one = len(asked.once) == 1
            reply = [send(client, asked.once[0])] if one else send_at_once(client, asked.once)


async def aassert_idempotent(
    client: object,
    method: str,
    url: str,
    *,
    json: object = None,
    content: bytes | str = b"",
    headers: Mapping[str, str] | None = None,
    changed: object = None,
    effects: AsyncEffects | None = None,
    other_identity: Mapping[str, str] | None = None,
    parallel: int = 8,
    header: str = "Idempotency-Key",
    new_key: Callable[[], str] = lambda: str(uuid4()),
) -> None:
    """`assert_idempotent` for `httpx.AsyncClient` and Django's `AsyncClient`: the same checks, with `await`."""
    if not is_async(client):
        raise TypeError(f"a {type(client).__name__} blocks: ask it with assert_idempotent(client, …), without await")
    request = _request(method, url, json, content, headers, changed, header, new_key, other_identity)
    steps = checks(request, parallel)
    reply: object = None
    while True:
        try:
            asked = steps.send(reply)
        except StopIteration:
            return
        if isinstance(asked, Count):
            counted = None if effects is None else effects()
            reply = await counted if inspect.isawaitable(counted) else counted
        else:
            reply = await asyncio.gather(*(asend(client, call) for call in asked.once))


def _request(
    method: str,
    url: str,
    json: object,
    content: bytes | str,
    headers: Mapping[str, str] | None,
    changed: object,
    header: str,
    new_key: Callable[[], str],
    other_identity: Mapping[str, str] | None,
) -> RepeatedRequest:
    if json is not None and content:
        raise TypeError("give json= or content=, not both")
    given = {name.lower(): value for name, value in (headers or {}).items()}
    body = content.encode() if isinstance(content, str) else content
    if json is not None:
        given.setdefault("content-type", "application/json")
        body = json_module.dumps(json).encode()
    if changed is None:
        other = json_module.dumps(_other(json)).encode() if json is not None else body + b" changed"
    elif isinstance(changed, bytes | str):
        other = changed.encode() if isinstance(changed, str) else changed
    else:
        other = json_module.dumps(changed).encode()
    identity = None if other_identity is None else {name.lower(): value for name, value in other_identity.items()}
    return RepeatedRequest(method.upper(), url, given, body, other, header, new_key, identity)


def _other(value: object) -> object:
    """The same JSON with one value changed: an existing one, because a fingerprint may look at some members only."""
    match value:
        case bool() | None:
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value} changed"
        case dict() if value:
            first = next(iter(value))
            return {**value, first: _other(value[first])}
        case list() if value:
            return [_other(value[0]), *value[1:]]
        case dict():
            return {"changed": True}
        case _:
            return [True]
