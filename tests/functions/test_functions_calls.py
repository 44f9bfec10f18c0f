"""The decorator and `run`: what runs, what is replayed, what is raised. Effects are counted outside of the results."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any, ClassVar

import pytest

import semel
from functions.shop import PATIENCE_S
from semel.events import Event, EventKind


@pytest.fixture
def store() -> semel.Store:
    return semel.open_store("memory://")


@pytest.fixture
def async_store() -> semel.AsyncStore:
    return semel.open_async_store("memory://")


class Declined(Exception):
    pass


class Busy(Exception):
    pass


Pay = Callable[[str, object], object]


@pytest.fixture(params=["sync", "async"])
def protect(request: pytest.FixtureRequest) -> Callable[..., Callable[[Callable[..., Any]], Pay]]:
    """`semel.idempotent` for a function, or for the same function as a coroutine, each call in a new event loop."""
    stores: dict[str, Any] = {"sync": semel.open_store("memory://"), "async": semel.open_async_store("memory://")}

    def protected(**options: Any) -> Callable[[Callable[..., Any]], Pay]:
        def decorate(work: Callable[..., Any]) -> Pay:
            once = semel.idempotent(store=stores[request.param], scope="pay", key="order", **options)
            if request.param == "sync":
                return once(work)

            @functools.wraps(work)
            async def coroutine(*args: Any) -> Any:
                await asyncio.sleep(0)
                return work(*args)

            called = once(coroutine)
            return lambda *args: asyncio.run(called(*args))

        return decorate

    return protected


Protect = Callable[..., Callable[[Callable[..., Any]], Pay]]


@pytest.mark.parametrize(
    "value", [None, False, 0, 0.0, "", b"", [], {}, (), Decimal("0.00"), set(), frozenset()], ids=repr
)
def test_falsy_results_are_results(protect: Protect, value: object) -> None:
    effects: list[object] = []

    @protect()
    def pay(order: str, amount: object) -> object:
        effects.append(order)
        return value

    first, second = pay("a", 1), pay("a", 1)
    assert (first, second) == (value, value)
    assert type(second) is type(value)
    assert effects == ["a"]


def test_other_arguments_under_the_same_key_are_refused(protect: Protect) -> None:
    effects: list[object] = []

    @protect()
    def pay(order: str, amount: object) -> int:
        effects.append(order)
        return 1

    pay("a", 1)
    for amount in (2, 1.0, "1", True, None):  # typed: none of them is the first one's
        with pytest.raises(semel.KeyReused, match="'a' of pay"):
            pay("a", amount)
    assert effects == ["a"]


def test_only_final_errors_are_stored(protect: Protect) -> None:
    effects: list[object] = []

    @protect(final_errors=(Declined,), policy=semel.Policy(lease=3600))
    def pay(order: str, amount: object) -> int:
        effects.append(order)
        raise Declined("no money", amount) if order == "final" else KeyError(order)

    for _ in range(3):
        with pytest.raises(Declined) as raised:
            pay("final", Decimal("1.0"))
        assert raised.value.args == ("no money", Decimal("1.0"))
    with pytest.raises(KeyError):
        pay("not final", 1)
    for _ in range(2):
        with pytest.raises(semel.OutcomeUnknown):  # at once: no executor is at work any more
            pay("not final", 1)
    assert effects == ["final", "not final"]


def test_an_error_under_at_least_once_is_taken_over(protect: Protect) -> None:
    attempts: list[int] = []

    @protect(policy=semel.Policy(guarantee="at-least-once", lease=3600))
    def pay(order: str, amount: object) -> int:
        operation = semel.current_operation()
        assert operation is not None
        attempts.append(operation.attempt)
        return 7 if operation.attempt > 1 else 1 // 0

    with pytest.raises(ZeroDivisionError):
        pay("a", 1)
    with pytest.raises(semel.KeyReused):  # the key is still that request's
        pay("a", 2)
    assert [pay("a", 1) for _ in range(2)] == [7, 7]
    assert attempts == [1, 2]


@pytest.mark.parametrize("way", ["NotExecuted", "release_exceptions", "nothing_done", "nothing_done and raised"])
def test_declared_nothing_done_gives_the_key_back(protect: Protect, way: str) -> None:
    effects: list[object] = []

    @protect(policy=semel.Policy(release_exceptions=(Busy,)))
    def pay(order: str, amount: object) -> object:
        effects.append(amount)
        operation = semel.current_operation()
        assert operation is not None
        if len(effects) > 1:
            return "done"
        if way == "NotExecuted":
            raise semel.NotExecuted("the bank is closed")
        if way == "release_exceptions":
            raise Busy
        operation.nothing_done()
        if "raised" in way:
            raise ValueError("not today")
        return "nothing"

    if way == "nothing_done":
        assert pay("a", 1) == "nothing"
    else:
        with pytest.raises((semel.NotExecuted, Busy, ValueError)):
            pay("a", 1)
    assert pay("a", 2) == pay("a", 2) == "done"
    assert effects == [1, 2]


def test_a_result_that_is_too_large_or_cannot_be_stored_leaves_the_key_protected(protect: Protect) -> None:
    effects: list[object] = []

    @protect(policy=semel.Policy(result_max=100), final_errors=(Declined,))
    def pay(order: str, amount: object):  # type: ignore[no-untyped-def]
        effects.append(order)
        if order == "error":
            raise Declined(threading.Lock())
        return "x" * 200 if order == "large" else threading.Lock()

    assert pay("large", 1) == "x" * 200  # the first caller has it
    with pytest.raises(semel.ResultNotKept, match="result_max is 100"):
        pay("large", 1)
    for _ in range(2):
        with pytest.raises(semel.ResultNotKept, match="lock cannot be stored"):
            pay("lock", 1)
    with pytest.raises(Declined) as raised:
        pay("error", 1)
    assert "ResultNotKept" in raised.value.__notes__[0]
    with pytest.raises(semel.ResultNotKept, match="lock"):
        pay("error", 1)
    assert effects == ["large", "lock", "error"]


def test_in_flight_raises_or_waits(store: semel.Store) -> None:
    begun, go_on, effects = threading.Event(), threading.Event(), []

    def pay(order: str) -> int:
        effects.append(order)
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return 7

    waits = semel.Policy(in_flight="wait", wait=PATIENCE_S)
    rejecting = semel.idempotent(store=store, scope="pay", key="order")(pay)
    waiting = semel.idempotent(store=store, scope="pay", key="order", policy=waits)(pay)
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(waiting("a"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert begun.wait(PATIENCE_S)
    with pytest.raises(semel.InProgress) as raised:
        rejecting("a")
    assert 0 < raised.value.retry_after <= 30
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert (results, effects) == ([7, 7, 7], ["a"])


def test_a_wait_is_bounded(async_store: semel.AsyncStore) -> None:
    @semel.idempotent(store=async_store, key="order", policy=semel.Policy(in_flight="wait", wait=0.02))
    async def pay(order: str) -> int:
        if order == "outer":
            with pytest.raises(semel.InProgress):
                await pay("outer")  # waits for itself
        return 1

    assert asyncio.run(pay("outer")) == 1


def test_an_expired_key_is_refused_if_the_policy_says_so() -> None:
    now_ms = [1_000_000]
    store = semel.open_store("memory://", clock=lambda: now_ms[0])
    effects: list[str] = []

    @semel.idempotent(store=store, key="order", policy=semel.Policy(retention=60, expired="refuse"))
    def pay(order: str) -> None:
        effects.append(order)

    pay("a")
    now_ms[0] += 61_000
    with pytest.raises(semel.KeyExpired):
        pay("a")
    now_ms[0] += 61_000
    pay("a")
    assert effects == ["a", "a"]


def test_keys_tenants_and_fingerprints_by_path(store: semel.Store) -> None:
    @dataclass
    class Command:
        payment_intent_id: int
        account: dict[str, str]
        note: object = None

    effects: list[int] = []
    paths: dict[str, Any] = {"key": "cmd.payment_intent_id", "tenant": "cmd.account.id"}

    @semel.idempotent(store=store, fingerprint=("cmd.payment_intent_id",), **paths)
    def pay(cmd: Command, session: object = None) -> int:
        effects.append(cmd.payment_intent_id)
        return len(effects)

    assert pay(Command(1, {"id": "ann"}), session=object()) == 1
    assert pay(cmd=Command(1, {"id": "ann"}, note=object())) == 1
    assert pay(Command(1, {"id": "bob"})) == 2  # no replay across tenants
    with pytest.raises(ValueError, match=r"tenant='cmd.account.id' of .*pay\(\): dict has no 'id'"):
        pay(Command(1, {}))
    with pytest.raises(ValueError, match="must be text, an integer or a UUID, not None"):
        pay(Command(None, {"id": "ann"}))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="has no parameter 'command'; it has cmd, session"):
        semel.idempotent(store=store, key="command.id")(pay)

    @semel.idempotent(store=store, **paths)
    def pay_all(cmd: Command, session: object = None) -> int:
        return 1

    with pytest.raises(semel.Unstorable, match=r"fingerprint=.*Nothing was run"):
        pay_all(Command(1, {"id": "ann"}), session=threading.Lock())


def test_keys_by_function_and_default_arguments(store: semel.Store) -> None:
    effects: list[str] = []

    @semel.idempotent(store=store, key=lambda user, amount, currency="EUR": semel.derived_key(user, amount, currency))
    def pay(user: str, amount: int, currency: str = "EUR") -> int:
        effects.append(user)
        return len(effects)

    assert pay("ann", 1) == pay("ann", 1, "EUR") == pay(amount=1, user="ann", currency="EUR") == 1
    assert pay("ann", 1, "USD") == 2


class Branch(str, Enum):  # noqa: UP042
    NORTH = "north"


class Till(int, Enum):
    FIRST = 1


def test_members_of_enumerations_are_keys_by_their_text_or_number(store: semel.Store) -> None:
    """Not by their name in Python: a class that is renamed does not run anything again."""
    effects: list[str] = []

    @semel.idempotent(store=store, key="order", tenant="shop", fingerprint=())
    def pay(shop: object, order: object) -> str:
        operation = semel.current_operation()
        assert operation is not None
        effects.append(operation.key.name)
        return operation.derive(Branch.NORTH)

    assert pay(Branch.NORTH, Branch.NORTH) == pay("north", "north")
    assert pay(Till.FIRST, Till.FIRST) == pay(1, 1) == pay("1", "1")
    assert effects == ["north", "1"]
    with semel.operation(Branch.NORTH, store=store, tenant=Branch.NORTH, scope=Branch.NORTH) as op:
        assert not op.replayed
        assert op.derive(Branch.NORTH) == op.derive("north")
    with semel.operation("north", store=store, tenant="north", scope="north") as op:
        assert op.replayed


class Shop:
    store = semel.open_store("memory://")
    effects: ClassVar[list[str]] = []

    def __init__(self, name: str) -> None:
        self.name = name

    @semel.idempotent(store=store, key="order", tenant="self.name")
    def pay(self, order: str) -> str:
        """Pays."""
        self.effects.append(f"{self.name} {order}")
        return self.name

    @classmethod
    @semel.idempotent(store=store, key="order")
    def refund(cls, order: str) -> str:
        cls.effects.append(f"{cls.__name__} {order}")
        return "refunded"

    @staticmethod
    @semel.idempotent(store=store, key="order")
    def ship(order: str) -> str:
        Shop.effects.append(order)
        return "shipped"


def test_methods() -> None:
    one, other = Shop("one"), Shop("other")
    assert [one.pay("a"), one.pay("a"), Shop("one").pay("a"), other.pay("a")] == ["one", "one", "one", "other"]
    assert [Shop.refund("a"), one.refund("a"), Shop.ship("a"), one.ship("a")] == ["refunded"] * 2 + ["shipped"] * 2
    assert Shop.effects == ["one a", "other a", "Shop a", "a"]
    assert (Shop.pay.__doc__, Shop.pay.__name__) == ("Pays.", "pay")


def test_a_plain_function_may_call_its_first_parameter_self_or_cls(
    protect: Callable[..., Callable[[Callable[..., Any]], Pay]],
) -> None:
    """It is an argument like others: another one makes another call."""
    effects: list[str] = []

    @protect()
    def charge(cls: str, order: str) -> str:
        effects.append(cls)
        return cls

    @protect(fingerprint=None)
    def refund(self: str, order: str) -> str:
        effects.append(self)
        return self

    assert [charge("gold", "1"), charge("gold", "1")] == ["gold", "gold"]
    with pytest.raises(semel.KeyReused):
        charge("silver", "1")
    assert refund("gold", "2") == "gold"
    with pytest.raises(semel.KeyReused):
        refund("silver", "2")
    assert effects == ["gold", "gold"]


class Counter:
    """Methods of every kind, one below another decorator, and one that is put there later."""

    store = semel.open_store("memory://")
    effects: ClassVar[list[str]] = []

    @staticmethod
    @semel.idempotent(store=store, key="order")
    def pack(cls: object, order: str) -> str:
        Counter.effects.append(f"pack {cls}")
        return "packed"

    @functools.lru_cache  # noqa: B019
    @semel.idempotent(store=store, key="order")
    def sell(self, order: str) -> str:
        Counter.effects.append("sell")
        return "sold"


@semel.idempotent(store=Counter.store, key="order")
def send(self: object, order: str) -> str:
    Counter.effects.append("send")
    return "sent"


Counter.send = send  # type: ignore[attr-defined]


class Branchless(Counter):
    pass


class Ticket:
    """No data by itself."""


class Torn(Exception):
    pass


def tear(_: object) -> str:
    raise Torn("no paper")


def test_an_adapter_that_fails_while_storing_leaves_the_key_protected(
    protect: Callable[..., Callable[[Callable[..., Any]], Pay]],
) -> None:
    """The work has run. Its result cannot be kept, which is known: nothing about the outcome is unknown."""
    effects: list[str] = []

    @protect(adapters={Ticket: (tear, tear)})
    def book(order: str, amount: object) -> Ticket:
        effects.append(order)
        return Ticket()

    for _ in range(2):
        with pytest.raises(semel.ResultNotKept, match="Torn: no paper"):
            book("1", 5)
    assert effects == ["1"]
    with pytest.raises(semel.Unstorable, match=r"Torn: no paper.*Nothing was run"):
        book("2", Ticket())
    assert effects == ["1"]


def test_an_adapter_that_fails_while_replaying_makes_the_record_unreadable(
    protect: Callable[..., Callable[[Callable[..., Any]], Pay]],
) -> None:
    """What it raises must not look as if the work had raised it."""
    effects: list[str] = []

    @protect(adapters={Ticket: (lambda ticket: "paper", tear)})
    def book(order: str) -> Ticket:
        effects.append(order)
        return Ticket()

    book("1")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    with pytest.raises(semel.RecordUnreadable, match="Torn"):
        book("1")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assert effects == ["1"]


def test_only_the_object_or_class_of_a_real_method_is_no_argument() -> None:
    Counter.effects.clear()
    assert [Counter.pack("gold", "1"), Counter().pack("gold", "1")] == ["packed", "packed"]
    for other in ("silver", Counter):
        with pytest.raises((semel.KeyReused, semel.Unstorable)):
            Counter.pack(other, "1")
    assert [Counter().sell("2"), Branchless().sell("2")] == ["sold", "sold"]
    assert [Counter().send("3"), Branchless().send("3")] == ["sent", "sent"]  # type: ignore[attr-defined]
    assert Counter.effects == ["pack gold", "sell", "send"]


def test_what_has_no_single_result_is_refused_before_it_runs(store: semel.Store) -> None:
    once = semel.idempotent(store=store, key="order")

    def numbers(order: str) -> Iterator[int]:
        yield 1

    async def anumbers(order: str) -> Any:
        yield 1

    def lazily(order: str) -> Awaitable[int]:
        raise AssertionError

    for each in (numbers, anumbers):
        with pytest.raises(TypeError, match="is a generator: it has no single result"):
            once(each)
    with pytest.raises(semel.Unstorable, match="Awaitable cannot be stored"):
        once(lazily)
    with pytest.raises(TypeError, match="write @staticmethod above"):
        once(staticmethod(len))
    with pytest.raises(TypeError, match="is neither"):
        once(Shop)
    with pytest.raises(TypeError, match="has no name of its own"):
        once(lambda order: order)


def test_a_return_type_that_is_defined_later(store: semel.Store) -> None:
    @semel.idempotent(store=store, key="order")
    def pay(order: str) -> Later:
        return Later(order)

    assert pay("a") == pay("a") == Later("a")

    @semel.idempotent(store=store, key="order")
    def never(order: str) -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
        raise AssertionError("it ran")

    with pytest.raises(semel.Unstorable, match="returns=TheType"):
        never("a")


@dataclass
class Later:
    order: str


def test_what_makes_no_sense_is_refused_at_once(store: semel.Store, async_store: semel.AsyncStore) -> None:
    def pay(order: str) -> int:
        return 1

    async def apay(order: str) -> int:
        return 1

    def refused(match: str, kind: type[Exception] = semel.StoreMisconfigured, **options: Any) -> None:
        with pytest.raises(kind, match=match):
            semel.idempotent(**{"store": store, "key": "order", **options})(pay)

    refused("exactly-once", policy=semel.Policy(guarantee="exactly-once"))
    refused("accept", policy=semel.Policy(in_flight="accept"))
    refused("Policy.quota", policy=semel.Policy(quota="1/minute"))
    refused("Policy.scope", policy=semel.Policy(scope="tenant"))
    refused("never asked", policy=semel.Policy(guarantee="at-least-once"), reconcile=pay)
    refused("async store", TypeError, store=async_store)
    refused("must be a store", TypeError, store=object())
    refused("coroutine function", TypeError, reconcile=apay)
    refused("exception types", TypeError, final_errors=(1,))
    with pytest.raises(TypeError, match="sync store"):
        semel.idempotent(store=store, key="order")(apay)


def test_run_and_arun(store: semel.Store, async_store: semel.AsyncStore) -> None:
    effects: list[int] = []

    def pay(amount: int) -> int:
        effects.append(amount)
        return amount

    async def apay(amount: int) -> int:
        effects.append(amount)
        return amount

    assert semel.run("a", pay, 1, store=store) == semel.run("a", pay, 1, store=store) == 1
    with pytest.raises(semel.KeyReused):
        semel.run("a", pay, 2, store=store)
    assert semel.run("a", functools.partial(pay, amount=3), store=store, scope="partial") == 3

    async def main() -> None:
        assert [await semel.arun("a", apay, 1, store=async_store) for _ in range(2)] == [1, 1]
        with pytest.raises(TypeError, match=r"semel\.run"):
            await semel.arun("a", pay, 1, store=async_store)  # type: ignore[arg-type]

    asyncio.run(main())
    with pytest.raises(TypeError, match=r"semel\.arun"):
        semel.run("a", apay, 1, store=store)  # type: ignore[unused-coroutine]
    assert effects == [1, 3, 1]


def test_one_url_is_one_store_and_a_running_loop_is_no_obstacle() -> None:
    """As in a notebook: cells run in a loop, and run again."""
    effects: list[str] = []

    def cell() -> Callable[[str], int]:
        @semel.idempotent(store="memory://", key="order", scope="notebook")
        def pay(order: str) -> int:
            effects.append(order)
            return 1

        return pay

    async def notebook() -> None:
        assert cell()("a") == cell()("a") == 1

    asyncio.run(notebook())
    assert effects == ["a"]


def test_events_tell_what_happened(store: semel.Store) -> None:
    events: list[Event] = []

    @semel.idempotent(store=store, key="order", on_event=events.append)
    def pay(order: str) -> int:
        return 1

    pay("a")
    pay("a")
    assert [event.kind for event in events] == [EventKind.CLAIMED, EventKind.COMPLETED, EventKind.REPLAYED]


def test_a_superseded_function_returns_what_the_store_holds() -> None:
    now_ms = [1_000_000]
    policy = semel.Policy(guarantee="at-least-once")
    effects: list[int] = []

    def overtaken() -> int:
        """The attempt, and the clock of the store moves on past its lease."""
        operation = semel.current_operation()
        assert operation is not None
        effects.append(operation.attempt)
        now_ms[0] += 31_000
        return operation.attempt

    @semel.idempotent(store=semel.open_store("memory://", clock=lambda: now_ms[0]), key="order", policy=policy)
    def pay(order: str) -> int:
        attempt = overtaken()
        return attempt if attempt == 3 else pay(order) * 0 + attempt

    async_store = semel.open_async_store("memory://", clock=lambda: now_ms[0])

    @semel.idempotent(store=async_store, key="order", policy=policy)
    async def apay(order: str) -> int:
        attempt = overtaken()
        return attempt if attempt == 3 else await apay(order) * 0 + attempt

    assert (pay("a"), pay("a")) == (3, 3)
    assert asyncio.run(apay("a")) == 3
    assert effects == [1, 2, 3, 1, 2, 3]


def test_a_caller_who_stops_waiting_disturbs_nobody(async_store: semel.AsyncStore) -> None:
    effects: list[str] = []

    async def main() -> None:
        go_on = asyncio.Event()

        @semel.idempotent(store=async_store, key="order", policy=semel.Policy(in_flight="wait", wait=PATIENCE_S))
        async def pay(order: str) -> int:
            effects.append(order)
            await go_on.wait()
            return 7

        first, second = asyncio.create_task(pay("a")), asyncio.create_task(pay("a"))
        while not effects:
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        go_on.set()
        assert (await first, await pay("a")) == (7, 7)

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert effects == ["a"]


def test_an_error_of_an_operation_within_is_an_error_of_the_work(store: semel.Store) -> None:
    @semel.idempotent(store=store, key="order")
    def pay(order: str) -> None:
        raise semel.Superseded("of another operation")

    with pytest.raises(semel.Superseded, match="another operation"):
        pay("a")
