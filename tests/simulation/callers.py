"""Callers: each has an operation, tries it as often as the scenario says, loses patience, leaves, comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.core.http import Response
from simulation.process import Request
from simulation.scenario import Caller, Try

if TYPE_CHECKING:
    from simulation.history import History

REFUSED_MS = 20


class Calling:
    """One caller at work."""

    def __init__(self, world: History[Any, Any, Any], caller: Caller, name: str) -> None:
        self.world = world
        self.name = name
        self.stops = caller.stops
        self.operation = world.scenario.operations[caller.operation]
        self._tries = list(caller.tries)
        self._current: Request | None = None
        self._monitor = ""

    def next(self) -> None:
        if self._tries:
            this = self._tries.pop(0)
            self.world.time.after_ms(this.pause_ms, self._send, this)

    def _send(self, this: Try) -> None:
        process = self.world.processes[this.process]
        if process.loop.dead:
            self.world.reached.add("connection refused")
            self.world.time.after_ms(REFUSED_MS, self.next)
            return
        headers = [] if this.prefer_s is None else [(b"prefer", b"respond-async, wait=%d" % this.prefer_s)]
        monitor, self._monitor = self._monitor, ""
        request = self._current = Request(process, self, self.operation, headers, monitor)
        self.world.note(self.name, "r{} to {}{}", request.number, process.name, " (monitor)" if monitor else "")
        self.world.time.after_ms(this.patience_ms, self._lose_patience, request, this)

    def _lose_patience(self, request: Request, this: Try) -> None:
        if request is not self._current:
            return
        if not request.process.loop.dead and this.leaves != "waits":
            self.world.note(self.name, "r{} {}", request.number, this.leaves)
            self.world.reached.add(f"caller {this.leaves}")
            request.disconnect() if this.leaves == "disconnects" else request.cancel()
        self._current = None
        self.next()

    def answered(self, request: Request, response: Response) -> None:
        if request is not self._current or request.left:
            self.world.reached.add("answer to nobody")
            return
        self._current = None
        headers = dict(response.headers)
        self._monitor = headers[b"location"].decode() if response.status == 202 and b"location" in headers else ""
        if self._monitor or b"retry-after" in headers or not self.stops:
            self.next()
