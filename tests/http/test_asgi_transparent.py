"""What code around the middleware sees of a keyed request is what it sees without us."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from asgi_calls import Wire, Work, on_loop, reply
from fastapi import FastAPI
from sqlalchemy import NullPool
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.templating import Jinja2Templates
from starlette.testclient import TestClient

import semel
from semel import Policy
from semel.asgi import IdempotencyMiddleware
from semel.asgi.types import App, Receive, Scope, Send
from semel.runtime.operation import current_operation
from semel.transaction import AsyncTransactionStore

LANGUAGE: ContextVar[str] = ContextVar("language", default="?")
BOTH = pytest.mark.parametrize("kind", ["records", "transactions"])


@asynccontextmanager
async def protected(kind: str, folder: Path, app: App, **policy: Any) -> AsyncIterator[IdempotencyMiddleware]:
    """`app` behind the middleware, on a store of records or on one of transactions."""
    if kind == "records":
        front = IdempotencyMiddleware(app, store="memory://", policy=Policy(**policy), identify=lambda scope: "shop")
        yield front
        await front.close()
        return
    with semel.open_store(f"sqlite:///{folder / 'shop.db'}") as store:  # type: ignore[attr-defined]
        store.migrate()
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'shop.db'}")
    yield IdempotencyMiddleware(
        app,
        store=AsyncTransactionStore(async_sessionmaker(engine).begin),
        policy=Policy(guarantee="exactly-once", **policy),
        identify=lambda scope: "shop",
    )
    await engine.dispose()


async def ask(front: App, **request: Any) -> Wire:
    wire = Wire(**request)
    await front(wire.scope, wire.receive, wire.send)
    return wire


@BOTH
@pytest.mark.parametrize("fails", [False, True])
@on_loop
async def test_code_around_us_sees_the_context_variables_of_the_application(
    kind: str, fails: bool, tmp_path: Path
) -> None:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        assert current_operation() is not None
        LANGUAGE.set("fr")
        if fails:
            raise LookupError
        await reply(200)(scope, receive, send)

    async with protected(kind, tmp_path, Work(answer)) as front:
        token = LANGUAGE.set("de")
        if fails:
            with pytest.raises(LookupError):
                await ask(front)
        else:
            await ask(front)
        assert LANGUAGE.get() == "fr"
        assert current_operation() is None
        LANGUAGE.reset(token)
        assert LANGUAGE.get() == "?"
        await ask(front)
        assert LANGUAGE.get() == "?", "a replay runs nothing"


@BOTH
def test_the_client_of_a_test_sees_the_template_and_its_context(kind: str, tmp_path: Path) -> None:
    (tmp_path / "paid.html").write_text("paid {{ amount }}")
    templates = Jinja2Templates(tmp_path)

    async def pay(request: Request) -> Response:
        return templates.TemplateResponse(request, "paid.html", {"amount": 10})

    async def lifted() -> None:
        async with protected(kind, tmp_path, Starlette(routes=[Route("/pay", pay, methods=["POST"])])) as front:
            client = TestClient(front)
            headers = {"idempotency-key": "k"}
            answers: list[Any] = [await asyncio.to_thread(client.post, "/pay", headers=headers) for _ in range(2)]
            first, again = answers
            assert (first.text, first.context["amount"], first.template.name) == ("paid 10", 10, "paid.html")
            assert again.text == "paid 10"
            assert not hasattr(again, "template"), "it is no part of the stored answer"

    asyncio.run(lifted())


class Handled:
    """An application with a handler of its own for what nothing else handles."""

    def __init__(self, status: int = 500) -> None:
        self.effects = self.handled = 0
        self.status = status

    async def pay(self, request: Request) -> Response:
        self.effects += 1
        raise LookupError("no such account")

    async def handle(self, request: Request, error: Exception) -> Response:
        self.handled += 1
        if self.status == 0:
            raise ValueError("the handler fell over")
        return Response(f"so sorry: {error} {request.url.path}", self.status, headers={"x-kind": "own"})

    def handle_in_thread(self, request: Request, error: Exception) -> Response:
        self.handled += 1
        return Response(f"so sorry: {error} {request.url.path}", self.status, headers={"x-kind": "own"})

    def routes(self) -> list[Route]:
        return [Route("/pay", self.pay, methods=["POST"])]


def inside(app: Starlette, kind: str, folder: Path) -> Starlette:
    """Put the middleware where `add_middleware` puts it: the framework's handler stands around it."""
    options: dict[str, Any] = {"store": "memory://", "policy": Policy()}
    if kind == "transactions":
        with semel.open_store(f"sqlite:///{folder / 'shop.db'}") as store:  # type: ignore[attr-defined]
            store.migrate()
        engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'shop.db'}", poolclass=NullPool)
        options["store"] = AsyncTransactionStore(async_sessionmaker(engine).begin)
        options["policy"] = Policy(guarantee="exactly-once")
    app.add_middleware(IdempotencyMiddleware, identify=lambda scope: "shop", **options)
    return app


KEY = {"idempotency-key": "k"}


@BOTH
@pytest.mark.parametrize("framework", [Starlette, FastAPI])
@pytest.mark.parametrize("registered", [500, Exception])
@pytest.mark.parametrize("way", ["handle", "handle_in_thread"])
@pytest.mark.parametrize("status", [500, 503, 418])
def test_the_application_s_own_handler_answers_for_an_exception(
    kind: str, framework: Any, registered: Any, way: str, status: int, tmp_path: Path
) -> None:
    made = Handled(status)
    app = inside(framework(routes=made.routes(), exception_handlers={registered: getattr(made, way)}), kind, tmp_path)
    with TestClient(app, raise_server_exceptions=False) as client:
        first, again = [client.post("/pay", headers=KEY) for _ in range(2)]
    assert (first.status_code, first.text, first.headers["x-kind"]) == (status, "so sorry: no such account /pay", "own")
    assert (again.status_code, again.text, again.headers["x-kind"]) == (status, first.text, "own")
    assert again.headers["idempotent-replayed"] == "true"
    assert (made.effects, made.handled) == (1, 1), "the handler is called once, as without us"
    with TestClient(app) as client, pytest.raises(LookupError):
        client.post("/pay", headers={"idempotency-key": "other"})  # the exception still reaches the server


@BOTH
@pytest.mark.parametrize("debug", [False, True])
def test_an_exception_without_an_answer_gets_our_problem(kind: str, debug: bool, tmp_path: Path) -> None:
    made = Handled(status=0)
    handlers: Any = {500: made.handle}
    app = inside(Starlette(debug=debug, routes=made.routes(), exception_handlers=handlers), kind, tmp_path)
    with TestClient(app, raise_server_exceptions=False) as client:
        first, again = [client.post("/pay", headers=KEY) for _ in range(2)]
    assert first.json()["type"].endswith("#internal-error")
    assert again.content == first.content
    assert (made.effects, made.handled) == (1, 0 if debug else 1)
    with TestClient(app) as client, pytest.raises(LookupError if debug else ValueError):
        client.post("/pay", headers={"idempotency-key": "other"})  # as without us: what the handler raised


@BOTH
@pytest.mark.parametrize("accept", ["text/html", "text/plain"])
def test_starlette_s_debug_page_is_never_stored(kind: str, accept: str, tmp_path: Path) -> None:
    made = Handled()

    async def main() -> None:
        async with protected(kind, tmp_path, Starlette(debug=True, routes=made.routes())) as front:
            client = TestClient(front, raise_server_exceptions=False)
            headers = KEY | {"accept": accept}
            answers: list[Any] = [await asyncio.to_thread(client.post, "/pay", headers=headers) for _ in range(2)]
            first, again = answers
            assert "no such account" in first.text
            assert (again.status_code, again.json()["type"].rpartition("#")[2]) == (409, "result-not-kept")

    asyncio.run(main())
    assert made.effects == 1


def limited(app: App) -> App:
    """A middleware in front of all, which refuses long bodies as some do: by what `receive` raises."""

    async def limit(scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_some() -> Any:
            message = await receive()
            if len(message.get("body", b"")) > 5:
                raise HTTPException(413, "at most five bytes")
            return message

        await app(scope, receive_some, send)

    return limit


@pytest.mark.parametrize("own_handler", [False, True])
@pytest.mark.parametrize("place", ["added", "outermost"])
@pytest.mark.parametrize("framework", [Starlette, FastAPI])
@on_loop
async def test_what_an_outer_receive_raises_is_answered_as_without_us(
    framework: Any, place: str, own_handler: bool
) -> None:
    effects: list[bytes] = []

    async def pay(request: Request) -> Response:
        effects.append(await request.body())
        return Response("paid", 201)

    async def refuse(request: Request, error: Exception) -> Response:
        return Response(f"{type(request.app).__name__}: {error}", 413, {"x-own": "yes"})

    def build() -> Any:
        handlers = {413: refuse} if own_handler else {}
        return framework(routes=[Route("/pay", pay, methods=["POST"])], exception_handlers=handlers)

    app = build()
    options: dict[str, Any] = {"store": "memory://", "identify": lambda scope: "shop"}
    if place == "added":
        app.add_middleware(IdempotencyMiddleware, **options)
    else:
        app = IdempotencyMiddleware(app, **options)
    headers = [("content-type", "application/json")]
    bare = await ask(limited(build()), chunks=[b"too long"], headers=headers)
    ours = await ask(limited(app), chunks=[b"too long"], headers=headers)
    assert (ours.status, ours.body, ours.headers) == (bare.status, bare.body, bare.headers)
    assert (ours.status, effects) == (413, [])
    again = await ask(limited(app), chunks=[b"short"], headers=headers)
    assert (again.status, effects) == (201, [b"short"]), "the key was not claimed"


@on_loop
async def test_what_no_handler_is_registered_for_goes_on() -> None:
    async def broken() -> Any:
        raise ArithmeticError("of the server")

    app = IdempotencyMiddleware(Starlette(), store="memory://", identify=lambda scope: "shop")
    wire = Wire()
    with pytest.raises(ArithmeticError, match="of the server"):
        await app(wire.scope, broken, wire.send)
    assert wire.sent == []
