"""WSGI: applications behind semel, and every unsafe request made twice."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import copy_context
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from semel.stores.open import open_store
from semel.wsgi import IdempotencyMiddleware
from transparency.trial import HEADER, MARK, POLICY, Answer, ExecutedAgain, Trial

KEY = f"HTTP_{HEADER.upper().replace('-', '_')}"
OPTIONS: dict[str, Any] = {"policy": POLICY, "identify": lambda environ: "tests", "publish": None}


def protected(app: WSGIApplication) -> WSGIApplication:
    return repeating(IdempotencyMiddleware(keyless(app), store=open_store("memory://"), **OPTIONS))


def keyless(app: WSGIApplication) -> WSGIApplication:
    """Stands between semel and the application. Hides the key, because the suite's tests know of none."""

    def hidden(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        hide(environ)
        return app(environ, start_response)

    return hidden


def hide(environ: WSGIEnvironment) -> None:
    trial: Trial | None = environ.get(MARK)
    if trial is not None:
        trial.enter()
        del environ[MARK], environ[KEY]


def repeating(app: WSGIApplication) -> WSGIApplication:
    """The outermost application."""

    def called(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"].upper() not in POLICY.methods or KEY in environ:
            return app(environ, start_response)
        return Twice(app, environ, start_response).begin()

    return called


class Twice:
    """One request and its repeat, which is made as soon as the first answer is whole: semel has stored it by then."""

    def __init__(self, app: WSGIApplication, environ: WSGIEnvironment, start_response: StartResponse) -> None:
        self.app = app
        self.trial = Trial()
        self.first = Answer()
        self.body = Noted(environ["wsgi.input"])
        environ |= {KEY: self.trial.key, MARK: self.trial, "wsgi.input": self.body}
        self.environ, self.repeat_environ = environ, {**environ}
        self._start_response = start_response

    def begin(self) -> Iterable[bytes]:
        answer = self.app(self.environ, starting(self.first, self._start_response))
        parts: list[bytes] = []
        try:
            parts += answer
        except Exception as error:
            return Parts(parts, answer, error)
        self.first.body += b"".join(parts)
        if self.trial.entered:
            self._repeat()
        return Parts(parts, answer)

    def _repeat(self) -> None:
        again = Answer()
        self.repeat_environ["wsgi.input"] = io.BytesIO(bytes(self.body.noted))
        with suppress(ExecutedAgain):  # the trial has counted it
            copy_context().run(self._collect, again)
        self.trial.compare(f"{self.environ['REQUEST_METHOD']} {self.environ['PATH_INFO']}", self.first, again)

    def _collect(self, again: Answer) -> None:
        parts = self.app(self.repeat_environ, starting(again, None))
        try:
            again.body += b"".join(parts)
        finally:
            getattr(parts, "close", lambda: None)()


class Parts:
    """A first answer that was collected. What was raised meanwhile is raised at its end, and closing closes."""

    def __init__(self, parts: list[bytes], answer: Iterable[bytes], error: Exception | None = None) -> None:
        self._parts = iter(parts)
        self._error = error
        self.close = getattr(answer, "close", lambda: None)

    def __iter__(self) -> Iterator[bytes]:
        yield from self._parts
        if self._error is not None:
            raise self._error


def starting(answer: Answer, start_response: StartResponse | None) -> Any:
    def started(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], object]:
        answer.status, answer.headers = status, list(headers)
        wire_write: Any = start_response(status, headers, exc_info) if start_response else None

        def write(part: bytes) -> None:
            answer.body += part
            if wire_write is not None:
                wire_write(part)

        return write

    return started


class Noted:
    """`wsgi.input`, and what was read of it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.noted = bytearray()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[bytes]:
        while line := self.readline():
            yield line

    def read(self, size: int = -1) -> bytes:
        return self._note(self._stream.read(size))

    def readline(self, size: int = -1) -> bytes:
        return self._note(self._stream.readline(size))

    def _note(self, part: bytes) -> bytes:
        self.noted += part
        return part
