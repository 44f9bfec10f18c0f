"""A shop in many variants: protected, and broken in the ways in which services are."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

from flask import Flask, Response, jsonify, request

from semel import Policy
from semel.wsgi import IdempotencyMiddleware

PATIENCE_S = 20


class Shop:
    """Orders, each an effect."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.orders = 0

    def effects(self) -> int:
        return self.orders

    def order(self) -> int:
        with self._lock:
            self.orders += 1
            return self.orders

    def app(self) -> Flask:
        """No protection at all."""
        app = Flask("shop")

        @app.post("/orders")
        def orders() -> tuple[Response, int]:
            if request.headers.get("Authorization") == "Bearer nobody":
                return jsonify(error="who are you?"), 401
            return jsonify(order=self.order()), 201

        return app


def account(environ: WSGIEnvironment) -> str | None:
    who: str | None = environ.get("HTTP_AUTHORIZATION")
    return who


def protected(app: Flask, policy: Policy = Policy(), identify: Callable[[Any], str | None] = account) -> Flask:
    app.wsgi_app = IdempotencyMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, store="memory://", policy=policy, identify=identify
    )
    return app


class CheckRunSave:
    """Looks the key up, runs, saves: the repeats one after the other are fine, those at once are not.

    From the second key on, the first caller does not run before another one has looked: what happens at times in
    production happens here always.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._saved: dict[str, tuple[str, list[tuple[str, str]], bytes]] = {}
        self._looked: Counter[str] = Counter()
        self._company = threading.Condition()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        key = environ["HTTP_IDEMPOTENCY_KEY"]
        saved = self._saved.get(key)
        if saved is None:
            self._wait_for_company(key)
            started: list[Any] = []
            body = b"".join(self._app(environ, lambda *given: started.extend(given)))
            saved = self._saved[key] = (started[0], started[1], body)
        start_response(saved[0], saved[1])
        return [saved[2]]

    def _wait_for_company(self, key: str) -> None:
        with self._company:
            self._looked[key] += 1
            self._company.notify_all()
            if len(self._looked) > 1:
                assert self._company.wait_for(lambda: self._looked[key] > 1, PATIENCE_S)


class KeyIgnored:
    """Knows requests by their bodies alone."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._saved: dict[bytes, bytes] = {}

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        if self._saved and body not in self._saved:
            start_response("422 Unprocessable Content", [])
            return [b"another body"]
        if body not in self._saved:
            self._saved[body] = b"".join(self._app(environ, lambda *_: None))
        start_response("201 Created", [])
        return [self._saved[body]]


class Stamped:
    """Something in front that changes every answer."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._served = 0

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        self._served += 1
        return [*self._app(environ, start_response), b" %d" % self._served]
