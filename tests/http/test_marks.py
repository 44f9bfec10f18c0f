"""Marks on endpoints are found through each framework's own router, before the work runs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from asking import post
from fastapi import APIRouter, FastAPI
from litestar import Litestar
from litestar import post as litestar_post
from quart import Quart
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route, WebSocketRoute

from semel import NotExecuted, Policy, StoreMisconfigured
from semel.asgi import IdempotencyMiddleware, Rule, idempotency_exempt, idempotent
from semel.http import marks
from semel.litestar import IdempotencyPlugin
from semel.quart import protect

RULES = [Rule("POST /exempt/"), Rule("POST /plain", policy=Policy())]
RULED = ["POST /exempt/", "POST /plain", "everything else"]


def options(**more: Any) -> dict[str, Any]:
    return {"store": "memory://", "identify": lambda scope: "me", "rules": RULES, **more}


class Effects:
    def __init__(self) -> None:
        self.count = 0

    def happen(self) -> dict[str, int]:
        self.count += 1
        return {"effect": self.count}


def starlette(effects: Effects) -> Any:
    @idempotent()
    async def required(request: Request) -> JSONResponse:
        return JSONResponse(effects.happen())

    @idempotency_exempt
    async def free(request: Request) -> JSONResponse:
        return JSONResponse(effects.happen())

    async def plain(request: Request) -> JSONResponse:
        return JSONResponse(effects.happen())

    routes = [
        Route("/plain", plain, methods=["POST"]),
        Mount("/v1", routes=[Route("/required/{id}", required, methods=["POST"])]),
    ]
    app = Starlette(routes=[*routes, Route("/free", free, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, **options())
    return app


def fastapi(effects: Effects) -> Any:
    router = APIRouter(prefix="/v1")

    @router.post("/required/{id}")
    @idempotent()
    async def required(id: str) -> dict[str, int]:
        return effects.happen()

    app = FastAPI()

    @app.post("/free")
    @idempotency_exempt
    def free() -> dict[str, int]:
        return effects.happen()

    @app.post("/plain")
    def plain() -> dict[str, int]:
        return effects.happen()

    app.include_router(router)
    return IdempotencyMiddleware(app, **options())


def litestar(effects: Effects) -> Any:
    @litestar_post("/v1/required/{id:str}", opt={"semel": Policy(required=True)}, status_code=200)
    async def required(id: str) -> dict[str, int]:
        return effects.happen()

    @litestar_post("/free", opt={"semel": None}, status_code=200)
    async def free() -> dict[str, int]:
        return effects.happen()

    @litestar_post("/plain", status_code=200)
    async def plain() -> dict[str, int]:
        return effects.happen()

    return Litestar([required, free, plain], plugins=[IdempotencyPlugin(**options())])


def quart(effects: Effects) -> Any:
    app = Quart(__name__)

    @app.post("/v1/required/<id>")
    @idempotent()
    async def required(id: str) -> dict[str, int]:
        return effects.happen()

    @app.post("/free")
    @idempotency_exempt
    async def free() -> dict[str, int]:
        return effects.happen()

    @app.post("/plain")
    async def plain() -> dict[str, int]:
        return effects.happen()

    protect(app, **options())
    return app


@pytest.mark.parametrize("build", [starlette, fastapi, litestar, quart])
def test_marks_are_found(build: Callable[[Effects], Any]) -> None:
    async def main() -> None:
        effects = Effects()
        app = build(effects)
        missing = await post(app, "/v1/required/7")
        assert missing.status_code == 400
        assert missing.json()["type"].endswith("#key-missing")
        assert effects.count == 0
        first, repeat = await post(app, "/v1/required/7", "a"), await post(app, "/v1/required/7", "a")
        assert (first.status_code, first.content) == (repeat.status_code, repeat.content) == (200, first.content)
        assert first.json() == {"effect": 1}
        assert repeat.headers["idempotent-replayed"] == "true"
        assert effects.count == 1
        await post(app, "/free", "b")
        await post(app, "/free", "b")
        assert effects.count == 3, "exempt: each request has its effect"
        await post(app, "/plain")
        await post(app, "/plain", "c")
        await post(app, "/plain", "c")
        assert effects.count == 5, "not marked: the middleware's own rules"

    asyncio.run(main())


@pytest.mark.parametrize("build", [starlette, fastapi, litestar, quart])
def test_without_a_mark_it_is_the_same_to_ask_the_router_and_not_to(
    build: Callable[[Effects], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answers(app: Any) -> list[tuple[int, bytes]]:
        asked = [await post(app, "/plain", *key) for key in ((), ("a",), ("a",), ("a" * 300,))]
        return [(answer.status_code, answer.content[:60]) for answer in asked]

    found = []
    for used in (True, False):
        app = build(Effects())
        monkeypatch.setattr(marks, "used", used)  # after the decorators: the path of this test has no mark
        found.append(asyncio.run(answers(app)))
    assert found[0] == found[1]


WELL_KNOWN = "/.well-known/idempotency"


def operations_of(app: Any) -> dict[str, Any]:
    """What the published document says about operations, by what they match."""

    async def main() -> Any:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
            return (await client.get(WELL_KNOWN)).json()["operations"]

    return {operation.pop("match"): operation for operation in asyncio.run(main())}


@pytest.mark.parametrize("build", [starlette, fastapi, litestar, quart])
def test_marks_are_published(build: Callable[[Effects], Any]) -> None:
    operations = operations_of(build(Effects()))
    assert (set(list(operations)[:2]), list(operations)[2:]) == ({"POST /v1/required/{id}", "POST /free"}, RULED)
    assert operations["POST /v1/required/{id}"] == {"required": True}
    assert operations["POST /free"] == {"exempt": True}


def test_what_a_schema_hides_is_not_published_and_every_place_of_a_mark_is() -> None:
    @idempotency_exempt
    async def hidden(request: Request) -> None: ...

    async def socket(websocket: object) -> None: ...

    several = ["GET", "POST", "PUT", "DELETE"]

    fast = FastAPI()
    fast.add_api_route("/hidden", idempotent()(lambda: None), methods=["POST"], include_in_schema=False)
    routes = [Route("/secret", hidden, methods=["POST"], include_in_schema=False), Mount("/fast", app=fast)]
    routes += [Route("/class", Endpoint), Route("/any", idempotent(Policy(quota="1/day"))(socket), methods=several)]
    app = Starlette(routes=[*routes, WebSocketRoute("/ws", socket)])
    app.add_middleware(IdempotencyMiddleware, **options(rules=()))
    assert operations_of(app) == {
        "POST /class": {"required": True},
        "POST,PUT /any": {"required": False, "quota": "1/day"},
        "everything else": {"methods": ["PATCH", "POST", "PUT"], "required": False},
    }


def test_litestar_s_own_marks_need_no_decorator() -> None:
    subprocess.run([sys.executable, "-m", "apps.litestar_marked"], cwd=Path(__file__).parent, check=True)


def test_a_quota_counts_for_all_of_litestar_s_routes() -> None:
    @litestar_post(["/one", "/two"], status_code=200)
    async def pay() -> None: ...

    @litestar_post("/three", status_code=200)
    async def pay_otherwise() -> None: ...

    async def main() -> None:
        plugin = IdempotencyPlugin(**options(rules=(), policy=Policy(quota="2/hour")))
        app = Litestar([pay, pay_otherwise], plugins=[plugin])
        assert [(await post(app, path, "a")).status_code for path in ("/one", "/two", "/three")] == [200, 200, 429]

    asyncio.run(main())


def test_waiters_are_bounded_for_all_of_litestar_s_routes_together() -> None:
    async def main() -> None:
        begun, go = asyncio.Semaphore(0), asyncio.Event()

        @litestar_post(["/one", "/two"], status_code=200)
        async def pay() -> None:
            begun.release()
            await go.wait()

        plugin = IdempotencyPlugin(**options(rules=(), policy=Policy(in_flight="wait"), waiters_max=1))
        app = Litestar([pay], plugins=[plugin])
        first: list[asyncio.Task[httpx.Response]] = []
        for path in ("/one", "/two"):
            first.append(asyncio.create_task(post(app, path, "a")))
            await begun.acquire()
        repeats = [asyncio.create_task(post(app, path, "a")) for path in ("/one", "/two") * 2]
        while sum(each.done() for each in repeats) < 3:
            await asyncio.sleep(0.005)
        go.set()
        answers = [(await each).status_code for each in (*first, *repeats)]
        assert (answers[:2], sorted(answers[2:])) == ([200, 200], [200, 409, 409, 409])

    asyncio.run(asyncio.wait_for(main(), 30))


def litestar_not_executed(attempts: list[str]) -> Any:
    @litestar_post("/pay")
    async def pay() -> None:
        attempts.append("tried")
        raise NotExecuted("the bank is closed")

    return Litestar([pay], plugins=[IdempotencyPlugin(**options())])


def quart_not_executed(attempts: list[str]) -> Any:
    app = Quart(__name__)

    @app.post("/pay")
    async def pay() -> str:
        attempts.append("tried")
        raise NotExecuted("the bank is closed")

    protect(app, **options())
    return app


@pytest.mark.parametrize("build", [litestar_not_executed, quart_not_executed])
def test_frameworks_that_answer_for_exceptions_still_give_the_key_back(build: Callable[[list[str]], Any]) -> None:
    async def main() -> None:
        attempts: list[str] = []
        app = build(attempts)
        answers = [await post(app, "/pay", "a") for _ in range(2)]
        assert [answer.status_code for answer in answers] == [503, 503]
        assert answers[0].headers["content-type"] == "application/problem+json"
        assert answers[0].json()["type"].endswith("#not-executed")
        assert answers[0].headers["retry-after"] == "1"
        assert "idempotent-replayed" not in answers[1].headers
        assert attempts == ["tried", "tried"]

    asyncio.run(main())


def test_a_mark_is_called_with_a_policy() -> None:
    with pytest.raises(TypeError, match=r"write @idempotent\(\)"):
        idempotent(print)  # type: ignore[arg-type]


def test_a_mark_that_cannot_be_kept_is_refused_where_it_is_written() -> None:
    with pytest.raises(StoreMisconfigured, match="exactly-once"):
        idempotent(Policy(guarantee="exactly-once"))


class Endpoint(HTTPEndpoint):
    count = 0

    @idempotent()
    async def post(self, request: Request) -> JSONResponse:
        Endpoint.count += 1
        return JSONResponse({})


def test_a_mark_on_the_method_of_a_view_class_is_found_through_other_middleware() -> None:
    async def main() -> None:
        inner = Starlette(routes=[Route("/", Endpoint)])
        app = IdempotencyMiddleware(CORSMiddleware(GZipMiddleware(inner)), **options())
        assert (await post(app, "/")).status_code == 400
        assert Endpoint.count == 0

    asyncio.run(main())


def test_the_case_of_a_method_does_not_matter() -> None:
    """A framework that reads `post` as POST must not run what is protected."""

    async def main() -> None:
        sent: list[dict[str, Any]] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            raise AssertionError("it runs")

        front = IdempotencyMiddleware(app, store="memory://", policy=Policy(required=True), identify=lambda scope: "me")
        scope = {"type": "http", "method": "post", "path": "/", "headers": []}
        await front(scope, None, send)  # type: ignore[arg-type]
        assert sent[0]["status"] == 400

    asyncio.run(main())
