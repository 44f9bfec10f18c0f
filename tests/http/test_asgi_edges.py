"""Edges that an attacker or an outage would find: rewritten paths, others' marks, open stores, streams without end."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from asgi_calls import Front, Wire, Work, on_loop, reply

from semel import NotExecuted, Policy, StoreMisconfigured, current_operation
from semel.asgi.types import App, Message, Receive, Scope, Send
from semel.core.effects import Claim, Complete
from semel.runtime import tasks


@on_loop
async def test_a_path_that_was_rewritten_in_front_of_us_is_the_one_that_counts() -> None:
    work = Work()
    front = Front(work)
    for path in ("/a/pay", "/b/pay"):
        wire = Wire(path="/tenant/pay")
        wire.scope["path"] = path
        await front(wire.scope, wire.receive, wire.send)
        assert wire.header("idempotent-replayed") is None
    assert work.effects == 2, "raw_path still says the same for both"


@on_loop
async def test_the_marks_of_another_protected_service_are_not_passed_on_as_ours() -> None:
    headers = [(b"Idempotent-Replayed", b"true"), (b"x-kept", b"1"), (b"Idempotency-Stored", b"false")]
    front = Front(Work(reply(201, b"", *headers)))
    first, repeat = Wire(), Wire()
    for wire in (first, repeat):
        await front(wire.scope, wire.receive, wire.send)
    assert first.headers == [(b"x-kept", b"1")]
    assert repeat.headers == [(b"x-kept", b"1"), (b"idempotent-replayed", b"true")]


@on_loop
async def test_an_endless_stream_ends_when_its_caller_leaves() -> None:
    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        left = asyncio.ensure_future(receive())
        while not left.done():
            await send({"type": "http.response.body", "body": b"x" * 100, "more_body": True})
        assert left.result()["type"] == "http.disconnect"

    front = Front(Work(endless), Policy(result_max=1_000))
    wire = Wire()
    running = asyncio.ensure_future(front(wire.scope, wire.receive, wire.send))
    while len(wire.body) < 2_000:
        await asyncio.sleep(0)
    wire.gone.set()
    await asyncio.wait({running})


@on_loop
async def test_accepted_work_without_callers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "DETACHED_MAX", 2)
    release = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await release.wait()
        await reply(201, b"done")(scope, receive, send)

    front = Front(Work(slow), secret="a secret of the tests")
    wires = [Wire(key=f"k{number}", headers=[("prefer", "respond-async")]) for number in range(3)]
    asking = [asyncio.ensure_future(front(wire.scope, wire.receive, wire.send)) for wire in wires]
    await asyncio.wait(asking[:2])
    assert [wire.status for wire in wires] == [202, 202, None], "the third one waits as usual"
    release.set()
    await asyncio.wait(asking)
    assert wires[2].status == 201


@on_loop
async def test_a_monitor_shows_the_request_that_was_accepted_and_no_later_one() -> None:
    """The accepted operation gives its key back, and another request takes it: that one's answer is not shown."""
    release = asyncio.Event()

    async def refused(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["effect"] == 1:
            await release.wait()
            raise NotExecuted("closed")
        await reply(201, b"somebody else's")(scope, receive, send)

    front = Front(Work(refused), secret="a secret of the tests")
    first = Wire((b"one",), headers=[("prefer", "respond-async")])
    await front(first.scope, first.receive, first.send)
    monitor = first.header("location")
    assert first.status == 202
    assert monitor is not None
    release.set()
    await front.settled()
    other = Wire((b"two",))
    await front(other.scope, other.receive, other.send)
    assert other.status == 201
    shown = Wire((b"",), key=None, method="GET", path=monitor)
    await front(shown.scope, shown.receive, shown.send)
    assert b"somebody else" not in shown.body
    assert shown.problem == "key-expired"


@on_loop
async def test_work_that_ran_although_the_store_was_away_is_not_free_to_run_again() -> None:
    """Fail open: the claim was stored and its reply lost. Giving it back would say that nothing ran."""
    work = Work()
    front = Front(work, Policy(on_store_error="open"))
    front.memory.faults[Claim] = "after"
    first = Wire()
    await front(first.scope, first.receive, first.send)
    assert (first.status, first.header("idempotency-stored")) == (201, "false")
    front.memory.faults.clear()
    await front.settled()
    repeat = Wire()
    await front(repeat.scope, repeat.receive, repeat.send)
    assert repeat.problem == "in-progress", "and unknown when its lease has lapsed"
    assert work.effects == 1


class Curious(Wire):
    """Notes what is current when the server is asked for something: whatever it begins then inherits that."""

    def __init__(self) -> None:
        super().__init__()
        self.current: list[object] = []

    async def receive(self) -> Message:
        self.current.append(current_operation())
        return await super().receive()

    async def send(self, message: Message) -> None:
        self.current.append(current_operation())
        await super().send(message)


async def answers(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"x" * 10})


async def asks_afterwards(scope: Scope, receive: Receive, send: Send) -> None:
    await answers(scope, receive, send)
    assert (await receive())["type"] == "http.disconnect"


async def raises(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotExecuted


@pytest.mark.parametrize("answer", [answers, asks_afterwards, raises])
@pytest.mark.parametrize("kept", ["kept", "too large", "not stored", "open"])
@on_loop
async def test_what_the_server_begins_with_an_answer_is_not_part_of_the_operation(answer: App, kept: str) -> None:
    """It takes up the next request of the connection then, which is somebody else's behind a proxy."""
    wire = Curious()

    async def work(scope: Scope, receive: Receive, send: Send) -> None:
        inside = current_operation()
        assert inside is not None
        wire.gone.set()
        try:
            await answer(scope, receive, send)
        finally:
            assert current_operation() is inside, "background tasks belong to it"

    front = Front(Work(work), Policy(result_max=5 if kept == "too large" else 100, on_store_error="open"))
    if kept in ("not stored", "open"):
        front.memory.faults[Complete if kept == "not stored" else Claim] = StoreMisconfigured("away")
    with suppress(NotExecuted):  # what the store does not protect is the server's to answer
        await front(wire.scope, wire.receive, wire.send)
    await front.settled()
    assert len(wire.current) > 1 or (kept, answer) == ("open", raises)
    assert set(wire.current) == {None}
