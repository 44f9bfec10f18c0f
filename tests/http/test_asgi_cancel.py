"""Cancellation at every await: of the caller, which stops nothing, and of the work, whose outcome is then unknown."""

import asyncio
import contextlib
import itertools

import pytest
from asgi_calls import CancelAt, Front, Wire, Work, on_loop, reply

from semel import Policy, State
from semel.asgi.types import Receive, Scope, Send
from semel.events import Event, EventKind

AWAITS_MAX = 60


async def repeat_after_lapse(front: Front, work: Work) -> Wire:
    front.lapse()
    front.truly_at = None
    again = await front.ask()
    await front.settled()
    assert work.effects <= 1
    return again


@on_loop
async def test_the_caller_is_cancelled_at_every_step_of_the_loop() -> None:
    ran: set[int | None] = set()
    for at in itertools.count(1):
        front = Front(work := Work())
        asking = asyncio.create_task(front.ask())
        for _ in range(at):
            await asyncio.sleep(0)
        in_time = asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        await front.settled()
        record = await front.memory.record()
        if work.effects:
            assert record is not None
            assert record.state is State.SUCCEEDED, f"the work was lost at await {at}"
        else:
            assert record is None, f"a key nobody ran was kept at await {at}"
        ran |= {work.effects if in_time else None}
        again = await repeat_after_lapse(front, work)
        assert (again.status, again.body) == (201, b"done 1")
        assert work.effects == 1
        if not in_time:
            break
        assert at < AWAITS_MAX
    assert ran == {None, 0, 1}


@pytest.mark.parametrize("status", [201, 500])
@pytest.mark.parametrize("task", [1, 2, 3])
@on_loop
async def test_the_work_is_truly_cancelled_at_every_await(task: int, status: int) -> None:
    states = set()
    for at in itertools.count(1):
        front = Front(work := Work(reply(status, b"done", then=lambda: asyncio.sleep(0))))
        front.truly_at = (task, at)
        with contextlib.suppress(asyncio.CancelledError):
            await front.ask()
        await front.settled()
        record = await front.memory.record()
        assert work.effects <= 1
        states.add((work.effects, record and record.state))
        again = await repeat_after_lapse(front, work)
        assert work.effects <= 1
        if record is not None and record.state is State.IN_PROGRESS:
            assert (again.status, again.problem) == (409, "outcome-unknown")
        elif record is not None:
            assert (again.status, again.body) == (status, b"done")
        if front.truly is None or front.truly.suspensions < at:
            break
        assert at < AWAITS_MAX
    final = State.SUCCEEDED if status < 400 else State.FAILED
    assert (1, final) in states  # the last round is not cancelled
    if task == 1:
        assert (1, State.IN_PROGRESS) in states


@on_loop
async def test_the_work_is_taken_over_after_cancellation_where_that_was_chosen() -> None:
    for at in itertools.count(1):
        front = Front(work := Work(), Policy(guarantee="at-least-once"))
        front.truly_at = (1, at)
        with contextlib.suppress(asyncio.CancelledError):
            await front.ask()
        await front.settled()
        front.truly_at = None
        front.lapse()
        again = await front.ask()
        assert again.status == 201
        assert 1 <= work.effects <= 2
        record = await front.memory.record()
        assert record is not None
        assert record.state is State.SUCCEEDED
        if front.truly is None or front.truly.suspensions < at:
            break


@on_loop
async def test_a_gone_callers_failure_still_reaches_the_logs(caplog: pytest.LogCaptureFixture) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    async def slow(*_: object) -> None:
        started.set()
        await go.wait()
        raise LookupError("deep inside")

    front = Front(Work(slow))
    asking = asyncio.create_task(front.ask())
    await started.wait()
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    go.set()
    await front.settled()
    assert [repr(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["LookupError('deep inside')"]
    again = await front.ask()
    assert (again.status, again.problem) == (500, "internal-error")


@on_loop
async def test_an_application_that_is_cancelled_while_its_answer_is_stored_has_answered() -> None:
    """As under a time-out of its own: the caller gets the answer, and nobody is told that the outcome is unknown."""
    for at in range(1, 6):  # every await of the completion, and the first one of sending

        async def impatient(scope: Scope, receive: Receive, send: Send, at: int = at) -> None:
            await send({"type": "http.response.start", "status": 201, "headers": []})
            sending = asyncio.create_task(CancelAt(send({"type": "http.response.body", "body": b"done"}), at).run())  # type: ignore[arg-type]
            with contextlib.suppress(asyncio.CancelledError):
                await sending

        events: list[Event] = []
        front = Front(work := Work(impatient), on_event=events.append)
        wire = await front.ask()
        await front.settled()
        record = await front.memory.record()
        assert record is not None
        assert record.state is State.SUCCEEDED, f"the answer was lost at await {at}"
        assert [event.kind for event in events] == [EventKind.CLAIMED, EventKind.COMPLETED]
        if at <= 2:  # the store's two awaits
            assert (wire.status, wire.body) == (201, b"done")
        again = await front.ask()
        assert (again.status, again.body, work.effects) == (201, b"done", 1)
