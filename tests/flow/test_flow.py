"""What a flow promises to its callers, kind by kind, and what it refuses."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import redis

import semel
from flow.trips import Clock, Declined, Trip, World
from semel.flow import AsyncFlow, Flow, FlowOperation, NotDone, Recovered, Step, keyed, tx, unsafe
from semel.stores.redis.layout import frame, name_of
from semel.transaction import RetryTransaction
from waiting import until

Op = FlowOperation[str]
Function = Callable[[Op], object]


class Refused(Exception):
    """Final."""


class Effects(list[str]):
    """Functions for steps; each is an effect, and then raises what it was told to."""

    def __init__(self) -> None:
        super().__init__()
        self.raising: dict[str, Exception] = {}

    def of(self, name: str, value: object = None) -> Function:
        def function(op: Op) -> object:
            self.append(name)
            if name in self.raising:
                raise self.raising[name]
            return value

        return function


@pytest.fixture
def effects() -> Effects:
    return Effects()


def made(store: semel.Store, *steps: Step[str], **options: Any) -> Flow[str, object]:
    return Flow("f", steps, store=store, input=str, returns=object, **{"final_errors": [Refused], **options})


def three(effects: Effects, kind: Callable[..., Step[str]] = keyed) -> list[Step[str]]:
    return [kind(name, effects.of(name, name), effects.of(f"-{name}")) for name in ("a", "b", "c")]


def test_the_last_step_s_result_is_the_flow_s_and_is_replayed(store: semel.Store, effects: Effects) -> None:
    flow = made(store, *three(effects))
    assert [flow.run("k", "x") for _ in range(2)] == ["c", "c"]
    assert effects == ["a", "b", "c"]
    with pytest.raises(semel.KeyReused):
        flow.run("k", "another")
    assert flow.run("k", "another", tenant="another") == "c"
    assert flow.run("k2", "x") == "c"


class Name(str, Enum):  # noqa: UP042
    PAY = "pay"
    KEY = "k"


def test_names_may_be_members_of_enumerations(store: semel.Store, effects: Effects) -> None:
    """They count as their text, so that they may become plain text later, or be moved to another class."""

    def flow(name: str) -> Flow[str, object]:
        return Flow(name, [keyed(name, effects.of("a", "a"))], store=store, input=str, returns=object)

    flows = [flow(Name.PAY), flow("pay")]
    assert [flows[0].run(Name.KEY, "x"), flows[1].run("k", "x")] == ["a", "a"]
    assert effects == ["a"]


def test_steps_are_told_what_they_need(store: semel.Store) -> None:
    seen: list[Op] = []

    def look(op: Op) -> str:
        assert semel.current_operation() is op
        seen.append(op)
        return f"{op.input} {len(seen)}"

    def fail(op: Op) -> None:
        raise Refused(op.results["a"])

    with pytest.raises(Refused, match="x 1"):
        made(store, keyed("a", look, look), keyed("b", fail)).run("k", "x")
    assert semel.current_operation() is None
    do, undo = seen
    assert do.step_key == undo.derive("do/a") != undo.step_key == do.derive("undo/a")
    assert (do.attempt, do.lost, dict(do.results), dict(undo.results)) == (1, False, {}, {"a": "x 1"})


def test_a_record_that_cannot_be_read_stops_no_recovery(redis_url: str, clock: Clock, effects: Effects) -> None:
    """Of this flow or of anything else in the store: it is skipped and named, and the others are finished."""
    with closing(semel.open_store(redis_url, clock=clock)) as store, closing(redis.Redis.from_url(redis_url)) as driver:
        flow = made(store, *three(effects))
        effects.raising["b"] = ConnectionError("down")
        for key in ("1", "2"):
            with pytest.raises(ConnectionError):
                flow.run(key, "x")
        del effects.raising["b"]
        strange = name_of(b"semel", frame(semel.Key("another", "POST /pay", "n")))
        driver.set(strange, b"\x02the next format")
        recovered = flow.recover()
        assert sorted(key.name for key in recovered.ended) == ["1", "2"]
        assert [each.place for each in recovered.unreadable] == [strange.decode()]
        assert effects == ["a", "b", "a", "b", "b", "c", "b", "c"]


def test_an_error_that_is_not_final_leaves_the_flow_to_be_resumed_at_once(store: semel.Store, effects: Effects) -> None:
    flow = made(store, *three(effects))
    effects.raising["b"] = ConnectionError("down")
    for _ in range(2):
        with pytest.raises(ConnectionError):
            flow.run("k", "x")
    assert effects == ["a", "b", "b"]
    report = flow.recover()
    assert [(key.name, type(error)) for key, error in report.left] == [("k", ConnectionError)]
    assert report.ended == ()
    del effects.raising["b"]
    assert [key.name for key in flow.recover().ended] == ["k"]
    assert flow.run("k", "x") == "c"
    assert effects == ["a", "b", "b", "b", "b", "c"]


def test_a_final_error_undoes_what_was_begun_and_is_every_caller_s_answer(store: semel.Store, effects: Effects) -> None:
    flow = made(store, *three(effects))
    effects.raising["b"] = Refused("no")
    for _ in range(2):
        with pytest.raises(Refused, match="no"):
            flow.run("k", "x")
    assert effects == ["a", "b", "-b", "-a"]


def test_an_undo_that_fails_is_tried_again_even_by_code_that_would_go_on(store: semel.Store, effects: Effects) -> None:
    flow = made(store, *three(effects))
    effects.raising |= {"c": Refused("no"), "-b": Refused("an undo has no final error")}
    with pytest.raises(Refused, match="an undo"):
        flow.run("k", "x")
    effects.raising.clear()
    with pytest.raises(Refused, match="no"):  # the step that failed is recorded: there is no way but back
        flow.run("k", "x")
    assert effects == ["a", "b", "c", "-c", "-b", "-b", "-a"]


def test_unsafe_steps_are_entered_once_until_somebody_knows(store: semel.Store, effects: Effects) -> None:
    flow = made(store, *three(effects, unsafe))
    effects.raising["b"] = ConnectionError("who knows")
    with pytest.raises(ConnectionError):
        flow.run("k", "x")
    for _ in range(2):
        with pytest.raises(semel.OutcomeUnknown, match=r"resolve\('k', 'b', NotDone\(\)\)"):
            flow.run("k", "x")
    assert isinstance(flow.recover().left[0][1], semel.OutcomeUnknown)
    assert effects == ["a", "b"]
    del effects.raising["b"]
    assert not flow.resolve("k", "c", "not begun")
    assert not flow.resolve("k", "a", "finished")
    assert flow.resolve("k", "b", "it was b")
    assert not flow.resolve("k", "b", NotDone())
    assert flow.run("k", "x") == "c"
    assert effects == ["a", "b", "c"]


@pytest.mark.parametrize("answer", [NotDone(), Refused("it was refused")])
def test_how_an_interrupted_step_ended(store: semel.Store, effects: Effects, answer: object) -> None:
    flow = made(store, *three(effects, unsafe))
    effects.raising |= {"b": ConnectionError("who knows"), "-b": ConnectionError("who knows")}
    with pytest.raises(ConnectionError):
        flow.run("k", "x")
    if isinstance(answer, NotDone):
        del effects.raising["b"]
        assert flow.resolve("k", "b", answer)
        assert flow.run("k", "x") == "c"
        assert effects == ["a", "b", "b", "c"]
        return
    assert flow.resolve("k", "b", answer)
    with pytest.raises(ConnectionError):
        flow.run("k", "x")
    with pytest.raises(semel.OutcomeUnknown, match="undo=True"):
        flow.run("k", "x")
    assert flow.resolve("k", "b", None, undo=True)
    with pytest.raises(Refused, match="it was refused"):
        flow.run("k", "x")
    assert effects == ["a", "b", "-b", "-a"]


def test_a_step_that_did_nothing_says_so(store: semel.Store, effects: Effects) -> None:
    flow = made(store, *three(effects, unsafe), policy=semel.Policy(release_exceptions=[ConnectionRefusedError]))
    for error in (semel.NotExecuted("busy"), ConnectionRefusedError("down")):
        effects.raising["b"] = error
        with pytest.raises(type(error)):
            flow.run("k", "x")
    effects.raising.clear()
    assert flow.run("k", "x") == "c"
    assert effects == ["a", "b", "b", "b", "c"]


def test_a_flow_that_runs_is_nobody_else_s(store: semel.Store, effects: Effects, clock: Clock) -> None:
    others: list[Callable[[], object]] = []

    def meanwhile(op: Op) -> None:
        for ask in others:
            with pytest.raises(semel.InProgress):
                ask()
        assert flow.recover() == Recovered()

    flow = made(store, unsafe("a", meanwhile))
    others += [lambda: flow.run("k", "x"), lambda: flow.resolve("k", "a", NotDone())]
    flow.run("k", "x")
    with pytest.raises(LookupError, match="no flow 'another'"):
        flow.resolve("another", "a", NotDone())
    with pytest.raises(LookupError, match="it has a"):
        flow.resolve("k", "b", NotDone())


def test_the_lease_is_renewed_while_a_step_runs(effects: Effects) -> None:
    store = semel.open_store("memory://")

    def slow(op: Op) -> None:
        def until_ms() -> int:
            record = store.get(op.key)
            assert record is not None
            return record.lease_until_ms

        first_ms = until_ms()
        until(lambda: until_ms() > first_ms)

    made(store, unsafe("a", slow), policy=semel.Policy(lease=0.1)).run("k", "x")
    store.close()


def test_who_was_overtaken_gives_its_successor_s_answer(store: semel.Store, effects: Effects, clock: Clock) -> None:
    answers: list[object] = []

    def slow(op: Op) -> int:
        if op.attempt == 1:
            clock.lapse()
            answers.append(flow.run("k", "x"))
        return op.attempt

    flow = made(store, keyed("a", slow))
    assert flow.run("k", "x") == 2
    assert answers == [2]


def test_a_changed_flow_does_not_finish_what_another_began(store: semel.Store, effects: Effects) -> None:
    effects.raising["b"] = ConnectionError("down")
    with pytest.raises(ConnectionError):
        made(store, *three(effects)).run("k", "x")
    changed = made(store, *three(effects)[:2])
    with pytest.raises(semel.Misuse, match=r"begun with the steps a \(keyed, undo\), b .*another name"):
        changed.run("k", "x")
    assert isinstance(changed.recover().left[0][1], semel.Misuse)
    effects.raising.clear()
    assert made(store, *three(effects)).run("k", "x") == "c"


def test_what_is_not_remembered_is_not_repeated(store: semel.Store, effects: Effects, clock: Clock) -> None:
    flow = made(store, *three(effects))
    day_ms = 24 * 3600 * 1000
    effects.raising["b"] = ConnectionError("down")
    with pytest.raises(ConnectionError):
        flow.run("k", "x")
    clock.ahead_ms += day_ms // 2
    with pytest.raises(ConnectionError):
        flow.run("k", "x")  # the flow's record lives longer now than its steps
    clock.ahead_ms += day_ms // 2
    with pytest.raises(semel.OutcomeUnknown, match="longer ago than its retention"):
        flow.run("k", "x")
    assert effects == ["a", "b", "b"]
    clock.ahead_ms += 30 * day_ms  # the unknown_retention
    effects.raising.clear()
    assert flow.run("k", "x") == "c"  # another life of the key, with steps of its own
    assert effects == ["a", "b", "b", "a", "b", "c"]
    clock.ahead_ms += day_ms
    assert flow.run("k", "another input") == "c"


def test_recover_takes_as_many_as_it_is_told_and_nothing_keeps_it_waiting(store: semel.Store, effects: Effects) -> None:
    flow = made(store, unsafe("a", effects.of("a")), keyed("b", effects.of("b")))
    effects.raising["a"] = ConnectionError()
    for name in ("1", "2"):
        with pytest.raises(ConnectionError):
            flow.run(name, "x")
    effects.raising = {"b": ConnectionError()}
    for name in ("3", "4", "5"):
        with pytest.raises(ConnectionError):
            flow.run(name, "x")
    effects.raising.clear()
    assert [len(flow.recover(2).ended) for _ in range(3)] == [2, 1, 0]
    with pytest.raises(ValueError, match="at least 1"):
        flow.recover(0)


def test_what_cannot_be_stored(store: semel.Store) -> None:
    def unstorable(op: Op) -> sqlite3.Connection:
        raise AssertionError("it must not run")

    with pytest.raises(semel.Unstorable):
        made(store, keyed("a", unstorable), keyed("b", lambda op: None))
    flow = made(store, keyed("a", lambda op: "x" * 2_000), policy=semel.Policy(result_max=1_000))
    with pytest.raises(semel.Unstorable, match=r"do/a returned has 2\d\d\d bytes, and Policy.result_max is 1000"):
        flow.run("k", "x")


def test_what_is_refused_before_anything_runs(store: semel.Store, effects: Effects) -> None:
    step = keyed("a", effects.of("a"))

    async def coroutine(op: Op) -> None: ...

    def connected(op: Op, connection: object) -> None: ...

    for steps, error, words in (
        ([], ValueError, "at least one step"),
        ([step, step], ValueError, "two steps are called 'a'"),
        ([keyed("b", coroutine)], TypeError, "use AsyncFlow"),
        ([tx("b", connected)], semel.StoreMisconfigured, "transaction="),
    ):
        with pytest.raises(error, match=words):
            made(store, *steps)
    with pytest.raises(TypeError, match="use Flow"):
        AsyncFlow("f", [step], store="memory://", input=str, returns=object)
    with pytest.raises(ValueError, match="letters, digits"):
        keyed("a/b", effects.of("a"))
    with pytest.raises(TypeError, match="undo of the step 'a'"):
        keyed("a", effects.of("a"), "undo")  # type: ignore[arg-type]
    with pytest.raises(semel.StoreMisconfigured, match="closed"):
        made(store, step, policy=semel.Policy(on_store_error="open"))
    with pytest.raises(TypeError, match=r"flow.resolve"):
        made(store, step, reconcile=lambda: None)
    with pytest.raises(ValueError, match="243 bytes in UTF-8, the limit is 242"):
        made(store, step).run("k" * 243, "x")
    assert made(store, step).run("k" * 242, "x") is None


def test_a_transaction_elsewhere_is_refused(tmp_path: Path, effects: Effects) -> None:
    for name in ("store", "elsewhere"):
        with closing(semel.open_store(f"sqlite:///{tmp_path}/{name}.db")) as opened:
            opened.migrate()  # type: ignore[attr-defined]

    def begin() -> Any:
        return sqlite3.connect(tmp_path / "elsewhere.db")

    store = semel.open_store(f"sqlite:///{tmp_path}/store.db")
    flow = made(store, tx("a", lambda op, connection: None), transaction=begin)
    with pytest.raises(semel.StoreMisconfigured, match="not in the database of this transaction"):
        flow.run("k", "x")
    store.close()


@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_a_transaction_that_was_given_up_runs_again(world: World, clock: Clock, key: str) -> None:
    store = semel.open_store(world.url, clock=clock)
    tries: list[int] = []

    def order(op: Op, connection: Any) -> int:
        connection.execute(*world.insert("do/order", op))  # type: ignore[arg-type]
        tries.append(1)
        if len(tries) < 3:
            raise RetryTransaction("for the sake of others")
        return len(tries)

    def charge(op: Op, connection: Any) -> int:
        connection.execute(*world.insert("do/charge", op))  # type: ignore[arg-type]
        raise Declined("what was written is not kept")

    assert made(store, tx("order", order), transaction=world.begin).run(key, "x") == 3
    assert world.effects(key) == ["do/order"]
    declining = made(store, tx("charge", charge, charge), transaction=world.begin, final_errors=[Declined])
    with pytest.raises(semel.KeyReused):
        declining.run(key, "y")
    for _ in range(2):
        with pytest.raises(Declined, match="not kept"):
            declining.run(f"{key}2", "x")
    assert world.effects(f"{key}2") == []
    store.close()


@pytest.mark.parametrize("world", ["memory"], indirect=True)
def test_tasks_resolve_and_recover_as_threads_do(world: World, clock: Clock) -> None:
    async def main() -> None:
        store = semel.open_async_store(world.url, clock=clock)
        flow = world.aflow(store)
        world.hook = {"do/mail": 1}.__getitem__  # type: ignore[assignment]  # fails everywhere else
        with pytest.raises(KeyError):
            await flow.run("k", Trip("k"))
        world.hook = lambda place: None
        assert [key.name for key in (await flow.recover()).ended] == ["k"]
        assert await flow.run("k", Trip("k")) == "seat for k, order None"
        await store.close()

    asyncio.run(main())
    assert world.effects("k") == ["do/hold", "do/mail", "do/charge"]
