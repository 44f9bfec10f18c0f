"""Quotas bound new keys per tenant; known keys are always answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest
from asking import post
from django.test import override_settings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from wsgi_calls import call

import django_site  # noqa: F401
from django_site import views
from django_site.calling import ByAsgi, ByWsgi
from semel import Policy, StoreMisconfigured, wsgi
from semel.asgi import IdempotencyMiddleware
from semel.http.quota import AsyncQuotas, Charged, Quotas


def served(policy: Policy, effects: list[str], storage: str = "memory://") -> Any:
    async def pay(request: Request) -> JSONResponse:
        effects.append(request.headers.get("idempotency-key", ""))
        return JSONResponse({"n": len(effects)}, status_code=int(request.headers.get("answer", "201")))

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])

    def who(scope: Any) -> str:
        tenant: bytes = dict(scope["headers"]).get(b"tenant", b"")
        return tenant.decode()

    return IdempotencyMiddleware(app, store="memory://", policy=policy, identify=who, quota_storage=storage)


def test_new_keys_over_the_quota_are_refused_and_known_ones_replayed() -> None:
    async def main() -> None:
        effects: list[str] = []
        app = served(Policy(quota="2/hour"), effects)
        assert [(await post(app, "/pay", key, tenant="a")).status_code for key in ("1", "2")] == [201, 201]
        refused = await post(app, "/pay", "3", tenant="a")
        assert refused.status_code == 429
        assert refused.json()["type"].endswith("#too-many-keys")
        assert 1 <= int(refused.headers["retry-after"]) <= 3600
        assert (await post(app, "/pay", "1", tenant="a")).headers["idempotent-replayed"] == "true"
        assert (await post(app, "/pay", "3", tenant="b")).status_code == 201, "another tenant has its own quota"
        assert (await post(app, "/pay", tenant="a")).status_code == 201, "a request without a key needs none"
        assert effects == ["1", "2", "3", ""]

    asyncio.run(main())


def test_a_refused_key_was_never_stored() -> None:
    async def main() -> None:
        effects: list[str] = []
        app = served(Policy(quota="1/hour"), effects)
        await post(app, "/pay", "1")
        assert [(await post(app, "/pay", "2")).status_code for _ in range(3)] == [429, 429, 429]
        assert (await app.store.counts()).succeeded == 1

    asyncio.run(main())


@pytest.mark.parametrize("tenant", ["", "a", "ü"])
def test_sync_quotas_count_the_same_way(tenant: str) -> None:
    quotas, policy = Quotas(), Policy(quota="1/minute")
    charged = quotas.charge(policy, tenant)
    assert isinstance(charged, Charged)
    wait_s = quotas.charge(policy, tenant)
    assert isinstance(wait_s, int)
    assert 1 <= wait_s <= 60
    quotas.give_back(charged)
    quotas.give_back(charged)
    assert isinstance(quotas.charge(policy, tenant), Charged)
    assert isinstance(quotas.charge(policy, tenant), int), "it was given back once"


GONE = "redis://127.0.0.1:1/0"
"""Nobody listens on that port."""
Asked = Callable[[str], tuple[int, dict[str, str], bytes]]
Build = Callable[[Policy, str, list[str]], Asked]


def through_asgi(policy: Policy, storage: str, effects: list[str], tenant: str = "") -> Asked:
    app = served(policy, effects, storage)

    def ask(key: str) -> tuple[int, dict[str, str], bytes]:
        answer = asyncio.run(post(app, "/pay", key, tenant=tenant))
        return answer.status_code, {name.lower(): value for name, value in answer.headers.items()}, answer.content

    return ask


def through_wsgi(policy: Policy, storage: str, effects: list[str]) -> Asked:
    def pay(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        effects.append(environ["HTTP_IDEMPOTENCY_KEY"])
        start_response("201 Created", [("Content-Type", "text/plain")])
        return [b"paid"]

    def who(environ: WSGIEnvironment) -> str:
        return "me"

    app = wsgi.IdempotencyMiddleware(pay, store="memory://", policy=policy, identify=who, quota_storage=storage)

    def ask(key: str) -> tuple[int, dict[str, str], bytes]:
        answer = call(app, "/pay", key=key)
        return answer.status, {name.lower(): value for name, value in answer.headers}, answer.body

    return ask


def through_django(policy: Policy, storage: str, effects: list[str], way: type[ByWsgi] | type[ByAsgi]) -> Asked:
    semel = {"store": "memory://", "policy": policy, "identify": lambda request: "me", "quota_storage": storage}

    def ask(key: str) -> tuple[int, dict[str, str], bytes]:
        with override_settings(SEMEL=semel):
            asked = way()
            answer = asked("/sync/ok", idempotency_key=key)
            effects[:] = views.effects
            asked.close()
        return answer.status, {name.lower(): value for name, value in answer.headers}, answer.body

    views.effects.clear()
    return ask


FRONTS = [through_asgi, through_wsgi, partial(through_django, way=ByWsgi), partial(through_django, way=ByAsgi)]
NAMES = ["asgi", "wsgi", "django-wsgi", "django-asgi"]


@pytest.mark.parametrize("build", FRONTS, ids=NAMES)
def test_a_counter_that_is_gone_is_a_store_that_cannot_decide(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    effects: list[str] = []
    status, headers, body = build(Policy(quota="2/hour"), GONE, effects)("a")
    assert (status, json.loads(body)["type"].partition("#")[2], effects) == (503, "store-unavailable", [])
    assert headers["retry-after"] == "1"
    assert "the quota's storage failed" in caplog.text, "the log says why"


@pytest.mark.parametrize("build", FRONTS, ids=NAMES)
def test_who_fails_open_goes_on_without_a_quota(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    """The charge fails, too, when the key is granted: that is only logged."""
    effects: list[str] = []
    ask = build(Policy(quota="2/hour", on_store_error="open"), GONE, effects)
    status, headers, _ = ask("a")
    assert (status, len(effects), headers.get("idempotency-stored")) == (201, 1, None), "it is protected all the same"
    assert "could not be counted" in caplog.text


ELSEWHERE = ["postgresql", "mariadb", "sqlite", "dynamodb", "memcached", "mongodb", "reids"]


@pytest.mark.parametrize("engine", ELSEWHERE)
@pytest.mark.parametrize("quotas", [Quotas, AsyncQuotas])
def test_a_storage_that_cannot_count_is_named_with_the_way_out(
    quotas: type[Quotas] | type[AsyncQuotas], engine: str
) -> None:
    """Also one that the library knows: what it counted there could not be given back."""
    with pytest.raises(StoreMisconfigured, match=f"nothing counts quotas in {engine}://…") as told:
        _ = quotas(f"{engine}://me:hunter2@host/x").limiter
    assert "give redis://…" in str(told.value)
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize("build", FRONTS, ids=NAMES)
def test_a_front_with_such_a_storage_does_not_start(build: Build) -> None:
    effects: list[str] = []
    with pytest.raises(StoreMisconfigured, match="nothing counts quotas in postgresql://…"):
        build(Policy(quota="2/hour"), "postgresql://host/x", effects)("a")
    assert effects == []


@pytest.mark.parametrize(("scheme", "quota"), [("redis", "2/hour"), ("valkey", "2/day")])
def test_redis_counts_for_all_processes(redis_url: str, scheme: str, quota: str) -> None:
    """Two middlewares, one of each kind, as in two processes. A Valkey speaks as Redis does."""
    effects: list[str] = []
    policy = Policy(quota=quota)
    redis_url = redis_url.replace("redis", scheme, 1)
    first, other = through_asgi(policy, redis_url, effects, "me"), through_wsgi(policy, redis_url, effects)
    assert [first("a")[0], other("b")[0], first("c")[0], other("d")[0]] == [201, 201, 429, 429]
    assert effects == ["a", "b"]
