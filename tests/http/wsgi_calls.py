"""A WSGI server in a function: it validates both sides of the middleware and tells everything that happened."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from io import BytesIO, StringIO
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

from semel.codecs import responses
from semel.core.effects import Effect, Pause
from semel.core.http import Response
from semel.core.records import Key, Result
from semel.errors import StoreUnavailable
from semel.events import Event
from semel.stores.memory import MemoryStore
from semel.wsgi import IdempotencyMiddleware

TEXT = ("Content-Type", "text/plain")
STORED = responses.encode(Response(202, ((b"content-type", b"text/plain"),), b"ok"), ok=True)
Answering = Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]


@dataclass
class Answer:
    line: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    closing: BaseException | None = None

    @property
    def status(self) -> int:
        return int(self.line[:3])

    def get(self, name: str) -> str | None:
        return next((value for header, value in self.headers if header.lower() == name.lower()), None)

    @property
    def replayed(self) -> bool:
        return self.get("Idempotent-Replayed") == "true"

    @property
    def kind(self) -> str:
        """The kind of problem."""
        assert self.get("Content-Type") == "application/problem+json", self
        return self.body.decode().partition("#")[2].partition('"')[0]

    @property
    def kept(self) -> tuple[str, list[tuple[str, str]], bytes]:
        """What must be the same in every answer."""
        return self.line, [each for each in self.headers if each[0].lower() != "idempotent-replayed"], self.body


def environ_of(
    path: str = "/pay", /, *, key: str | None = "k", body: bytes = b"", method: str = "POST", **more: Any
) -> WSGIEnvironment:
    environ: WSGIEnvironment = {"REQUEST_METHOD": method, "SCRIPT_NAME": "", "PATH_INFO": path, "QUERY_STRING": ""}
    setup_testing_defaults(environ)
    environ |= {"wsgi.input": BytesIO(body), "wsgi.errors": StringIO(), "CONTENT_LENGTH": str(len(body))}
    if key is not None:
        environ["HTTP_IDEMPOTENCY_KEY"] = key
    return environ | more


def call(app: WSGIApplication, path: str = "/pay", /, *, validate: bool = True, **request: Any) -> Answer:
    """One request, as a server serves it: the answer is closed at the end, whatever happened."""
    answer = Answer()
    written: list[bytes] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None, /) -> Callable[[bytes], Any]:
        if exc_info is not None and written:
            raise exc_info[1]
        answer.line, answer.headers = status, list(headers)
        return written.append

    iterable = (validator(app) if validate else app)(environ_of(path, **request), start_response)
    try:
        written.extend(iterable)
    finally:
        if hasattr(iterable, "close"):
            try:
                iterable.close()
            except BaseException as error:
                answer.closing = error
    answer.body = b"".join(written)
    return answer


class Work:
    """An application that counts its effects and answers as it is told."""

    def __init__(self, answering: Answering | None = None) -> None:
        self.effects = 0
        self.closed = 0
        self.answering = answering or text(b"done")

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        self.effects += 1
        return Closing(self.answering(environ, start_response), self)


class Closing:
    def __init__(self, parts: Iterable[bytes], work: Work) -> None:
        self._parts, self._work = iter(parts), work

    def __iter__(self) -> Closing:
        return self

    def __next__(self) -> bytes:
        return next(self._parts)

    def close(self) -> None:
        self._work.closed += 1
        if close := getattr(self._parts, "close", None):
            close()


def text(*parts: bytes, status: str = "200 OK", headers: Iterable[tuple[str, str]] = ()) -> Answering:
    def answering(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response(status, [TEXT, *headers])
        return list(parts)

    return answering


def raising(error: BaseException) -> Answering:
    def answering(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        raise error

    return answering


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


class FaultyStore(MemoryStore):
    """Fails on the calls that `failing` names, before or after it has done them."""

    def __init__(
        self, *failing: type[Effect[Any]], after: bool = False, clock: Callable[[], int] | None = None
    ) -> None:
        super().__init__(clock=clock or Clock())
        self.failing, self.after = failing, after

    def _call(self, call: Effect[Any]) -> Any:
        if isinstance(call, self.failing) and not self.after:
            raise StoreUnavailable("told to")
        reply = super()._call(call)
        if isinstance(call, self.failing):
            raise StoreUnavailable("told to, afterwards")
        return reply


class Served:
    """A middleware around an application, with the memory store, a clock that stands, and pauses that take no time."""

    def __init__(
        self, answering: Answering | Work | None = None, *, store: MemoryStore | None = None, **settings: Any
    ) -> None:
        self.work = answering if isinstance(answering, Work) else Work(answering)
        self.clock = Clock()
        self.store = store or MemoryStore(clock=self.clock)
        self.events: list[Event] = []
        settings = {"identify": lambda environ: "me", "on_event": self.events.append} | settings
        self.app = IdempotencyMiddleware(validator(self.work), store=self.store, **settings)
        asker = self.app.host.asker
        self.app.host.asker = asker._replace(
            perform=lambda effect: effect.pause_ms if isinstance(effect, Pause) else asker.perform(effect)
        )

    def __call__(self, path: str = "/pay", /, **request: Any) -> Answer:
        return call(self.app, path, **request)

    def key(self, name: str = "k", scope: str = "POST /pay", tenant: str = "me") -> Key:
        return Key(tenant, scope, name)

    def take_over(self, result: Result | None) -> None:
        """Somebody resolves the running operation behind its back."""
        record = self.store.get(self.key())
        assert record is not None
        self.clock.now_ms = record.lease_until_ms
        assert self.store.resolve(record, result, retention_ms=1000)


class Started:
    """A `start_response` that remembers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[tuple[str, str]]]] = []

    def __call__(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
    ) -> Callable[[bytes], object]:
        self.calls.append((status, headers))
        return lambda chunk: None


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
