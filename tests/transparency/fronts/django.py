"""Django: the last of MIDDLEWARE, in every handler that loads its middleware. Requests of test clients are repeated.

A repeat passes the middleware before semel again, as it would on a server. What that writes to the log, and which
queries it makes, is not counted by the tests.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core.handlers.base import BaseHandler
from django.db import connections
from django.test.client import AsyncClientHandler, ClientHandler, FakePayload
from django.utils.decorators import sync_and_async_middleware

from transparency.trial import HEADER, MARK, POLICY, Answer, Trial
from transparency.wsgi import KEY, Noted

SEMEL = {"store": "memory://", "policy": POLICY, "identify": lambda request: "tests", "publish": None}
ADDED = ["semel.django.IdempotencyMiddleware", "transparency.fronts.django.keyless"]


def middleware() -> None:
    BaseHandler.load_middleware = _with_semel(BaseHandler.load_middleware)
    ClientHandler.__call__ = _repeating(ClientHandler.__call__)
    AsyncClientHandler.__call__ = _async_repeating(AsyncClientHandler.__call__)


def _with_semel(load: Any) -> Any:
    def load_middleware(self: Any, is_async: bool = False) -> None:
        if not hasattr(settings, "SEMEL"):
            settings.SEMEL = SEMEL
        held = settings.__dict__
        given = settings.MIDDLEWARE
        held["MIDDLEWARE"] = [*given, *ADDED]  # the place in which Django caches it
        try:
            load(self, is_async)
        finally:
            held["MIDDLEWARE"] = given

    return load_middleware


@sync_and_async_middleware  # type: ignore[untyped-decorator]
def keyless(get_response: Any) -> Any:
    """Stands between semel and the view. Hides the key, because the suite's tests know of none."""
    made: Any
    if iscoroutinefunction(get_response):

        async def passing(request: Any) -> Any:
            return await get_response(request)

        made = passing
    else:

        def passed(request: Any) -> Any:
            return get_response(request)

        made = passed
    made.process_view = _hide
    return made


def _hide(request: Any, view: object, args: object, kwargs: object) -> None:
    trial: Trial | None = getattr(request, "scope", request.META).get(MARK)
    if trial is not None:
        trial.enter()
        request.META.pop(KEY)
        request.__dict__.pop("headers", None)


def _repeating(call: Any) -> Any:
    def called(self: Any, environ: dict[str, Any]) -> Any:
        if environ["REQUEST_METHOD"].upper() not in POLICY.methods or KEY in environ:
            return call(self, environ)
        trial, body = Trial(), Noted(environ["wsgi.input"])
        environ |= {KEY: trial.key, MARK: trial, "wsgi.input": body}
        repeat = {**environ}
        response = call(self, environ)
        if _is_repeatable(trial, response):
            repeat["wsgi.input"] = FakePayload(bytes(body.noted))
            with _unnoticed():
                again = call(self, repeat)
            trial.compare(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}", _answer(response), _answer(again))
        return response

    return called


def _async_repeating(call: Any) -> Any:
    async def called(self: Any, scope: dict[str, Any]) -> Any:
        name = HEADER.lower().encode()
        if scope["method"].upper() not in POLICY.methods or name in dict(scope["headers"]):
            return await call(self, scope)
        trial = Trial()
        body = scope["_body_file"].read() if "_body_file" in scope else b""
        scope |= {MARK: trial, "headers": [*scope["headers"], (name, trial.key.encode())]}
        repeat = {**scope, "_body_file": FakePayload(body)}
        response = await call(self, scope | {"_body_file": FakePayload(body)})
        if _is_repeatable(trial, response):
            with _unnoticed():
                again = await call(self, repeat)
            trial.compare(f"{scope['method']} {scope['path']}", _answer(response), _answer(again))
        return response

    return called


def _is_repeatable(trial: Trial, response: Any) -> bool:
    return bool(trial.entered) and not response.streaming


def _answer(response: Any) -> Answer:
    # Sessions, which are outside of semel, add `Vary` when the view has looked at them.
    headers = [(name, value) for name, value in response.headers.items() if name != "Vary"]
    return Answer(f"{response.status_code} {response.reason_phrase}", headers, response.content, is_complete=True)


@contextmanager
def _unnoticed() -> Iterator[None]:
    counted = {alias: len(connections[alias].queries_log) for alias in connections}
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        for alias, count in counted.items():
            log = connections[alias].queries_log
            while len(log) > count:
                log.pop()
