"""Callers that leave, wait, ask elsewhere or are somebody else."""

import asyncio
import json
from typing import Any

import pytest
from asgi_calls import LEASE_MS, Front, Wire, Work, on_loop, reply

from semel import Policy, Rule, State
from semel.asgi.types import Receive, Scope, Send
from semel.core.effects import Claim, Complete, Read
from semel.http.gate import Gate

SECRET = "a secret of the tests"


class Held:
    """Work that has started and waits to be let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.work = Work(self.answer)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.go.wait()
        await reply(200, b"done %d")(scope, receive, send)

    async def running(self, front: Front, wire: Wire) -> "asyncio.Task[Wire]":
        asking = asyncio.create_task(front.ask(wire))
        while not self.work.effects:
            await asyncio.sleep(0)
        return asking


@on_loop
async def test_a_client_that_leaves_while_sending_its_body_causes_nothing() -> None:
    front, wire = Front(work := Work()), Wire([b"{"])
    wire.gone.set()
    receive = wire.receive

    async def receiving() -> Any:
        return {**await receive(), "more_body": True}

    wire.receive = receiving  # type: ignore[method-assign]
    await front.ask(wire)
    assert (work.effects, wire.sent, front.memory.calls) == (0, [], [])


@on_loop
async def test_a_client_that_leaves_while_the_work_runs_cancels_nothing() -> None:
    told: list[str] = []

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        listening = asyncio.ensure_future(receive())
        for _ in range(5):
            await asyncio.sleep(0)
        told.append("told" if listening.done() else "withheld")
        await reply(200, b"done")(scope, receive, send)
        told.append((await listening)["type"])

    front, wire = Front(work := Work(answer)), Wire()
    wire.gone.set()
    await front.ask(wire)
    assert told == ["withheld", "http.disconnect"]
    assert (await front.ask()).body == b"done"
    assert work.effects == 1


@pytest.mark.parametrize("body", [[b""], [b"ab"], [b"a", b"", b"b"]])
@on_loop
async def test_the_work_gets_the_body_that_was_sent(body: list[bytes]) -> None:
    front = Front(work := Work())
    await front.ask(chunks=body)
    assert work.bodies == [b"".join(body)]


@pytest.mark.parametrize(
    ("chunks", "headers", "status"),
    [
        ([b"x" * 10], [], 201),
        ([b"x" * 11], [], 413),
        ([b"x" * 5, b"x" * 6], [], 413),
        ([b"x" * 5, b"x" * 5], [], 201),
        ([b""], [("content-length", "11")], 413),
    ],
)
@on_loop
async def test_a_body_over_the_limit_is_refused_and_nothing_runs(
    chunks: list[bytes], headers: list[tuple[str, str]], status: int
) -> None:
    front = Front(work := Work(), Policy(body_max=10))
    wire = await front.ask(chunks=chunks, headers=headers)
    assert wire.status == status
    assert work.effects == (status == 201)
    if status == 413:
        assert wire.problem == "body-too-large"
        assert front.memory.calls == []


@on_loop
async def test_many_small_parts_are_read_in_linear_time() -> None:
    front = Front(work := Work())
    started = asyncio.get_running_loop().time()
    await front.ask(chunks=[b"x"] * 20_000)
    assert len(work.bodies[0]) == 20_000
    assert asyncio.get_running_loop().time() - started < 2


@on_loop
async def test_a_repeat_in_flight_is_told_so_and_another_request_is_refused() -> None:
    held = Held()
    front = Front(held.work)
    asking = await held.running(front, first := Wire())
    again = await front.ask()
    assert (again.status, again.problem, again.header("retry-after")) == (409, "in-progress", "1")
    assert (await front.ask(chunks=[b"other"])).problem == "key-reused"
    held.go.set()
    await asking
    assert (first.status, held.work.effects) == (200, 1)
    assert (await front.ask(chunks=[b"other"])).status == 422


@on_loop
async def test_waiters_get_the_answer_when_it_is_there() -> None:
    held = Held()
    front = Front(held.work, Policy(in_flight="wait"))
    asking = await held.running(front, first := Wire())
    waiting = [asyncio.create_task(front.ask()) for _ in range(20)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert front.host.waiters.count == 20
    held.go.set()
    answers = await asyncio.gather(asking, *waiting)
    assert {answer.body for answer in answers} == {b"done 1"}
    assert (held.work.effects, front.host.waiters.count, first.header("idempotent-replayed")) == (1, 0, None)


@on_loop
async def test_one_waiter_takes_over_when_the_key_is_given_back() -> None:
    held = Held()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await held.go.wait()
        await reply(503 if scope["effect"] == 1 else 200, b"%d")(scope, receive, send)

    held.work.answer = answer
    front = Front(held.work, Policy(in_flight="wait"))
    asking = await held.running(front, Wire())
    waiting = [asyncio.create_task(front.ask()) for _ in range(5)]
    for _ in range(20):
        await asyncio.sleep(0)
    held.go.set()
    assert (await asking).status == 503
    assert {(wire.status, wire.body) for wire in await asyncio.gather(*waiting)} == {(200, b"2")}
    assert held.work.effects == 2


@on_loop
async def test_waiting_ends_and_waiters_are_bounded() -> None:
    held = Held()
    front = Front(held.work, Policy(in_flight="wait", wait=0.02), waiters_max=2)
    asking = await held.running(front, Wire())
    answers = await asyncio.gather(*(front.ask() for _ in range(4)))
    assert {answer.problem for answer in answers} == {"in-progress"}
    assert front.host.waiters.count == 0
    held.go.set()
    await asking


@on_loop
async def test_a_long_work_keeps_its_lease() -> None:
    held = Held()
    front = Front(held.work, Policy(lease=0.03))
    asking = await held.running(front, Wire())
    for _ in range(4):
        front.clock.now_ms += 20
        renewals = front.memory.calls.count("Renew")
        while front.memory.calls.count("Renew") == renewals:
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.005)
    assert (await front.ask()).problem == "in-progress"
    held.go.set()
    assert (await asking).status == 200
    renewals = front.memory.calls.count("Renew")
    await asyncio.sleep(0.04)
    assert front.memory.calls.count("Renew") == renewals


@on_loop
async def test_in_flight_accept_answers_with_a_monitor() -> None:
    held = Held()
    front = Front(held.work, Policy(in_flight="accept"), secret=SECRET, identify=who)
    asking = await held.running(front, Wire(headers=[("who", "ann")]))
    accepted = await front.ask(headers=[("who", "ann")])
    assert (accepted.status, accepted.body) == (202, b"")
    place = accepted.header("location")
    assert place is not None
    assert accepted.header("link") == '</.well-known/idempotency#in-progress>; rel="describedby"'

    async def monitor(name: str = "ann", path: str = place) -> Wire:
        return await front.ask(key=None, method="GET", path=path, headers=[("who", name)], chunks=[b""])

    running = await monitor()
    assert (running.status, running.header("retry-after"), running.header("location")) == (202, "1", place)
    held.go.set()
    first = await asking
    done = await monitor()
    assert (done.status, done.body, done.header("idempotent-replayed")) == (200, first.body, "true")
    assert held.work.effects == 1
    for stranger in (await monitor("bob"), await monitor(path=place[:-1])):
        assert stranger.status == 200
        assert stranger.body != first.body  # the application's own business: here it answers everything
    front.memory.faults[Read] = "before"
    assert (await monitor()).problem == "store-unavailable"


def who(scope: Scope) -> str | None:
    return next((value.decode() for name, value in scope["headers"] if name == b"who"), None)


@on_loop
async def test_a_monitor_tells_of_unknown_outcomes_and_forgotten_keys() -> None:
    held = Held()
    front = Front(held.work, Policy(in_flight="accept"), secret=SECRET)
    front.clock.now_ms -= 10 * LEASE_MS  # this process's clock is ahead of the store's, which decides
    asking = await held.running(front, Wire())
    place = (await front.ask()).header("location")
    assert place is not None
    assert (await front.ask(key=None, method="GET", path=place, chunks=[b""])).status == 202
    front.clock.now_ms += LEASE_MS
    assert (await front.ask(key=None, method="GET", path=place, chunks=[b""])).problem == "outcome-unknown"
    held.go.set()
    await asking
    front.clock.now_ms += 25 * 3600 * 1000
    assert (await front.ask(key=None, method="GET", path=place, chunks=[b""])).problem == "key-expired"


@on_loop
async def test_prefer_respond_async_turns_one_request_into_an_accepted_one() -> None:
    held = Held()
    front = Front(held.work, secret=SECRET)
    asking = [("prefer", "respond-async")]
    first = await front.ask(headers=asking)
    assert (first.status, first.header("preference-applied")) == (202, "respond-async")
    repeat = await front.ask(headers=asking)
    assert (repeat.status, repeat.header("location")) == (202, first.header("location"))
    assert (await front.ask()).problem == "in-progress"
    held.go.set()
    await front.settled()
    assert (await front.ask(headers=asking)).body == b"done 1"
    other = await front.ask(headers=asking, chunks=[b"other"])
    assert (other.status, other.problem) == (422, "key-reused")
    assert held.work.effects == 1


@on_loop
async def test_nothing_is_accepted_while_the_store_cannot_decide() -> None:
    front = Front(work := Work(), secret=SECRET)
    front.memory.faults[Claim] = "before"
    assert (await front.ask(headers=[("prefer", "respond-async")])).problem == "store-unavailable"
    assert work.effects == 0


@on_loop
async def test_prefer_is_ignored_where_no_monitor_can_be_given_and_where_the_answer_is_quick() -> None:
    assert (await Front(Work()).ask(headers=[("prefer", "respond-async")])).status == 201
    quick = await Front(Work(), secret=SECRET).ask(headers=[("prefer", "respond-async, wait=5")])
    assert (quick.status, quick.header("preference-applied")) == (201, None)


@on_loop
async def test_accepted_work_is_not_told_that_its_client_left() -> None:
    held, told = Held(), []

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        listening = asyncio.ensure_future(receive())
        await held.go.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        told.append(listening.done())
        await reply(200, b"done")(scope, receive, send)
        told.append((await listening)["type"])

    held.work.answer = answer
    front, wire = Front(held.work, secret=SECRET), Wire(headers=[("prefer", "respond-async")])
    wire.gone.set()
    await front.ask(wire)
    held.go.set()
    await front.settled()
    assert told == [False, "http.disconnect"]
    record = await front.memory.record()
    assert record is not None
    assert record.state is State.SUCCEEDED


@on_loop
async def test_accepted_work_that_fails_reaches_the_logs(caplog: pytest.LogCaptureFixture) -> None:
    held = Held()

    async def answer(*_: object) -> None:
        await held.go.wait()
        raise LookupError("deep inside")

    held.work.answer = answer
    front = Front(held.work, secret=SECRET)
    assert (await front.ask(headers=[("prefer", "respond-async")])).status == 202
    held.go.set()
    await front.settled()
    assert "deep inside" in caplog.text
    assert (await front.ask()).problem == "internal-error"


@on_loop
async def test_keys_of_other_callers_methods_and_paths_never_meet() -> None:
    front = Front(work := Work(), identify=who)
    asked = [
        await front.ask(headers=[("who", name)], method=method, path=path)
        for name in ("ann", "bob")
        for method in ("POST", "PUT")
        for path in ("/pay", "/pay/")
    ]
    assert work.effects == 8
    assert len({wire.body for wire in asked}) == 8


class User:
    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


class StarletteUser:
    """As Starlette's `SimpleUser`: the identity is not implemented."""

    is_authenticated = True
    username = "ann"
    display_name = "Ann Smith"

    @property
    def identity(self) -> str:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("user", "tenant"),
    [
        (StarletteUser(), "user.ann"),
        (User(is_authenticated=True, identity="7", display_name="x"), "user.7"),
        (User(id=7), "user.7"),
        ("ann", "user.ann"),
        (User(is_authenticated=False, display_name="guest"), ""),
        (None, ""),
    ],
)
@on_loop
async def test_the_authenticated_user_is_the_tenant(user: object, tenant: str) -> None:
    front, wire = Front(Work(), identify=None), Wire()
    wire.scope["user"] = user
    await front.ask(wire)
    record = await front.memory.record()
    assert record is not None
    assert record.key.tenant == tenant


@on_loop
async def test_a_user_that_cannot_be_told_from_others_is_an_error_and_nothing_runs() -> None:
    front, wire = Front(work := Work(), identify=None), Wire()
    wire.scope["user"] = User(is_authenticated=True)
    with pytest.raises(TypeError, match="identify="):
        await front.ask(wire)
    assert work.effects == 0


@on_loop
async def test_without_a_user_the_credentials_tell_callers_apart() -> None:
    front = Front(work := Work(), identify=None)
    for credentials in ("Bearer a", "Bearer b", "Bearer a"):
        await front.ask(headers=[("authorization", credentials)])
    assert work.effects == 2


@on_loop
async def test_identify_may_be_async() -> None:
    async def ask_a_database(scope: Scope) -> str:
        await asyncio.sleep(0)
        return "ann"

    front = Front(Work(), identify=ask_a_database)
    await front.ask()
    record = await front.memory.record()
    assert record is not None
    assert record.key.tenant == "ann"


@on_loop
async def test_unkeyed_safe_and_refused_requests_never_touch_the_store() -> None:
    front = Front(work := Work(), Policy(required=True))
    assert (await front.ask(key=None)).problem == "key-missing"
    assert (await front.ask(key="a,b")).problem == "key-malformed"
    assert work.effects == 0
    assert (await front.ask(method="GET")).status == 201
    assert (await front.ask(method="DELETE")).status == 201
    assert front.memory.calls == []


@pytest.mark.parametrize("header", ["Idempotency-Key", "x-idempotency-key", "X-Operation"])
@on_loop
async def test_a_key_is_found_in_every_header_that_any_policy_names_and_however_it_is_spelt(header: str) -> None:
    front = Front(work := Work(), rules=[Rule("POST /of-a-rule", Policy(headers=["X-Operation"]))])
    path = "/of-a-rule" if header == "X-Operation" else "/pay"
    for _ in range(2):
        assert (await front.ask(key=None, path=path, headers=[(header, "k")])).status == 201
    assert work.effects == 1


@on_loop
async def test_a_key_that_a_rule_requires_is_missed() -> None:
    front = Front(work := Work(), rules=[Rule("POST /of-a-rule", Policy(required=True))])
    assert (await front.ask(key=None, path="/of-a-rule")).problem == "key-missing"
    assert (await front.ask(key=None)).status == 201
    assert work.effects == 1


@on_loop
async def test_the_policy_is_published() -> None:
    front = Front(work := Work())
    wire = await front.ask(key=None, method="GET", path="/.well-known/idempotency")
    assert json.loads(wire.body)["guarantee"] == "at-most-once"
    assert work.effects == 0


@pytest.mark.parametrize("fault", ["before", "after"])
@pytest.mark.parametrize("call", [Claim, Complete])
@on_loop
async def test_a_call_that_fails_once_is_repeated(call: type[Any], fault: str) -> None:
    front = Front(work := Work())
    front.memory.faults[call] = fault
    asking = asyncio.create_task(front.ask())
    while front.memory.calls.count(call.__name__) < 2:
        await asyncio.sleep(0)
    front.memory.faults.clear()
    first = await asking
    assert (first.status, first.header("idempotency-stored"), work.effects) == (201, None, 1)
    assert (await front.ask()).header("idempotent-replayed") == "true"


@pytest.mark.parametrize(("identify", "tenant"), [(lambda scope: "before", "before"), (None, "")])
@on_loop
async def test_a_request_keeps_the_settings_that_it_began_with(identify: Any, tenant: str) -> None:
    """Other settings are those of another middleware, on the same host."""
    front, wire = Front(work := Work(), identify=identify), Wire([b"{", b"}"])
    receive, made = wire.receive, list[Front]()

    async def receiving() -> Any:
        gate = Gate(Policy(scope="tenant"), secret="another secret of the tests")
        made.append(front.under(gate, lambda scope: "after"))
        return await receive()

    wire.receive = receiving  # type: ignore[method-assign]
    await front.ask(wire)
    assert {(each.host, each.gate is front.gate) for each in made} == {(front.host, False)}
    record = await front.memory.record()
    assert record is not None
    assert (record.key.tenant, record.key.scope, work.effects) == (tenant, "POST /pay", 1)


@on_loop
async def test_tasks_that_go_on_after_their_work_are_not_waited_for() -> None:
    async def going_on(work: Any) -> Any:
        try:
            return await work
        finally:
            await asyncio.sleep(0.001)

    loop = asyncio.get_running_loop()
    loop.set_task_factory(lambda loop, work, **how: asyncio.Task(going_on(work), loop=loop, **how))
    front = Front(work := Work())
    assert (await front.ask()).status == 201
    assert work.effects == 1
    await front.close()
