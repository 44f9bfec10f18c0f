"""The application behind the middleware. What it does is written into a ledger that no simulated process owns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from semel.asgi.types import Receive, Scope, Send
from semel.core.http import Response
from semel.errors import NotExecuted
from semel.runtime.operation import current_operation
from simulation.scenario import RESULT_MAX

if TYPE_CHECKING:
    from simulation.oracle import Entry
    from simulation.world import World

STATUS = {"created": 201, "streamed": 200, "empty": 204, "redirect": 303, "refused": 429, "conflict": 409}
STATUS |= {"failed": 502, "raised-after-answer": 500, "nothing-done": 412, "large": 200, "unfinished": 200}


class WorkFailed(Exception):
    """The work raises this."""


async def application(world: World, scope: Scope, receive: Receive, send: Send) -> None:
    request = scope["simulation"]
    if request.monitor:
        raise AssertionError("a monitor is the middleware's")
    operation = current_operation()
    assert operation is not None
    entry = world.oracle.entered(request, operation)
    await receive()
    await asyncio.sleep(entry.work.before_ms / 1000)
    outcome = entry.work.outcome
    if entry.declares_nothing:
        entry.nothing = True
        operation.nothing_was_done = outcome == "nothing-done"
    else:
        world.oracle.effect(entry)
    await asyncio.sleep(entry.work.after_ms / 1000)
    if outcome == "not-executed":
        raise NotExecuted("not now")
    if outcome == "raised":
        raise WorkFailed("as the scenario has it")
    entry.answer = answer_of(entry)
    await _answer(entry, send)
    if outcome == "raised-after-answer":
        raise WorkFailed("as the scenario has it")


async def _answer(entry: Entry, send: Send) -> None:
    answer = entry.answer
    assert answer is not None
    await send({"type": "http.response.start", "status": answer.status, "headers": list(answer.headers)})
    if entry.work.outcome == "unfinished":
        return
    parts = 2 if entry.work.outcome in ("streamed", "large") else 1
    size = -(-len(answer.body) // parts) or 1
    for part in range(parts):
        chunk = answer.body[part * size : (part + 1) * size]
        await send({"type": "http.response.body", "body": chunk, "more_body": part < parts - 1})


def answer_of(entry: Entry) -> Response:
    """Names the entry and the operation, so that a reader can tell whose answer it is."""
    operation = entry.request.operation
    text = f"entry {entry.number} of {operation.tenant} {operation.path} {operation.body}"
    if entry.work.outcome == "large":
        text = text.ljust(2 * RESULT_MAX)
    headers = (
        (b"x-entry", str(entry.number).encode()),
        (b"x-part", b"one"),
        (b"set-cookie", b"session=1"),
        (b"X-Part", b"two"),
    )
    return Response(STATUS[entry.work.outcome], headers, b"" if entry.work.outcome == "empty" else text.encode())
