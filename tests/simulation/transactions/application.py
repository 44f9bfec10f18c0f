"""The application of a history with transactions: it writes rows through `store.current()`, and answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from semel.asgi.types import Receive, Scope, Send
from semel.core.http import Response
from semel.errors import NotExecuted, OutcomeUnknown
from semel.runtime.operation import current_operation
from simulation.application import STATUS as STATUS_BEFORE
from simulation.application import WorkFailed
from simulation.transactions.database import DatabaseError
from simulation.transactions.scenario import HELD_MAX, RESULT_MAX

if TYPE_CHECKING:
    from simulation.transactions.oracle import Entry
    from simulation.transactions.process import TransactionProcess

STATUS = {**STATUS_BEFORE, "raised-midway": 200, "raised-late": 201, "swallowed": 201, "too-long": 200}
STREAMED = frozenset({"streamed", "large", "too-long", "raised-midway"})
DECLARED = frozenset({"not-executed", "nothing-done", "unknown"})
"""Says before it answers that nothing was done, or that its outcome is unknown."""
LATE_MS = 5


async def application(process: TransactionProcess, scope: Scope, receive: Receive, send: Send) -> None:
    request = scope["simulation"]
    if request.monitor:
        raise AssertionError("a monitor is the middleware's")
    operation = current_operation()
    assert operation is not None
    entry = process.world.oracle.entered(request, operation)
    try:
        await receive()
        await _work(process, entry, send)
    finally:
        entry.leave()


async def _work(process: TransactionProcess, entry: Entry, send: Send) -> None:
    outcome = entry.work.outcome
    entry.take(process.store.current())
    await asyncio.sleep(entry.work.before_ms / 1000)
    if outcome == "raised-early":
        raise WorkFailed("as the scenario has it")
    await _write(entry)
    await asyncio.sleep(entry.work.after_ms / 1000)
    entry.nothing = outcome in DECLARED
    if outcome == "nothing-done":
        operation = current_operation()
        assert operation is not None
        operation.nothing_done()
    elif outcome == "not-executed":
        raise NotExecuted("not now")
    elif outcome == "unknown":
        raise OutcomeUnknown("the bank did not answer")
    elif outcome == "raised":
        raise WorkFailed("as the scenario has it")
    entry.answer = answer_of(entry)
    await _answer(entry, send)
    if outcome == "raised-late":
        await asyncio.sleep(LATE_MS / 1000)
    if outcome in ("raised-after-answer", "raised-late"):
        raise WorkFailed("as the scenario has it")


async def _write(entry: Entry) -> None:
    """The next row of this run. Most handlers let an error of the database through."""
    assert entry.connection is not None
    part, entry.written = entry.written, entry.written + 1
    try:
        await entry.connection.write(entry.number, part)
    except DatabaseError:
        if entry.work.outcome != "swallowed":
            raise


async def _answer(entry: Entry, send: Send) -> None:
    """A streamed answer has rows between its parts. The last part says that the handler is done with its rows."""
    answer = entry.answer
    assert answer is not None
    await send({"type": "http.response.start", "status": answer.status, "headers": list(answer.headers)})
    if entry.work.outcome == "unfinished":
        return
    parts = 3 if entry.work.outcome in STREAMED else 1
    size = -(-len(answer.body) // parts) or 1
    for part in range(parts):
        await _write(entry)
        if part:
            await asyncio.sleep(entry.work.before_ms / 1000)
        if part == parts - 1:
            entry.done()
            entry.nothing = entry.nothing or entry.work.outcome == "refused"
        chunk = answer.body[part * size : (part + 1) * size]
        try:
            await send({"type": "http.response.body", "body": chunk, "more_body": part < parts - 1})
        except DatabaseError:
            if entry.work.outcome != "swallowed":
                raise
        if entry.work.outcome == "raised-midway":
            raise WorkFailed("as the scenario has it")


def rows_of(outcome: str) -> int:
    """How many rows a run writes that ends well."""
    return 4 if outcome in STREAMED else 2


def answer_of(entry: Entry) -> Response:
    """Names the entry and the operation, so that a reader can tell whose answer it is."""
    operation, outcome = entry.request.operation, entry.work.outcome
    text = f"entry {entry.number} of {operation.tenant} {operation.path} {operation.body}"
    if outcome in ("large", "too-long"):
        text = text.ljust(2 * RESULT_MAX if outcome == "large" else 2 * HELD_MAX, ".")
    headers = (
        (b"x-entry", str(entry.number).encode()),
        (b"x-part", b"one"),
        (b"set-cookie", b"session=1"),
        (b"X-Part", b"two"),
    )
    return Response(STATUS[outcome], headers, b"" if outcome == "empty" else text.encode())
