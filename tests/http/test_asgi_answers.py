"""What an application may do with its answer, and what becomes of it."""

import asyncio
import tracemalloc
from contextlib import nullcontext
from typing import Any

import pytest
from asgi_calls import Front, Wire, Work, on_loop, reply

from semel import NotExecuted, Policy, Record, State
from semel.asgi.types import Message, Receive, Scope, Send
from semel.http.answers import Unfinished
from semel.runtime.operation import current_operation


async def record_of(front: Front) -> Record:
    record = await front.memory.record()
    assert record is not None
    return record


async def same_twice(front: Front, work: Work) -> tuple[Wire, Wire]:
    first, again = await front.ask(), await front.ask()
    assert work.effects == 1
    assert again.headers == [*first.headers, (b"idempotent-replayed", b"true")]
    assert (first.status, first.body) == (again.status, again.body)
    return first, again


@pytest.mark.parametrize("status", [200, 201, 204, 302, 400, 404, 409, 500, 502])
@pytest.mark.parametrize("body", [b"", b"\x00\xff", b'{"a": 1}'])
@on_loop
async def test_every_answer_is_replayed_byte_for_byte(status: int, body: bytes) -> None:
    headers = [(b"content-type", b"x/y"), (b"X-A", b"1"), (b"x-a", b"2"), (b"x-a", b"1")]
    front = Front(work := Work(reply(status, body, *headers)))
    first, _ = await same_twice(front, work)
    assert first.headers == headers
    assert (await record_of(front)).state is (State.SUCCEEDED if status < 400 else State.FAILED)


@on_loop
async def test_a_replay_leaves_out_what_belongs_to_the_first_caller() -> None:
    front = Front(Work(reply(200, b"x", (b"Set-Cookie", b"s=1"), (b"Date", b"now"), (b"Server", b"s"), (b"x", b"1"))))
    first, again = await front.ask(), await front.ask()
    assert len(first.headers) == 4
    assert again.headers == [(b"x", b"1"), (b"idempotent-replayed", b"true")]


@pytest.mark.parametrize("status", [401, 403, 407, 408, 425, 429, 503])
@on_loop
async def test_a_refusal_before_running_gives_the_key_back(status: int) -> None:
    front = Front(work := Work(reply(status)))
    assert [(await front.ask()).status for _ in range(2)] == [status, status]
    assert work.effects == 2
    assert await front.memory.record() is None


def chunks(*messages: dict[str, Any]) -> Work:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    return Work(answer)


START = {"type": "http.response.start", "status": 200, "headers": [(b"a", b"1")]}


def part(body: bytes, more: bool | None = None) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body} | ({} if more is None else {"more_body": more})


@pytest.mark.parametrize(
    "messages",
    [
        [START, part(b"abc")],
        [START, part(b"abc", False)],
        [START, part(b"a", True), part(b"", True), part(b"bc", True), {"type": "http.response.body"}],
        [{"type": "http.response.start", "status": 200, "headers": [[b"a", b"1"]]}, part(b"abc")],
        [START, part(b"abc"), part(b"late"), part(b"later", True), START],
    ],
)
@on_loop
async def test_chunks_are_collected_whatever_more_body_says_and_nothing_after_the_end_counts(
    messages: list[dict[str, Any]],
) -> None:
    front = Front(work := chunks(*messages))
    first, _ = await same_twice(front, work)
    assert (first.headers, first.body) == ([(b"a", b"1")], b"abc")


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([], Unfinished),
        ([START], Unfinished),
        ([START, part(b"a", True)], Unfinished),
        ([START, START, part(b"a")], RuntimeError),
        ([part(b"a"), START], RuntimeError),
        (
            [
                {"type": "http.response.start", "status": 200, "headers": [(b"semel-directive", b"nonsense")]},
                part(b"a"),
            ],
            ValueError,
        ),
    ],
)
@on_loop
async def test_a_broken_answer_is_treated_as_if_the_work_had_raised(
    messages: list[dict[str, Any]], error: type[Exception]
) -> None:
    front, wire = Front(work := chunks(*messages)), Wire()
    with pytest.raises(error):
        await front.ask(wire)
    again = await front.ask()
    assert work.effects == 1
    assert (wire.status, wire.problem, wire.body) == (500, "internal-error", again.body)
    assert again.header("idempotent-replayed") == "true"


def raising(error: BaseException, *before: dict[str, Any], after_await: bool = False) -> Work:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        for message in before:
            await send(message)
        if after_await:
            await asyncio.sleep(0)
        raise error

    return Work(answer)


FRAMEWORK_500 = [{"type": "http.response.start", "status": 500, "headers": []}, part(b"Internal Server Error")]


@pytest.mark.parametrize("before", [[], [START], [START, part(b"x", True)], FRAMEWORK_500[:1]])
@on_loop
async def test_a_raised_exception_is_a_stable_problem_and_goes_on(before: list[dict[str, Any]]) -> None:
    front, wire = Front(work := raising(LookupError("secret"), *before)), Wire()
    with pytest.raises(LookupError):
        await front.ask(wire)
    again = await front.ask()
    assert work.effects == 1
    assert (wire.status, wire.problem, wire.body) == (500, "internal-error", again.body)
    assert b"secret" not in wire.body
    assert (await record_of(front)).state is State.FAILED


@pytest.mark.parametrize("status", [500, 503])
@on_loop
async def test_what_the_framework_answers_for_an_exception_is_the_answer(status: int) -> None:
    answer = [{**FRAMEWORK_500[0], "status": status}, FRAMEWORK_500[1]]
    front, wire = Front(work := raising(LookupError("secret"), *answer)), Wire()
    with pytest.raises(LookupError):
        await front.ask(wire)
    again = await front.ask()
    assert work.effects == 1, "a status that means a refusal elsewhere is none here: the work ran"
    assert (wire.status, wire.body) == (again.status, again.body) == (status, b"Internal Server Error")
    assert again.header("idempotent-replayed") == "true"
    assert (await record_of(front)).state is State.FAILED


@on_loop
async def test_a_page_with_a_traceback_is_sent_and_never_stored() -> None:
    answer = [FRAMEWORK_500[0], part(b"<h1>Traceback</h1> password = 'secret'")]
    front, wire = Front(work := raising(LookupError("secret"), *answer)), Wire()
    with pytest.raises(LookupError):
        await front.ask(wire)
    again = await front.ask()
    assert b"secret" in wire.body
    assert (work.effects, again.status, again.problem) == (1, 409, "result-not-kept")
    result = (await record_of(front)).result
    assert result is not None
    assert b"secret" not in result.payload


@on_loop
async def test_what_the_framework_answers_for_an_exception_that_gives_the_key_back_is_sent() -> None:
    front, wire = Front(work := raising(OSError("x"), *FRAMEWORK_500), Policy(release_exceptions=(OSError,))), Wire()
    with pytest.raises(OSError, match="x"):
        await front.ask(wire)
    assert (wire.status, wire.body) == (500, b"Internal Server Error")
    with pytest.raises(OSError, match="x"):
        await front.ask()
    assert work.effects == 2


@pytest.mark.parametrize("error", [LookupError("x"), NotExecuted("x"), OSError("x")])
@on_loop
async def test_what_is_raised_after_the_answer_changes_nothing(error: Exception) -> None:
    policy = Policy(release_exceptions=(OSError,))
    for before in ([START, part(b"x")], FRAMEWORK_500):
        front, wire = Front(work := raising(error, *before, after_await=True), policy), Wire()
        with pytest.raises(type(error)) if not isinstance(error, NotExecuted) else nullcontext():
            await front.ask(wire)
        assert wire.body == before[-1]["body"]
        assert (await front.ask()).body == wire.body
        assert work.effects == 1


@on_loop
async def test_a_failed_answer_is_sent_before_the_exchange_returns_however_slow_the_store_is() -> None:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"sorry"})
        await asyncio.sleep(0)  # the pending answer is being settled when the application returns

    front = Front(Work(answer))
    wire = await front.ask()
    assert (wire.status, wire.body) == (500, b"sorry")


@pytest.mark.parametrize("before", [[], [START], FRAMEWORK_500])
@on_loop
async def test_not_executed_gives_the_key_back(before: list[dict[str, Any]]) -> None:
    front = Front(work := raising(NotExecuted("The bank is closed."), *before))
    for _ in range(2):
        wire = await front.ask()
        assert (wire.status, wire.problem, wire.header("retry-after")) == (503, "not-executed", "1")
        assert b"The bank is closed." in wire.body
    assert work.effects == 2
    assert await front.memory.record() is None


@on_loop
async def test_release_exceptions_give_the_key_back_and_the_framework_answers() -> None:
    front = Front(work := raising(OSError("x")), Policy(release_exceptions=(OSError,)))
    for wire in (Wire(), Wire()):
        with pytest.raises(OSError, match="x"):
            await front.ask(wire)
        assert wire.status is None
    assert work.effects == 2
    assert await front.memory.record() is None


@on_loop
async def test_nothing_done_gives_the_key_back_whatever_is_answered() -> None:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        operation = current_operation()
        assert operation is not None
        assert (operation.tenant, operation.key.name, operation.attempt, operation.lost) == ("tenant", "k", 1, False)
        operation.nothing_done()
        await reply(200, b"dry run")(scope, receive, send)

    front = Front(work := Work(answer))
    assert [(await front.ask()).body for _ in range(2)] == [b"dry run", b"dry run"]
    assert work.effects == 2
    assert current_operation() is None


@on_loop
async def test_derived_keys_are_stable_across_attempts() -> None:
    derived: list[str] = []

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        operation = current_operation()
        assert operation is not None
        derived.extend((operation.derive("psp"), operation.derive("mail")))
        if operation.attempt == 1:
            raise asyncio.CancelledError
        await reply(200)(scope, receive, send)

    front = Front(Work(answer), Policy(guarantee="at-least-once"))
    with pytest.raises(asyncio.CancelledError):
        await front.ask()
    front.lapse()
    assert (await front.ask()).status == 200
    assert derived[:2] == derived[2:]
    assert derived[0] != derived[1]


@on_loop
async def test_background_work_after_the_answer_cannot_change_it_and_does_not_delay_it() -> None:
    wire, seen = Wire(), []

    async def background() -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        seen.append(wire.status)

    front = Front(Work(reply(200, b"x", then=background)))
    await front.ask(wire)
    assert seen == [200]


@pytest.mark.parametrize("steps", [0, 1, 30])
@on_loop
async def test_a_wire_that_fails_is_told_to_the_server_even_if_the_work_goes_on(steps: int) -> None:
    class Broken(Wire):
        async def send(self, message: Message) -> None:
            raise OSError("gone")

    async def background() -> None:
        for _ in range(steps):
            await asyncio.sleep(0)

    front = Front(work := Work(reply(200, b"x", then=background)))
    with pytest.raises(OSError, match="gone"):
        await front.ask(Broken())
    assert ((await front.ask()).body, work.effects) == (b"x", 1)


@on_loop
async def test_an_answer_is_stored_and_sent_when_the_stack_that_made_it_is_gone() -> None:
    """What waits for a store in the middle of a framework keeps all of its frames alive, for many callers at once."""
    wire, depth = Wire(), []

    async def then() -> None:
        depth.append((front.memory.calls.count("Complete"), wire.status))

    front = Front(Work(reply(200, b"x", then=then)))
    await front.ask(wire)
    assert (depth, front.memory.calls.count("Complete"), wire.status) == ([(0, None)], 1, 200)


@on_loop
async def test_directives_never_reach_the_wire() -> None:
    for key in ("k", None):
        front = Front(work := Work(reply(200, b"x", (b"Semel-Directive", b"not-kept"), (b"a", b"1"))))
        first = await front.ask(key=key)
        assert (first.headers, first.body) == ([(b"a", b"1")], b"x")
    front = Front(work := Work(reply(200, b"x", (b"Semel-Directive", b"not-kept"))))
    await front.ask()
    assert ((await front.ask()).problem, work.effects) == ("result-not-kept", 1)


@on_loop
async def test_an_answers_own_retention() -> None:
    front = Front(work := Work(reply(200, b"x", (b"semel-directive", b"retention=5"))))
    await front.ask()
    front.clock.now_ms += 4_999
    assert (await front.ask()).header("idempotent-replayed") == "true"
    front.clock.now_ms += 1
    await front.ask()
    assert work.effects == 2


def streaming(count: int, size: int, then: BaseException | None = None) -> Work:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        for _ in range(count):
            await send(part(b"x" * size, True))
        if then is not None:
            raise then
        await send(part(b"end"))

    return Work(answer)


@on_loop
async def test_a_large_answer_is_delivered_whole_and_tombstoned_first() -> None:
    front, wire = Front(work := streaming(10, 100), Policy(result_max=250)), Wire()
    states: list[State] = []
    send = wire.send

    async def looking(message: Any) -> None:
        states.append((await record_of(front)).state)
        await send(message)

    wire.send = looking  # type: ignore[method-assign]
    await front.ask(wire)
    assert set(states) == {State.SUCCEEDED}
    assert wire.body == b"x" * 1000 + b"end"
    again = await front.ask()
    assert (again.status, again.problem, work.effects) == (409, "result-not-kept", 1)
    assert (await record_of(front)).result is not None


@pytest.mark.parametrize(("size", "problem"), [(250, None), (251, "result-not-kept")])
@on_loop
async def test_the_limit_of_an_answer(size: int, problem: str | None) -> None:
    front = Front(Work(reply(200, b"x" * size)), Policy(result_max=250))
    assert (await front.ask()).body == b"x" * size
    again = await front.ask()
    assert again.problem == problem if problem else again.body == b"x" * size


@on_loop
async def test_memory_is_bounded_for_a_long_stream() -> None:
    front, wire = Front(streaming(50, 1_048_576), Policy(result_max=1_048_576)), Wire()
    received = 0

    async def send(message: Any) -> None:
        nonlocal received
        received += len(message.get("body", b""))

    wire.send = send  # type: ignore[method-assign]
    tracemalloc.start()
    await front.ask(wire)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert received == 50 * 1_048_576 + 3
    assert peak < 8 * 1_048_576


@on_loop
async def test_a_stream_that_breaks_off_after_the_tombstone_stays_protected() -> None:
    front, wire = Front(work := streaming(5, 100, LookupError("x")), Policy(result_max=150)), Wire()
    with pytest.raises(LookupError):
        await front.ask(wire)
    assert (wire.status, wire.body) == (200, b"x" * 500)
    again = await front.ask()
    assert (again.problem, work.effects) == ("result-not-kept", 1)
    assert b"How it ended is not recorded" in again.body, "nobody may say that it was carried out"


@on_loop
async def test_a_large_answer_that_is_whole_was_carried_out() -> None:
    front = Front(Work(reply(200, b"x" * 300)), Policy(result_max=150))
    await front.ask()
    again = await front.ask()
    assert again.problem == "result-not-kept"
    assert b"was carried out" in again.body


@on_loop
async def test_a_superseded_stream_sends_the_stores_answer_even_with_the_same_status() -> None:
    """The store's answer has its own headers and body; nothing of the stream may be mixed in."""
    front = Front(work := streaming(5, 100), Policy(result_max=150, guarantee="at-least-once"))
    slow, go = work.answer, asyncio.Event()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["effect"] == 1:
            await go.wait()
            await slow(scope, receive, send)
        else:
            await reply(200, b"second", (b"content-length", b"6"))(scope, receive, send)

    work.answer = answer
    first = Wire()
    asking = asyncio.create_task(front.ask(first))
    while not work.effects:
        await asyncio.sleep(0)
    front.lapse()
    second = await front.ask()
    go.set()
    await asking
    assert (second.status, second.body) == (200, b"second")
    assert (first.status, first.body, first.header("content-length")) == (200, b"second", "6")
    assert first.header("idempotent-replayed") == "true"


@on_loop
async def test_unstorable_extensions_are_hidden_from_keyed_work_only() -> None:
    seen: list[set[str]] = []

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(set(scope["extensions"]))
        await reply(200)(scope, receive, send)

    front = Front(Work(answer))
    for key in ("k", None):
        wire = Wire(key=key)
        wire.scope["extensions"] = {"http.response.pathsend": {}, "tls": {}}
        await front.ask(wire)
    assert seen == [{"tls"}, {"tls", "http.response.pathsend"}]
