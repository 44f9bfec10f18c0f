"""Virtual hosts: where the policy says so, keys of different hosts never meet, whatever serves them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from django.test import override_settings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from wsgi_calls import Served, text

import django_site  # noqa: F401
from django_site import views
from django_site.calling import ByAsgi, ByWsgi
from semel import Policy
from semel.asgi import IdempotencyMiddleware

Counted = Callable[[Policy, list[str]], int]
"""Sends one keyed request to each of these hosts, and counts the effects."""


def asgi(policy: Policy, hosts: list[str]) -> int:
    effects: list[str] = []

    async def pay(request: Request) -> PlainTextResponse:
        effects.append(request.headers["host"])
        return PlainTextResponse(request.headers["host"], status_code=201)

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    protected = IdempotencyMiddleware(app, store="memory://", policy=policy, identify=lambda scope: "me")

    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(protected), base_url="http://x") as client:
            for host in hosts:
                answer = await client.post("/pay", headers={"host": host, "idempotency-key": "k"})
                assert answer.status_code == 201

    asyncio.run(main())
    return len(effects)


def wsgi(policy: Policy, hosts: list[str]) -> int:
    served = Served(text(b"done"), policy=policy)
    assert all(served(HTTP_HOST=host).status == 200 for host in hosts)
    return served.work.effects


def django(way: type[ByWsgi] | type[ByAsgi]) -> Counted:
    def count(policy: Policy, hosts: list[str]) -> int:
        views.effects.clear()
        semel = {"store": "memory://", "identify": lambda request: "me", "policy": policy}
        with override_settings(SEMEL=semel, ALLOWED_HOSTS=["*"]):
            call = way()
            assert all(call("/async/ok", idempotency_key="k", host=host).status == 201 for host in hosts)
            call.close()
        return len(views.effects)

    return count


FRONTS: dict[str, Any] = {"asgi": asgi, "wsgi": wsgi, "django-wsgi": django(ByWsgi), "django-asgi": django(ByAsgi)}


@pytest.mark.parametrize("front", FRONTS)
def test_hosts_are_apart_by_choice(front: str) -> None:
    hosts = ["acme.example", "beta.example", "ACME.example:443", "beta.example."]
    assert FRONTS[front](Policy(per_host=True), hosts) == 2
    assert FRONTS[front](Policy(), hosts) == 1, "by default one service has many names"
