"""A simulated process: an event loop, the real middleware and the application in it. It can be killed and restarted."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from semel.asgi import IdempotencyMiddleware
from semel.asgi.types import Message, Scope
from semel.core.http import Response
from semel.events import Event
from simulation.application import application
from simulation.loop import VirtualLoop
from simulation.scenario import Operation, ProcessFault, policy_of
from simulation.store import RemoteStore, WatchableStore

if TYPE_CHECKING:
    from simulation.callers import Calling
    from simulation.history import History
    from simulation.world import World

SECRET = b"0123456789abcdef0123456789abcdef"
WORKS = frozenset({"_work", "_run_app"})
"""The tasks of a request with a transaction: the one that begins and ends it, and the one of its application."""
AGAIN_MS = 1_000
SHUTDOWN_MS = 2_000
"""How long a server that stops lets its cancelled tasks end."""


class AnyProcess:
    """One life of a server process: its event loop, the middleware in it, and what may happen to both."""

    front: IdempotencyMiddleware

    def __init__(self, world: History[Any, Any, Any], index: int, life: int) -> None:
        self.world: History[Any, Any, Any] = world
        self.index = index
        self.name = f"p{index}" + "'" * life
        self.life = life
        self.loop = VirtualLoop(world.time)
        self.disturbed = False

    def expect(self, fault: ProcessFault) -> None:
        self.loop.on_step[max(1, fault.step)] = partial(self._strike, fault)

    def _strike(self, fault: ProcessFault) -> None:
        self.disturbed = True
        self.world.note(self.name, "{} ({} ms)", fault.kind, fault.ms)
        self.world.reached.add(f"process {fault.kind}")
        match fault.kind:
            case "crash":
                self.crash(fault.ms)
            case "pause":
                self.loop.pause(fault.ms)
            case "clock":
                self.loop.jump(fault.ms)
            case "cancel":
                self._cancel_work(again=fault.ms <= AGAIN_MS)
            case "shutdown":
                for task in list(self.loop.tasks):
                    task.cancel()
                self.world.time.after_ms(SHUTDOWN_MS, self.crash, fault.ms)

    def _cancel_work(self, *, again: bool) -> None:
        """A task of one request is cancelled, by its server or by a time limit; some insist."""
        open_tasks = [task for task in self.loop.tasks if not task.done()]
        works = [task for task in open_tasks if getattr(task.get_coro(), "__name__", "") in WORKS]
        if works:
            self.world.reached.add("work cancelled")
            chosen = self.world.time.rng.choice(works)
            chosen.cancel()
            if again:
                self.world.time.after_ms(1, chosen.cancel)

    def crash(self, down_ms: int) -> None:
        """kill -9: nothing of it runs any more. A new life begins later."""
        if self.loop.dead:
            return
        self.loop.dead = self.disturbed = True
        self.world.note(self.name, "dies")
        self.world.oracle.crashed(self)
        self.world.time.after_ms(down_ms, self.world.start, self.index, self.life + 1)


class Process(AnyProcess):
    """One whose middleware asks the simulated store."""

    world: World

    def __init__(self, world: World, index: int, life: int) -> None:
        super().__init__(world, index, life)
        self.store = (WatchableStore if world.scenario.watchable else RemoteStore)(self)
        self.front = IdempotencyMiddleware(
            partial(application, world),
            store=self.store,
            policy=policy_of(world.scenario.choices),
            identify=lambda scope: scope["simulation"].operation.tenant,
            secret=SECRET,
            on_event=self._happened,
        )

    def _happened(self, event: Event) -> None:
        if not self.loop.dead:
            self.world.reached.add(event.kind.value)
            self.world.oracle.happened(event)


class Request:
    """One request at a server: what ASGI says about it, and what was sent for it."""

    def __init__(
        self,
        process: AnyProcess,
        calling: Calling | None,
        operation: Operation,
        headers: list[tuple[bytes, bytes]],
        monitor: str = "",
    ) -> None:
        world = process.world
        self.process = process
        self.world = world
        self.calling = calling
        self.operation = operation
        self.monitor = monitor
        self.number = world.oracle.begin(self)
        self.sent_s = world.time.now_s
        self.response: Response | None = None
        self.left = False
        self._body: bytes | None = operation.body.encode()
        self._gone: asyncio.Future[None] = process.loop.create_future()
        self._start: Message = {}
        self._chunks: list[bytes] = []
        path = monitor or operation.path
        scope: Scope = {
            "type": "http",
            "method": "GET" if monitor else "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [
                (b"idempotency-key", operation.name.encode()),
                (b"x-request-id", f"r{self.number}".encode()),
                *headers,
            ],
            "simulation": self,
        }
        self.task = process.loop.create_task(process.front(scope, self._receive, self._send))
        self.task.add_done_callback(self._done)

    def disconnect(self) -> None:
        self.left = True
        if not self._gone.done():
            self._gone.set_result(None)

    def cancel(self) -> None:
        self.left = True
        self.task.cancel()

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.shield(self._gone)
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        else:
            self._chunks.append(message["body"])
            if not message.get("more_body", False):
                headers = tuple(self._start["headers"])
                self.response = Response(self._start["status"], headers, b"".join(self._chunks))
                self.world.oracle.replied(self, self.response)
                if self.calling is not None:
                    self.world.time.after_ms(1, self.calling.answered, self, self.response)
        await asyncio.sleep(0)

    def _done(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        self.world.oracle.ended(self, error)
