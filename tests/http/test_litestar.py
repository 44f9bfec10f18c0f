"""Litestar behind the plugin behaves as it does without: early readers, refusals in front of the handler, schemas."""

from copy import copy
from typing import Any

import pytest
from litestar import Litestar, Request, Response, Router, get, post
from litestar.config.app import AppConfig
from litestar.config.csrf import CSRFConfig
from litestar.connection import ASGIConnection
from litestar.datastructures import UploadFile
from litestar.exceptions import HTTPException, NotAuthorizedException, PermissionDeniedException
from litestar.handlers import BaseRouteHandler
from litestar.middleware.logging import LoggingMiddlewareConfig
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, Tag
from litestar.params import MultipartBody
from litestar.plugins import InitPlugin
from litestar.testing import TestClient
from litestar.types import ASGIApp, Receive, Scope, Send

from semel import Policy
from semel.asgi.body import KEPT
from semel.litestar import IdempotencyPlugin

KEY = {"idempotency-key": "k"}
REPLAYED = "idempotent-replayed"


def plugin(**options: Any) -> IdempotencyPlugin:
    return IdempotencyPlugin(store="memory://", identify=lambda scope: "shop", **options)


@pytest.fixture
def effects() -> list[Any]:
    return []


class BodyLength:
    """A middleware of the application that reads the whole body and keeps nothing of it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request: Request[Any, Any, Any] = Request(scope, receive, send)
        await request.body()
        await self.app(scope, receive, send)


@pytest.mark.parametrize("early", [LoggingMiddlewareConfig().middleware, BodyLength])
@pytest.mark.parametrize("body", [b"", b'{"amount": 10}'])
def test_a_middleware_in_front_may_read_the_body(effects: list[Any], early: Any, body: bytes) -> None:
    @post("/pay", status_code=200)
    async def pay(request: Request[Any, Any, Any]) -> str:
        effects.append(await request.body())
        return f"paid {len(effects)}"

    json = {"content-type": "application/json"}
    with TestClient(Litestar([pay], plugins=[plugin()], middleware=[early])) as client:
        first = client.post("/pay", content=body, headers=KEY | json)
        again = client.post("/pay", content=body, headers=KEY | json)
        other = client.post("/pay", content=b'{"amount": 11}', headers=KEY | json)
        plain = client.post("/pay", content=b"[]", headers=json)
    assert (first.status_code, first.text, again.text) == (200, "paid 1", "paid 1")
    assert REPLAYED in again.headers
    assert other.status_code == 422, "the body that was read early is part of the fingerprint"
    assert plain.text == "paid 2"
    assert effects == [body, b"[]"]


def test_a_middleware_in_front_may_read_a_form_with_files(effects: list[Any]) -> None:
    @post("/files", status_code=200)
    async def upload(data: MultipartBody[dict[str, UploadFile]]) -> str:
        effects.append(await data["file"].read())
        return f"kept {len(effects)}"

    app = Litestar([upload], plugins=[plugin()], middleware=[LoggingMiddlewareConfig().middleware])
    boundary = {"content-type": "multipart/form-data; boundary=b"}
    form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n%s\r\n--b--\r\n'
    with TestClient(app) as client:
        answers = [client.post("/files", content=form % b"one", headers=KEY | boundary) for _ in range(2)]
        other = client.post("/files", content=form % b"two", headers=KEY | boundary)
    assert [answer.text for answer in answers] == ["kept 1", "kept 1"]
    assert other.status_code == 422
    assert effects == [b"one"]


@pytest.mark.parametrize("mark", [None, Policy(body_max=20)])
def test_a_body_that_was_read_early_has_the_limit_of_its_policy(effects: list[Any], mark: Policy | None) -> None:
    @post("/pay", status_code=200, opt={} if mark is None else {"semel": mark})
    async def pay(request: Request[Any, Any, Any]) -> str:
        effects.append(await request.body())
        return "paid"

    plugins = [plugin(policy=Policy(body_max=10))]
    size_max = 10 if mark is None else 20
    with TestClient(Litestar([pay], plugins=plugins, middleware=[BodyLength])) as client:
        assert client.post("/pay", content=b"x" * size_max, headers={"idempotency-key": "a"}).status_code == 200
        refused = client.post("/pay", content=b"x" * (size_max + 1), headers={"idempotency-key": "b"})
        assert client.post("/pay", content=b"x" * 1000).status_code == 200, "without a key there is no limit"
    assert (refused.status_code, refused.json()["type"].rpartition("#")[2]) == (413, "body-too-large")
    assert [len(effect) for effect in effects] == [size_max, 1000]


@pytest.mark.parametrize("kept", [True, False])
def test_a_body_is_kept_for_requests_with_a_key_only(kept: bool) -> None:
    found: list[Any] = []

    class Look(BodyLength):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            found.append(scope.get(KEPT))
            await self.app(scope, receive, send)

    @post("/pay", opt={"semel": Policy(headers=("X-Request-Key",))})
    async def pay() -> None: ...

    with TestClient(Litestar([pay], plugins=[plugin()], middleware=[Look])) as client:
        client.post("/pay", headers={"x-request-key": "k"} if kept else KEY)
    assert [each is not None for each in found] == [kept]


class Doorkeeper:
    """A middleware of a router, which stands behind ours."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        told = dict(scope["headers"]).get(b"x-token", b"").decode()
        if told == "none":
            raise NotAuthorizedException("who are you?")
        if told == "broken":
            raise ValueError("the doorkeeper fell over")
        if told == "malformed":
            raise HTTPException("a token has four letters", status_code=400)
        await self.app(scope, receive, send)


def refused(effects: list[Any], **options: Any) -> Litestar:
    @get("/")
    async def look() -> str:
        return "look"

    @post("/pay", status_code=200)
    async def pay() -> str:
        effects.append(1)
        return "paid"

    async def deny(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        if connection.headers.get("x-token") == "guarded":
            raise PermissionDeniedException("not for you")

    router = Router("/", route_handlers=[look, pay], middleware=[Doorkeeper], guards=[deny])
    return Litestar([router], **options)


@pytest.mark.parametrize("token", ["none", "guarded", "malformed", "broken"])
@pytest.mark.parametrize("handled", [False, True])
def test_what_is_refused_in_front_of_the_handler_is_answered_as_without_the_plugin(
    effects: list[Any], token: str, handled: bool
) -> None:
    def told(request: Any, error: Exception) -> Response[str]:
        return Response(f"so sorry: {error}", status_code=getattr(error, "status_code", 500))

    handlers: Any = {HTTPException: told, Exception: told} if handled else {}
    seen: list[Exception] = []

    async def hear(error: Exception, scope: Scope) -> None:
        seen.append(error)

    def app(*plugins: IdempotencyPlugin) -> TestClient[Litestar]:
        made = refused(effects, plugins=plugins, exception_handlers=handlers, after_exception=[hear])
        return TestClient(made)

    with app() as client:
        plain = client.post("/pay", headers=KEY | {"x-token": token})
    with app(plugin()) as client:
        first = client.post("/pay", headers=KEY | {"x-token": token})
        good, again = (client.post("/pay", headers=KEY | {"x-token": "good"}) for _ in range(2))
    assert (first.status_code, first.text) == (plain.status_code, plain.text)
    assert len(seen) == 2, "hooks hear of an exception once, as without the plugin"
    if first.status_code in (401, 403):
        assert (good.text, len(effects)) == ("paid", 1), "a refusal gives the key back"
    else:
        assert (good.status_code, good.text, len(effects)) == (first.status_code, first.text, 0), "it is the answer"
    assert again.text == good.text
    assert REPLAYED in again.headers


def test_csrf_refuses_as_without_the_plugin(effects: list[Any]) -> None:
    app = refused(effects, plugins=[plugin()], csrf_config=CSRFConfig(secret="s" * 32))
    with TestClient(app) as client:
        assert client.get("/").status_code == 200
        assert client.post("/pay", headers=KEY).status_code == 403
        token = {"x-csrftoken": client.cookies["csrftoken"]}
        assert [client.post("/pay", headers=KEY | token).text for _ in range(2)] == ["paid", "paid"]
    assert len(effects) == 1


def test_an_application_starts_although_its_schema_has_an_error(effects: list[Any]) -> None:
    @post("/pay", status_code=200, operation_id="pay")
    async def pay() -> str:
        effects.append(1)
        return "paid"

    @post("/pay/more", status_code=200, operation_id="pay")  # the same name: an error in the schema
    async def more() -> str:
        return "more"

    with TestClient(Litestar([pay, more], plugins=[plugin()])) as client:
        assert client.post("/pay", headers=KEY).text == "paid"
        assert client.get("/schema/openapi.json").status_code == 500


def test_the_schema_is_described_where_litestar_makes_it() -> None:
    @post("/pay", opt={"semel": Policy(required=True)})
    async def pay() -> None: ...

    theirs = OpenAPIConfig(title="shop", version="1", tags=[Tag("t")])
    app = Litestar([pay], plugins=[plugin()], openapi_config=theirs)
    paths = app.openapi_schema.to_schema()["paths"]  # as the command line does, without starting the application
    (parameter,) = paths["/pay"]["post"]["parameters"]
    assert (parameter["name"], parameter["required"]) == ("Idempotency-Key", True)
    plain = Litestar([pay], openapi_config=theirs).openapi_schema.to_schema()["paths"]
    assert "parameters" not in plain["/pay"]["post"], "the application's own configuration is left alone"


class Renamed(InitPlugin):
    """A plugin that changes the schema's configuration, as Litestar's security does: in a copy, or in place."""

    def __init__(self, in_place: bool) -> None:
        self.in_place = in_place

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        if not self.in_place:
            app_config.openapi_config = copy(app_config.openapi_config)
        assert app_config.openapi_config is not None
        app_config.openapi_config.title = "renamed"
        return app_config


@pytest.mark.parametrize("in_place", [True, False])
def test_what_a_later_plugin_changes_in_the_schema_is_kept(in_place: bool) -> None:
    @post("/pay")
    async def pay() -> None: ...

    schema = Litestar([pay], plugins=[plugin(), Renamed(in_place)]).openapi_schema.to_schema()
    assert schema["info"]["title"] == "renamed"
    assert schema["paths"]["/pay"]["post"]["parameters"][0]["name"] == "Idempotency-Key"


def test_the_components_of_the_schema_are_merged_in_the_configuration_of_the_application() -> None:
    theirs = OpenAPIConfig(title="shop", version="1", components=[Components(), Components()])
    app = Litestar([], plugins=[plugin()], openapi_config=theirs)
    app.openapi_schema.to_schema()
    assert app.openapi_config is not None
    assert isinstance(app.openapi_config.components, Components), "as Litestar leaves it"


def test_every_middleware_of_the_plugin_shows_the_application_behind_it() -> None:
    async def behind(scope: Scope, receive: Receive, send: Send) -> None: ...

    stack: Any = behind
    added: list[Any] = list(Litestar([], plugins=[plugin()]).middleware)
    for make in added:
        stack = make(stack)
    assert added
    while hasattr(stack, "app"):
        stack = stack.app
    assert stack is behind
