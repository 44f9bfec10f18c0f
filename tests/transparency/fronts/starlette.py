"""Starlette and FastAPI: the outermost application of every test client, or the first of `add_middleware`."""

from __future__ import annotations

from typing import Any

import starlette.testclient
from starlette.applications import Starlette
from starlette.middleware import Middleware

from semel.asgi import IdempotencyMiddleware
from semel.stores.open import open_async_store
from transparency.asgi import OPTIONS, Keyless, Repeating, protected

testclient: Any = starlette.testclient


def outermost() -> None:
    _wrap_client(protected)


def added() -> None:
    """As `app.add_middleware(IdempotencyMiddleware, …)`, called last, does: inside the handler of unexpected errors."""
    _wrap_client(lambda app: Repeating(app, app))
    for made in _applications():
        made.build_middleware_stack = _with_semel(made.build_middleware_stack)


def _applications() -> list[Any]:
    made: list[Any] = [Starlette]
    try:
        from fastapi import FastAPI
    except ImportError:
        return made
    return [*made, FastAPI]


def _with_semel(build: Any) -> Any:
    def built(self: Any) -> Any:
        given = self.user_middleware
        store = open_async_store("memory://")
        self.user_middleware = [
            Middleware(IdempotencyMiddleware, store=store, **OPTIONS), Middleware(Keyless), *given
        ]  # fmt: skip
        try:
            return build(self)
        finally:
            self.user_middleware = given

    return built


def _wrap_client(wrap: Any) -> None:
    original = testclient.TestClient.__init__

    def made(self: Any, app: Any, *args: Any, **kwargs: Any) -> None:
        whole = app if testclient._is_asgi3(app) else testclient._WrapASGI2(app)
        original(self, wrap(whole), *args, **kwargs)

    testclient.TestClient.__init__ = made
