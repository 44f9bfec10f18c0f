"""ASGI without a server: a wire to look at, work that counts, a store that fails, cancellation at the n-th await."""

import asyncio
import functools
import itertools
import json
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

from semel import Policy, StoreUnavailable
from semel.asgi import IdempotencyMiddleware
from semel.asgi.types import App, Message, Receive, Scope, Send
from semel.core.effects import Effect, Pause
from semel.core.records import Record
from semel.runtime.clock import wall_ms
from semel.runtime.tasks import Tasks
from semel.store import Filter
from semel.stores.memory import AsyncMemoryStore

P = ParamSpec("P")
T = TypeVar("T")
LEASE_MS = 30_000


def on_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 30))

    return run


class Clock:
    def __init__(self) -> None:
        self.now_ms = wall_ms()

    def __call__(self) -> int:
        return self.now_ms


class Wire:
    """One request, and everything that was sent back."""

    def __init__(
        self,
        chunks: Iterable[bytes] = (b"{}",),
        *,
        key: str | None = "k",
        method: str = "POST",
        path: str = "/pay",
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        lines = [*([("idempotency-key", key)] if key is not None else []), *headers]
        self.scope: dict[str, Any] = {
            "type": "http", "asgi": {"version": "3.0"}, "method": method, "path": path,
            "raw_path": path.encode(), "query_string": b"",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in lines],
        }  # fmt: skip
        self.chunks = list(chunks)
        self.gone = asyncio.Event()
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        if self.chunks:
            chunk = self.chunks.pop(0)
            return {"type": "http.request", "body": chunk, "more_body": bool(self.chunks)}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await asyncio.sleep(0)
        self.sent.append(message)

    @property
    def status(self) -> int | None:
        starts = [message["status"] for message in self.sent if message["type"] == "http.response.start"]
        assert len(starts) <= 1, "two answers on one wire"
        return starts[0] if starts else None

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return list(self.sent[0]["headers"])

    def header(self, name: str) -> str | None:
        return next((value.decode() for header, value in self.headers if header.lower() == name.encode()), None)

    @property
    def body(self) -> bytes:
        bodies = [message for message in self.sent if message["type"] == "http.response.body"]
        assert sum(not message.get("more_body", False) for message in bodies) <= 1, "two ends of one answer"
        return b"".join(message.get("body", b"") for message in bodies)

    @property
    def problem(self) -> str:
        kind: str = json.loads(self.body)["type"].rpartition("#")[2]
        return kind


class Work:
    """An application: reads its body, takes effect once per call, and answers."""

    def __init__(self, answer: App | None = None) -> None:
        self.effects = 0
        self.bodies: list[bytes] = []
        self.answer = answer or reply(201, b"done %d")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            assert message["type"] == "http.request"
            body, more = body + message["body"], message.get("more_body", False)
        self.bodies.append(body)
        await asyncio.sleep(0)
        self.effects += 1
        scope["effect"] = self.effects
        await asyncio.sleep(0)
        await self.answer(scope, receive, send)


def reply(
    status: int, body: bytes = b"", *headers: tuple[bytes, bytes], then: Callable[[], Awaitable[None]] | None = None
) -> App:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        text = body % scope["effect"] if b"%d" in body else body
        await send({"type": "http.response.start", "status": status, "headers": list(headers)})
        await send({"type": "http.response.body", "body": text})
        if then is not None:
            await then()

    return answer


class Store(AsyncMemoryStore):
    """The memory store with awaits in it. `faults` maps a kind of call to "before" or "after", or to an error."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.clock = clock
        self.faults: dict[type[Effect[Any]], str | Exception] = {}
        self.calls: list[str] = []

    async def _call(self, call: Effect[T]) -> T:
        fault = self.faults.get(type(call))
        self.calls.append(type(call).__name__)
        await asyncio.sleep(0)
        if isinstance(fault, Exception):
            raise fault
        if fault == "before":
            raise StoreUnavailable("before")
        answer = await super()._call(call)
        await asyncio.sleep(0)
        if fault == "after":
            raise StoreUnavailable("after")
        return answer

    async def record(self) -> Record | None:
        """The only record there is."""
        found = (await self.scan(Filter())).records
        assert len(found) <= 1
        return found[0] if found else None


class TrulyCancelled(Tasks):
    """Cancels the task that its front names."""

    def __init__(self, front: "Front") -> None:
        super().__init__()
        self._front = front

    def spawn(self, work: Coroutine[Any, Any, Any], *how: Any, **further: Any) -> asyncio.Task[Any]:
        return super().spawn(self._front.cancelled(work), *how, **further)


class Front(IdempotencyMiddleware):
    """The middleware with a store of its own, pauses that take no time, and a say in what becomes of spawned tasks."""

    def __init__(self, app: App, policy: Policy | None = None, **settings: Any) -> None:
        self.clock = Clock()
        self.memory = Store(self.clock)
        self.spawned = itertools.count(1)
        self.truly: CancelAt | None = None
        self.truly_at: tuple[int, int] | None = None
        settings.setdefault("identify", lambda scope: "tenant")
        super().__init__(app, store=self.memory, policy=policy or Policy(), **settings)
        asker = self.host.asker

        async def hasty(effect: Effect[Any]) -> Any:
            return effect.pause_ms if isinstance(effect, Pause) else await asker.perform(effect)

        self.host.asker, self.host.tasks = asker._replace(perform=hasty), TrulyCancelled(self)

    def cancelled(self, work: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        if self.truly_at is None or next(self.spawned) != self.truly_at[0]:
            return work
        self.truly = CancelAt(work, self.truly_at[1])
        return self.truly.run()

    async def ask(self, wire: Wire | None = None, **request: Any) -> Wire:
        wire = wire or Wire(**request)
        await self(wire.scope, wire.receive, wire.send)
        return wire

    async def settled(self) -> None:
        """Until nothing that was begun goes on."""
        await self.host.tasks.drain()
        await asyncio.sleep(0)

    def lapse(self) -> None:
        self.clock.now_ms += LEASE_MS + 1


class CancelAt:
    """Runs a coroutine and cancels its task at its n-th suspension."""

    def __init__(self, work: Coroutine[Any, Any, Any], at: int) -> None:
        self._work = work
        self._at = at
        self.suspensions = 0

    async def run(self) -> Any:
        return await self

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[..., Any] = self._work.send
        given: Any = None
        while True:
            try:
                waited_for = step(given)
            except StopIteration as stop:
                return stop.value
            self.suspensions += 1
            if self.suspensions == self._at:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                step, given = self._work.send, (yield waited_for)
            except BaseException as error:
                step, given = self._work.throw, error
