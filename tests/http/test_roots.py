"""An application below a root path: links that its callers get lead back to it, and rules are those of its routes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from django.test import override_settings
from flask import Flask
from litestar import Litestar
from litestar import post as litestar_post
from quart import Quart
from serving import Deployment, Reply
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from wsgi_calls import Served, call, text

import django_site  # noqa: F401
from django_site import views
from django_site.calling import ByAsgi, ByWsgi
from semel import NotExecuted, Policy
from semel.asgi import IdempotencyMiddleware, Rule
from semel.flask import Idempotency
from semel.litestar import IdempotencyPlugin
from semel.quart import protect

WELL_KNOWN = "/.well-known/idempotency"
RULES = [Rule("POST /pay", Policy(required=True))]


def options(**more: Any) -> dict[str, Any]:
    return {
        "store": "memory://",
        "identify": lambda scope: "me",
        "secret": "a secret of the tests",
        "rules": RULES,
        **more,
    }


def leads_to(root: str, body: bytes, link: str | None) -> str:
    """The kind of a problem whose links are below `root`."""
    base, _, kind = json.loads(body)["type"].partition("#")
    assert base == f"{root}{WELL_KNOWN}"
    assert link == f'<{root}{WELL_KNOWN}>; rel="describedby"'
    return str(kind)


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    with Deployment("starlette_app", "uvicorn-root") as deployment:
        yield deployment


def below(reply: Reply) -> str:
    """What a proxy that takes the root away sends to the server when a caller follows the answer's link."""
    place = reply.header("location") or ""
    assert place.startswith(f"/api{WELL_KNOWN}/operations/")
    return place.removeprefix("/api")


def test_a_server_with_a_root_path(deployment: Deployment) -> None:
    server = deployment.server
    refused = server.post("/required", None)
    assert leads_to("/api", refused.body, refused.header("link")) == "key-missing"
    document = json.loads(server.get(WELL_KNOWN).body)
    assert document["operations"][0]["match"] == "POST /api/required"
    lines = ("Prefer: respond-async", "Caller: ann")
    accepted = server.post("/hold", "k", b"{}", *lines)
    assert accepted.status == 202
    assert below(server.post("/hold", "k", b"{}", *lines)) == below(accepted)
    assert below(server.get(below(accepted), "Caller: ann")) == below(accepted)
    deployment.let_go()
    while (done := server.get(below(accepted), "Caller: ann")).status == 202:
        pass
    assert (done.status, done.replayed, deployment.effects("k")) == (201, True, 1)
    assert server.get(below(accepted), "Caller: bob").status in (404, 405)


class Held:
    """An endpoint that takes effect, and answers when it may."""

    def __init__(self) -> None:
        self.effects = 0
        self.go = asyncio.Event()

    async def endpoint(self, request: Request) -> JSONResponse:
        self.effects += 1
        await self.go.wait()
        return JSONResponse({"effect": self.effects}, status_code=201)


def inside(held: Held) -> Any:
    """The middleware belongs to the mounted application."""
    app = Starlette(routes=[Route("/pay", held.endpoint, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, **options())
    return Starlette(routes=[Mount("/api", app=app)])


def wrapped(held: Held) -> Any:
    """What is mounted is the middleware itself."""
    app = Starlette(routes=[Route("/pay", held.endpoint, methods=["POST"])])
    return Starlette(routes=[Mount("/api", app=IdempotencyMiddleware(app, **options()))])


@pytest.mark.parametrize("build", [inside, wrapped])
def test_a_mounted_application(build: Callable[[Held], Any]) -> None:
    async def main() -> None:
        held = Held()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(build(held)), base_url="http://x") as client:
            refused = await client.post("/api/pay")
            assert leads_to("/api", refused.content, refused.headers["link"]) == "key-missing"
            headers = {"idempotency-key": "k", "prefer": "respond-async"}
            accepted = await client.post("/api/pay", headers=headers)
            place = accepted.headers["location"]
            assert (accepted.status_code, (await client.get(place)).status_code) == (202, 202)
            held.go.set()
            while (done := await client.get(place)).status_code == 202:
                await asyncio.sleep(0)
            assert (done.status_code, done.json(), held.effects) == (201, {"effect": 1}, 1)
            document = (await client.get(f"/api{WELL_KNOWN}")).json()
            assert document["operations"][0]["match"] == "POST /api/pay"
            assert (await client.get(WELL_KNOWN)).status_code == 404

    asyncio.run(main())


def quart() -> Any:
    app = Quart(__name__)

    @app.post("/pay")
    async def pay() -> str:
        raise NotExecuted("closed")

    protect(app, **options())
    return app


def litestar() -> Any:
    @litestar_post("/pay")
    async def pay() -> None:
        raise NotExecuted("closed")

    return Litestar([pay], plugins=[IdempotencyPlugin(**options())])


@pytest.mark.parametrize("build", [quart, litestar])
def test_frameworks_that_answer_for_exceptions(build: Callable[[], Any]) -> None:
    async def main() -> None:
        app = build()
        path = "/api/pay" if build is quart else "/pay"  # Litestar's routes take the path as it comes
        transport = httpx.ASGITransport(app, root_path="/api")
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            answers = [await client.post(path), await client.post(path, headers={"idempotency-key": "k"})]
            kinds = [leads_to("/api", answer.content, answer.headers["link"]) for answer in answers]
            assert kinds == ["key-missing", "not-executed"]

    asyncio.run(main())


@pytest.mark.parametrize(("script_name", "root"), [("/api", "/api"), ("/caf\xc3\xa9", "/caf%C3%A9"), ("", "")])
def test_wsgi_s_script_name(script_name: str, root: str) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow(environ: Any, start_response: Any) -> Any:
        begun.set()
        assert go.wait(10)
        return text(b"done")(environ, start_response)

    served = Served(slow, secret="a secret of the tests", rules=RULES)
    where: dict[str, Any] = {"SCRIPT_NAME": script_name, "validate": False}
    refused = served(key=None, **where)
    assert leads_to(root, refused.body, refused.get("Link")) == "key-missing"
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(served, **where)
        assert begun.wait(10)
        accepted = served(HTTP_PREFER="respond-async", **where)
        go.set()
        assert first.result(10).status == 200
    place = accepted.get("Location") or ""
    assert place.startswith(f"{root}{WELL_KNOWN}/operations/")
    done = served(place.removeprefix(root), method="GET", key=None, **where)
    assert (done.body, done.replayed, served.work.effects) == (b"done", True, 1)
    document = json.loads(served(WELL_KNOWN, method="GET", key=None, **where).body)
    assert document["problems"][0]["type"].startswith(f"{root}{WELL_KNOWN}#")


def test_flask_below_a_root() -> None:
    app = Flask(__name__)
    Idempotency(app, **options())

    @app.post("/pay")
    def pay() -> str:
        raise NotExecuted("closed")

    answers = [call(app, SCRIPT_NAME="/api", key=key, validate=False) for key in (None, "k")]
    kinds = [leads_to("/api", answer.body, answer.get("Link")) for answer in answers]
    assert kinds == ["key-missing", "not-executed"]


@pytest.mark.parametrize("way", [ByWsgi, ByAsgi])
def test_django_s_script_prefix(way: type[ByWsgi] | type[ByAsgi]) -> None:
    views.effects.clear()
    views.entered.clear()
    views.go_on.clear()
    root = "/shop" if way is ByAsgi else ""  # a WSGI server gives it beside the path
    semel = {"store": "memory://", "identify": lambda request: "me", "secret": "a secret of the tests"}
    rules = [Rule("POST /async/ok", Policy(required=True))]
    with override_settings(SEMEL=semel | {"rules": rules}, FORCE_SCRIPT_NAME="/shop"), ThreadPoolExecutor(1) as threads:
        call = way()
        refused = call(f"{root}/async/ok")
        assert leads_to("/shop", refused.body, refused["Link"]) == "key-missing"
        first = threads.submit(call, f"{root}/async/slow", idempotency_key="k")
        assert views.entered.wait(10)
        accepted = call(f"{root}/async/slow", idempotency_key="k", prefer="respond-async")
        views.go_on.set()
        assert first.result(10).status == 201
        place = accepted["Location"] or ""
        assert place.startswith(f"/shop{WELL_KNOWN}/operations/")
        done = call(root + place.removeprefix("/shop"), method="GET")
        assert (done.status, done["Idempotent-Replayed"], views.effects) == (201, "true", ["slow"])
        document = json.loads(call(f"{root}{WELL_KNOWN}", method="GET").body)
        assert document["operations"][-2] == {"match": "POST /shop/async/ok", "required": True}
        call.close()
