"""`Policy.stripe()` over HTTP, row by row as Stripe documents it: on uvicorn, and on a WSGI server."""

import json
import threading
from asyncio import to_thread
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from client.protected import serving_asgi
from semel import Policy
from semel.asgi import IdempotencyMiddleware
from semel.fastapi import protect
from semel.wsgi import IdempotencyMiddleware as WsgiMiddleware
from waiting import until

CHARGE, REFUND = "/v1/charges", "/v1/refunds"


class Acquirer:
    """What was done, and how long a slow request takes: until the test says so."""

    def __init__(self) -> None:
        self.effects: Counter[bytes] = Counter()
        self.may_answer = threading.Event()

    def charge(self, body: bytes) -> tuple[int, dict[str, object]]:
        self.effects[body] += 1
        if body == b"amount=slow":
            self.may_answer.wait(20)
        if body == b"amount=broken":
            return 500, {"error": {"type": "api_error", "message": f"Broken {sum(self.effects.values())}."}}
        if body == b"amount=limited":
            return 429, {"error": {"type": "invalid_request_error", "code": "rate_limit"}}
        return 200, {"id": f"ch_{sum(self.effects.values())}"}


@contextmanager
def on_uvicorn(acquirer: Acquirer, policy: Policy) -> Iterator[str]:
    async def charge(request: Request) -> Response:
        status, answer = await to_thread(acquirer.charge, await request.body())
        return JSONResponse(answer, status)

    routes = [Route(path, charge, methods=["POST", "PUT"]) for path in (CHARGE, REFUND)]
    app = IdempotencyMiddleware(
        Starlette(routes=routes),
        store="memory://",
        identify=lambda scope: dict(scope["headers"]).get(b"authorization", b"").decode(),
        policy=policy,
    )
    with serving_asgi(app) as url:
        yield url


class ThreadingWSGIServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class SilentHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def on_wsgiref(acquirer: Acquirer, policy: Policy) -> Iterator[str]:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        status, answer = acquirer.charge(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        start_response(f"{status} Status", [("content-type", "application/json")])
        return [json.dumps(answer).encode()]

    protected = WsgiMiddleware(
        app, store="memory://", identify=lambda environ: environ.get("HTTP_AUTHORIZATION", ""), policy=policy
    )
    server = make_server("127.0.0.1", 0, protected, ThreadingWSGIServer, SilentHandler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


Serve = Callable[[Acquirer, Policy], AbstractContextManager[str]]
servers = pytest.mark.parametrize("serve", [on_uvicorn, on_wsgiref])


class Caller:
    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(
        self, body: bytes = b"amount=5", key: str = "k1", path: str = CHARGE, method: str = "POST", token: str = "sk_1"
    ) -> httpx.Response:
        headers = {"authorization": f"Bearer {token}", "idempotency-key": key}
        return httpx.request(method, f"{self.url}{path}", content=body, headers=headers, timeout=20)


@pytest.fixture
def acquirer() -> Acquirer:
    return Acquirer()


def error(answer: httpx.Response) -> tuple[int, str, str | None]:
    found = answer.json()["error"]
    return answer.status_code, found["type"], found.get("code")


@servers
def test_a_repeat_gets_the_first_answer_marked(serve: Serve, acquirer: Acquirer) -> None:
    with serve(acquirer, Policy.stripe()) as url:
        ask = Caller(url)
        first, again = ask(), ask()
    assert (first.status_code, first.json()) == (again.status_code, again.json()) == (200, {"id": "ch_1"})
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert acquirer.effects == {b"amount=5": 1}


@servers
def test_a_500_is_stored_and_a_429_is_not(serve: Serve, acquirer: Acquirer) -> None:
    with serve(acquirer, Policy.stripe()) as url:
        ask = Caller(url)
        broken, again = ask(b"amount=broken"), ask(b"amount=broken")
        assert (broken.status_code, broken.content) == (again.status_code, again.content)
        assert again.headers["idempotent-replayed"] == "true"
        limited = [ask(b"amount=limited", key="k2") for _ in range(2)]
        assert [answer.status_code for answer in limited] == [429, 429]
        assert "idempotent-replayed" not in limited[1].headers
    assert acquirer.effects == {b"amount=broken": 1, b"amount=limited": 2}


@servers
def test_another_request_under_the_key_is_an_idempotency_error(serve: Serve, acquirer: Acquirer) -> None:
    with serve(acquirer, Policy.stripe()) as url:
        ask = Caller(url)
        ask()
        for other in (ask(b"amount=6"), ask(path=REFUND), ask(path=f"{CHARGE}?expand=customer")):
            assert error(other) == (400, "idempotency_error", None)
            assert other.headers["content-type"] == "application/json"
            assert other.headers["stripe-should-retry"] == "false"
            assert other.headers["request-id"]
        assert ask(b"amount=6", token="sk_2").json() == {"id": "ch_2"}, "keys of another account are other keys"
    assert acquirer.effects == {b"amount=5": 1, b"amount=6": 1}


@servers
def test_a_repeat_while_the_first_one_runs_is_a_conflict_to_be_sent_again(serve: Serve, acquirer: Acquirer) -> None:
    with serve(acquirer, Policy.stripe()) as url, ThreadPoolExecutor(1) as pool:
        ask = Caller(url)
        first = pool.submit(ask, b"amount=slow")
        until(lambda: acquirer.effects)
        try:
            busy = ask(b"amount=slow")
        finally:
            acquirer.may_answer.set()
        assert error(busy) == (409, "invalid_request_error", "idempotency_key_in_use")
        assert busy.headers["stripe-should-retry"] == "true"
        assert ask(b"amount=slow").json() == first.result().json() == {"id": "ch_1"}
    assert acquirer.effects == {b"amount=slow": 1}


@servers
def test_keys_are_up_to_255_characters_optional_and_for_post_alone(serve: Serve, acquirer: Acquirer) -> None:
    with serve(acquirer, Policy.stripe()) as url:
        ask = Caller(url)
        assert ask(key="k" * 255).json() == ask(key="k" * 255).json() == {"id": "ch_1"}
        assert error(ask(key="k" * 256)) == (400, "invalid_request_error", "key_malformed")
        assert [ask(method="PUT").json()["id"] for _ in range(2)] == ["ch_2", "ch_3"]
        without = [httpx.post(f"{url}{CHARGE}", content=b"amount=5").json()["id"] for _ in range(2)]
        assert without == ["ch_4", "ch_5"]
        other_header = {"x-idempotency-key": "k2"}
        httpx.post(f"{url}{CHARGE}", content=b"amount=5", headers=other_header)
        assert (
            "idempotent-replayed" not in httpx.post(f"{url}{CHARGE}", content=b"amount=5", headers=other_header).headers
        ), "Stripe reads one header"


def test_a_key_is_kept_for_a_day() -> None:
    assert Policy.stripe().retention == timedelta(hours=24)


@servers
def test_a_body_that_is_too_large_is_an_error_of_that_style(serve: Serve, acquirer: Acquirer) -> None:
    with serve(acquirer, Policy.stripe(body_max=10)) as url:
        answer = Caller(url)(b"amount=" + b"1" * 20)
    assert error(answer) == (413, "invalid_request_error", "body_too_large")
    assert not acquirer.effects


class Charge(BaseModel):
    amount: int


def test_a_request_that_fails_validation_does_not_burn_its_key(acquirer: Acquirer) -> None:
    app = FastAPI()
    protect(app, store="memory://", identify=lambda scope: "me", policy=Policy.stripe())

    @app.post(CHARGE)
    async def charge(charge: Charge) -> dict[str, object]:
        return acquirer.charge(f"amount={charge.amount}".encode())[1]

    with serving_asgi(app) as url:
        headers = {"idempotency-key": "k1", "content-type": "application/json"}
        sent = [
            httpx.post(f"{url}{CHARGE}", content=body, headers=headers)
            for body in (b'{"amount": "five"}', b"{", b'{"amount": 5}', b'{"amount": 5}', b'{"amount": 6}')
        ]
    assert [answer.status_code for answer in sent] == [422, 422, 200, 200, 400]
    assert sent[3].headers["idempotent-replayed"] == "true"
    assert error(sent[4]) == (400, "idempotency_error", None)
    assert acquirer.effects == {b"amount=5": 1}
