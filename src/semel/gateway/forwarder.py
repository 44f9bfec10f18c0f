"""The application that the middleware protects: every request goes to the upstream, and its answer comes back."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

from semel.asgi.types import Receive, Scope, Send, send_response
from semel.core import http
from semel.errors import Unanswered
from semel.gateway.headers import Pair, find_values, rewrite_for_caller, rewrite_for_upstream
from semel.gateway.reports import REPORT, Report
from semel.gateway.settings import GatewaySettings
from semel.gateway.upstream import CONNECTIONS_MAX, Cut, NotSent, NotText, Upstream, read_chunks, read_whole
from semel.runtime.operation import Operation, current_operation

KEY = b"idempotency-key"
DERIVED = "gateway"
"""What the upstream's key is derived under. It never changes: an older version's keys must stay the same."""
WHOLE_MAX = 65_536
"""A body up to this size is sent together with the head; a larger one part by part. The same holds for answers."""
WATCH_AFTER_S = 0.05
"""After this time, the gateway watches whether a caller without a key leaves, and then stops the upstream's work."""

NOT_UTF8 = http.Response(400, ((b"content-type", b"text/plain; charset=utf-8"),), b"A header is not UTF-8.")


class Forwarder:
    """Streams in both directions, each as fast as the receiver reads."""

    def __init__(self, settings: GatewaySettings, connections_max: int = CONNECTIONS_MAX) -> None:
        self.settings = settings
        self.upstream = Upstream(settings, connections_max)
        self.key_headers: frozenset[bytes] = frozenset((KEY,))
        """All headers in which some rule lets callers send their key."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _serve_lifespan(receive, send)
            return
        operation = current_operation()
        body = Body(receive)
        # When the caller leaves, the work of a keyed request goes on. Without a key, the work stops.
        if operation is not None:
            await self._forward(scope, body, send, operation)
            return
        task = asyncio.current_task()
        assert task is not None
        watch = CallerWatch(body, task)
        try:
            await self._forward(scope, body, send, None)
        except asyncio.CancelledError:
            if not body.left:
                raise
            task.uncancel()
        finally:
            watch.stop()

    async def _forward(self, scope: Scope, body: Body, send: Send, operation: Operation | None) -> None:
        method: str = scope["method"]
        try:
            data = await body.read()
            response = await self.upstream.send(method, target_of(scope), self._headers(scope, operation), data)
        except NotText:
            _give_back(operation)
            await send_response(send, NOT_UTF8)
            return
        except NotSent as error:
            _explain(scope, f"the upstream cannot be reached: {error}")
            _give_back(operation)
            problem = http.problem("unreachable", uuid.uuid4().urn, base=self.settings.publish)
            await send_response(send, problem)
            return
        except Cut as error:
            if not body.left:
                raise _explain_unknown(scope, error) from error
            return
        async with response:
            if not 200 <= response.status <= 599:
                raise _explain_unknown(scope, Cut(f"it answered with the status {response.status}"))
            headers = rewrite_for_caller(response.status, method, response.raw_headers)
            start = {"type": "http.response.start", "status": response.status, "headers": headers}
            length = response.content_length
            rest = b""
            try:
                if length is not None and length <= WHOLE_MAX:
                    rest = await read_whole(response)
                    await send(start)
                else:
                    await send(start)
                    async for chunk in read_chunks(response):
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except Cut as error:
                if not body.left:
                    raise _explain_unknown(scope, error) from error
                return
            await send({"type": "http.response.body", "body": rest, "more_body": False})

    def _headers(self, scope: Scope, operation: Operation | None) -> list[Pair]:
        settings = self.settings
        asked = find_values(scope["headers"], b"host")
        host = asked[0] if asked and settings.host == "caller" else settings.upstream_host
        if operation is None or settings.downstream_key == "caller":
            return rewrite_for_upstream(scope, host=host, dropped=frozenset())
        headers = rewrite_for_upstream(scope, host=host, dropped=self.key_headers)
        if settings.downstream_key == "derived":
            headers.append((KEY, operation.derive(DERIVED).encode()))
        return headers


class Body:
    """The body of a request, as it arrives. After the body, the same channel reports that the caller left."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.received = asyncio.Event()
        self.left = False

    async def read(self) -> bytes | AsyncIterator[bytes] | None:
        """The whole body if it has arrived and is small, else its parts as they arrive."""
        first, more = await self._read_next()
        if more or len(first) > WHOLE_MAX:
            return self._read_parts(first, more)
        return first or None

    async def _read_parts(self, first: bytes, more: bool) -> AsyncIterator[bytes]:
        for at in range(0, len(first), WHOLE_MAX):  # piece by piece: the upstream must take each in time
            yield first[at : at + WHOLE_MAX]
        while more:
            part, more = await self._read_next()
            if part:
                yield part

    async def _read_next(self) -> tuple[bytes, bool]:
        message = await self._receive()
        if message["type"] != "http.request":
            self.left = True
            raise Cut("the caller left before the request was complete")
        more: bool = message.get("more_body", False)
        if not more:
            self.received.set()
        return message.get("body", b""), more

    async def wait_until_left(self) -> None:
        await self.received.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.left = True


class CallerWatch:
    """Cancels a task when its caller leaves. It starts only after `WATCH_AFTER_S`: most answers have come by then."""

    def __init__(self, body: Body, task: asyncio.Task[object]) -> None:
        self._body = body
        self._task = task
        self._watching: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._start_watching)

    def stop(self) -> None:
        self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()

    def _start_watching(self) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._cancel_when_left())

    async def _cancel_when_left(self) -> None:
        await self._body.wait_until_left()
        self._task.cancel()


def _give_back(operation: Operation | None) -> None:
    if operation is not None:
        operation.nothing_done()


def target_of(scope: Scope) -> str:
    """Path and query exactly as received."""
    path: bytes = scope["raw_path"].partition(b"?")[0]
    query: bytes = scope.get("query_string", b"")
    return (path + b"?" + query if query else path).decode("ascii")


def _explain(scope: Scope, cause: str) -> None:
    report: Report = scope[REPORT]
    report.explain(cause)


def _explain_unknown(scope: Scope, error: Cut) -> Unanswered:
    _explain(scope, f"the request was passed on and not answered: {error}")
    return Unanswered()


async def _serve_lifespan(receive: Receive, send: Send) -> None:
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})
