"""Stores that fail, loops that end, servers that stop."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from asgi_calls import Front, Wire, Work, on_loop, reply

from semel import NotExecuted, Policy, RecordUnreadable, open_store
from semel.asgi import IdempotencyMiddleware
from semel.asgi.types import Message, Receive, Scope, Send
from semel.core.effects import Claim, Complete, Read, Release
from semel.events import Event, EventKind
from semel.runtime.operation import current_operation
from semel.stores.memory import AsyncMemoryStore


@pytest.mark.parametrize("fault", ["before", "after"])
@on_loop
async def test_closed_nothing_runs_while_the_store_cannot_decide(fault: str) -> None:
    events: list[Event] = []
    front = Front(work := Work(), on_event=events.append)
    front.memory.faults[Claim] = fault
    wire = await front.ask()
    assert (wire.status, wire.problem, wire.header("retry-after")) == (503, "store-unavailable", "1")
    assert events[0].kind is EventKind.STORE_FAILED  # what was granted after all is reported as released, later
    front.memory.faults.clear()
    await front.settled()
    assert (await front.ask()).status == 201, "the claim that may have happened was not given back"
    assert work.effects == 1


@on_loop
async def test_open_the_work_runs_and_its_answer_is_marked() -> None:
    derived: list[str] = []

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        operation = current_operation()
        assert operation is not None
        derived.append(operation.derive("psp"))
        await reply(200, b"x", (b"semel-directive", b"not-kept"), (b"a", b"1"))(scope, receive, send)

    front = Front(work := Work(answer), Policy(on_store_error="open"), secret="a secret of the tests")
    front.memory.faults[Claim] = "before"
    for headers in ([], [("prefer", "respond-async")]):
        wire = await front.ask(headers=headers)
        assert (wire.status, wire.body) == (200, b"x")
        assert wire.headers == [(b"a", b"1"), (b"idempotency-stored", b"false")]
    assert derived[0] == derived[1]
    assert work.effects == 2


@pytest.mark.parametrize("fault", ["before", "after"])
@on_loop
async def test_a_result_that_cannot_be_stored_is_marked_and_the_key_never_runs_again(fault: str) -> None:
    events: list[Event] = []
    front = Front(work := Work(), on_event=events.append)
    front.memory.faults[Complete] = fault
    front.memory.faults[Read] = fault  # else one look would tell what became of it
    wire = await front.ask()
    assert (wire.status, wire.body, wire.header("idempotency-stored")) == (201, b"done 1", "false")
    assert EventKind.NOT_STORED in [event.kind for event in events]
    front.memory.faults.clear()
    front.lapse()
    again = await front.ask()
    assert work.effects == 1
    if fault == "before":
        assert again.problem == "outcome-unknown"
    else:
        assert again.body == b"done 1"


@on_loop
async def test_a_result_whose_every_reply_is_lost_is_found_by_one_look() -> None:
    events: list[Event] = []
    front = Front(work := Work(), on_event=events.append)
    front.memory.faults[Complete] = "after"
    wire = await front.ask()
    assert (wire.status, wire.body, wire.header("idempotency-stored")) == (201, b"done 1", None)
    assert EventKind.COMPLETED in [event.kind for event in events]
    assert (await front.ask()).body == b"done 1"
    assert work.effects == 1


@on_loop
async def test_a_release_that_cannot_be_stored_is_marked_and_becomes_unknown() -> None:
    async def answer(*_: object) -> None:
        raise NotExecuted("no")

    front = Front(work := Work(answer))
    front.memory.faults[Release] = "before"
    wire = await front.ask()
    assert (wire.problem, wire.header("idempotency-stored")) == ("not-executed", "false")
    front.memory.faults.clear()
    assert (await front.ask()).problem == "in-progress"
    front.lapse()
    assert (await front.ask()).problem == "outcome-unknown"
    assert work.effects == 1


@on_loop
async def test_a_record_that_cannot_be_read_is_never_treated_as_absent() -> None:
    front = Front(work := Work())
    front.memory.faults[Claim] = RecordUnreadable("version 9")
    assert (await front.ask()).problem == "record-unreadable"
    assert work.effects == 0


@on_loop
async def test_a_superseded_owner_answers_with_what_the_store_holds() -> None:
    go = asyncio.Event()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["effect"] == 1:
            await go.wait()
        await reply(200, b"%d")(scope, receive, send)

    front = Front(work := Work(answer), Policy(guarantee="at-least-once"))
    first = Wire()
    asking = asyncio.create_task(front.ask(first))
    while not work.effects:
        await asyncio.sleep(0)
    front.lapse()
    second = await front.ask()
    go.set()
    await asking
    assert (first.body, second.body, work.effects) == (b"2", b"2", 2)
    assert first.header("idempotent-replayed") == "true"


@on_loop
async def test_a_key_past_retention_is_new_or_refused() -> None:
    day_ms = 24 * 3600 * 1000
    new = Front(work := Work())
    await new.ask()
    new.clock.now_ms += day_ms
    assert ((await new.ask()).body, work.effects) == (b"done 2", 2)
    refuse = Front(work := Work(), Policy(expired="refuse"))
    await refuse.ask()
    refuse.clock.now_ms += day_ms
    assert (await refuse.ask()).problem == "key-expired"
    assert (await refuse.ask(chunks=[b"other"])).problem == "key-reused"
    refuse.clock.now_ms += day_ms
    assert ((await refuse.ask()).status, work.effects) == (201, 2)


async def lifespan(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


async def stop(front: IdempotencyMiddleware) -> list[Message]:
    messages, sent = iter(["lifespan.startup", "lifespan.shutdown"]), []

    async def receive() -> Message:
        return {"type": next(messages)}

    async def send(message: Message) -> None:
        sent.append(message)

    await front({"type": "lifespan"}, receive, send)
    return sent


@on_loop
async def test_shutdown_closes_only_what_is_ours() -> None:
    class Closing(AsyncMemoryStore):
        closed = 0

        async def close(self) -> None:
            self.closed += 1

    given = Closing()
    await stop(IdempotencyMiddleware(lifespan, store=given))
    assert given.closed == 0
    ours = IdempotencyMiddleware(lifespan, store="memory://")
    closing = ours.host.store = Closing()
    assert [message["type"] for message in await stop(ours)] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    assert closing.closed == 1


@on_loop
async def test_shutdown_waits_for_work_whose_caller_is_gone() -> None:
    go = asyncio.Event()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await go.wait()
        await reply(200, b"x")(scope, receive, send)

    work = Work(answer)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (lifespan if scope["type"] == "lifespan" else work)(scope, receive, send)

    front = Front(app)
    asking = asyncio.create_task(front.ask())
    while not work.effects:
        await asyncio.sleep(0)
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    stopping = asyncio.create_task(stop(front))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not stopping.done()
    go.set()
    await stopping
    assert (await front.ask()).body == b"x"


@on_loop
async def test_websockets_pass_through() -> None:
    seen: list[Any] = []

    async def app(*given: Any) -> None:
        seen.append(given)

    front, wire = Front(app), Wire()
    scope = {"type": "websocket", "headers": [(b"idempotency-key", b"k")]}
    await front(scope, wire.receive, wire.send)
    assert seen == [(scope, wire.receive, wire.send)]


def test_one_middleware_in_two_loops(tmp_path: Path) -> None:
    front = IdempotencyMiddleware(work := Work(), store=f"sqlite:///{tmp_path}/semel.db", identify=lambda scope: "t")
    bodies = []
    for _ in range(2):
        wire = Wire.__new__(Wire)

        async def ask(wire: Wire = wire) -> None:
            wire.__init__()  # type: ignore[misc]
            await front(wire.scope, wire.receive, wire.send)

        asyncio.run(ask())
        bodies.append(wire.body)
    assert (bodies, work.effects) == ([b"done 1", b"done 1"], 1)


def test_a_loop_that_ends_leaves_the_outcome_unknown(tmp_path: Path) -> None:
    """What `asyncio.run` does to a task that is left: it is truly cancelled."""

    async def forever(*_: object) -> None:
        await asyncio.Event().wait()

    front = Front(work := Work(forever))

    async def ask() -> None:
        task = asyncio.create_task(front.ask())
        while not work.effects:
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(ask())
    front.lapse()

    async def again() -> str:
        return (await front.ask()).problem

    assert (asyncio.run(again()), work.effects) == ("outcome-unknown", 1)


def test_what_is_refused_and_warned_of_at_start_up(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TypeError, match="open_async_store"):
        IdempotencyMiddleware(lifespan, store=open_store("memory://"))  # type: ignore[arg-type]
    caplog.clear()
    IdempotencyMiddleware(lifespan, store="memory://", identify=lambda scope: "t")
    assert caplog.text == ""
    IdempotencyMiddleware(lifespan, store="memory://")
    assert "identify=" in caplog.text
