"""The drivers decide nothing: they perform effects and hand back replies and store failures."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from semel.core.effects import (
    Claim,
    Complete,
    Doubts,
    Effect,
    Emit,
    Pause,
    Plan,
    Read,
    Release,
    Renew,
    Wait,
    Within,
    do,
)
from semel.core.records import Acquired, Key, Lease, Result
from semel.errors import RecordUnreadable, StoreError, StoreMisconfigured, StoreUnavailable
from semel.events import Event, EventKind
from semel.runtime.deadline import SHARED_DUE_S
from semel.runtime.drive import adrive, drive
from semel.runtime.listener import ignore, logged
from semel.runtime.perform import POLL_MS, async_performer, performer
from semel.store import AsyncStore, AsyncWatchable, Store, Watchable
from semel.stores.memory import AsyncMemoryStore, MemoryStore

T = TypeVar("T")
KEY = Key("tenant", "scope", "name")
ANSWER = Result("text", b"paid")
EVENT = Event(EventKind.CLAIMED, KEY, 1)
Perform = Callable[[Effect[Any]], Any]
Drive = Callable[[Plan[Any], Perform], Any]


def drive_async(plan: Plan[T], perform: Perform) -> T:
    async def aperform(effect: Effect[Any]) -> Any:
        return perform(effect)

    return asyncio.run(adrive(plan, aperform))


both = pytest.mark.parametrize("run", [drive, drive_async])


@pytest.mark.parametrize("driver", [drive, adrive])
def test_a_driver_is_short(driver: Callable[..., Any]) -> None:
    assert len(inspect.getsource(driver).splitlines()) < 40


@both
def test_effects_are_performed_in_order_and_replies_handed_back(run: Drive) -> None:
    def plan() -> Plan[list[int]]:
        return [(yield from do(Wait(KEY, "a", 1))), (yield from do(Wait(KEY, "b", 2)))]

    asked: list[Effect[Any]] = []

    def perform(effect: Effect[Any]) -> int:
        asked.append(effect)
        return 10 * len(asked)

    assert run(plan(), perform) == [10, 20]
    assert asked == [Wait(KEY, "a", 1), Wait(KEY, "b", 2)]


@both
def test_a_plan_may_ask_for_nothing(run: Drive) -> None:
    def plan(pauses: int) -> Plan[str]:
        for _ in range(pauses):
            yield Pause(1)
        return "at once"

    assert run(plan(0), lambda effect: None) == "at once"


@both
@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreMisconfigured("wrong"), RecordUnreadable("new")])
def test_a_store_failure_is_thrown_into_the_plan(run: Drive, error: StoreError) -> None:
    def plan() -> Plan[tuple[StoreError, str]]:
        try:
            yield Read(KEY)
        except StoreError as caught:
            return caught, (yield Pause(1))
        raise AssertionError

    def perform(effect: Effect[Any]) -> str:
        if isinstance(effect, Read):
            raise error
        return "paused"

    assert run(plan(), perform) == (error, "paused")


@both
def test_a_store_failure_that_the_plan_does_not_expect_goes_to_the_caller(run: Drive) -> None:
    def perform(effect: Effect[Any]) -> None:
        raise StoreUnavailable("away")

    with pytest.raises(StoreUnavailable, match="away"):
        run(do(Read(KEY)), perform)


@pytest.mark.parametrize("error", [KeyError("driver"), KeyboardInterrupt(), StopIteration("a reply?")])
def test_any_other_exception_closes_the_plan_and_goes_to_the_caller(error: BaseException) -> None:
    closed: list[str] = []

    def plan() -> Plan[str]:
        try:
            yield Pause(1)
        except Exception:
            closed.append("seen by the plan")
        finally:
            closed.append("closed")
        return "a decision"

    def perform(effect: Effect[Any]) -> None:
        raise error

    with pytest.raises(type(error)):
        drive(plan(), perform)
    assert closed == ["closed"]


def test_a_cancelled_task_closes_its_plan() -> None:
    closed: list[str] = []

    def plan() -> Plan[None]:
        try:
            yield Pause(60_000)
        finally:
            closed.append("closed")

    async def main() -> None:
        task = asyncio.create_task(adrive(plan(), async_performer(AsyncMemoryStore())))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert closed == ["closed"]


def perform_on(store: Store, on_event: Callable[[Event], None] = ignore) -> Perform:
    return performer(store, on_event)


def perform_on_async(store: AsyncStore, on_event: Callable[[Event], None] = ignore) -> Perform:
    async def run(awaitable: Awaitable[Any]) -> Any:
        return await awaitable

    return lambda effect: asyncio.run(run(async_performer(store, on_event)(effect)))


def memory() -> Perform:
    return perform_on(MemoryStore(clock=lambda: 0))


def async_memory() -> Perform:
    return perform_on_async(AsyncMemoryStore(clock=lambda: 0))


class Named(MemoryStore):
    """Does more than its face in one method, so that all are called by their names."""

    claims = 0

    def claim(self, *args: Any, **more: Any) -> Any:
        self.claims += 1
        return super().claim(*args, **more)


class AsyncNamed(AsyncMemoryStore):
    claims = 0

    async def claim(self, *args: Any, **more: Any) -> Any:
        self.claims += 1
        return await super().claim(*args, **more)


def named() -> Perform:
    return perform_on(Named(clock=lambda: 0))


def async_named() -> Perform:
    return perform_on_async(AsyncNamed(clock=lambda: 0))


def test_a_store_that_does_more_in_a_method_is_asked_by_that_method() -> None:
    claim = Claim(KEY, "1.f", "owner", 30, 1_000, takeover=False)
    store, tasks, wrapped = Named(), AsyncNamed(), MemoryStore()
    seen: list[Key] = []
    original = wrapped.claim

    def note(key: Key, *args: Any, **more: Any) -> Any:
        seen.append(key)
        return original(key, *args, **more)

    wrapped.claim = note  # type: ignore[method-assign]
    perform_on(store)(claim)
    perform_on_async(tasks)(claim)
    perform_on(wrapped)(claim)
    assert (store.claims, tasks.claims, seen) == (1, 1, [KEY])


@pytest.mark.parametrize("make", [memory, async_memory, named, async_named])
def test_each_call_reaches_the_store_with_its_arguments(make: Callable[[], Perform]) -> None:
    perform = make()
    lease = Lease(KEY, "owner", 1, 30)
    assert perform(Claim(KEY, "1.f", "owner", 30, 1_000, takeover=False)) == Acquired(lease)
    assert perform(Renew(lease, 60)) == Lease(KEY, "owner", 1, 60)
    assert perform(Complete(lease, ANSWER, 500))
    record = perform(Read(KEY))
    assert (record.result, record.expires_ms) == (ANSWER, 500)
    assert perform(Release(lease)) is False


@pytest.mark.parametrize("make", [memory, async_memory])
def test_waiting_takes_no_longer_than_it_must_and_says_how_long(make: Callable[[], Perform]) -> None:
    perform = make()
    assert perform(Wait(KEY, "nobody", 10_000)) < 1_000, "nobody holds it"
    perform(Claim(KEY, "1.f", "owner", 30_000, 30_000, takeover=False))
    assert 10 <= perform(Wait(KEY, "owner", 10)) < 1_000


class Unwatchable(MemoryStore):
    wait = None  # type: ignore[assignment]


class AsyncUnwatchable(AsyncMemoryStore):
    wait = None  # type: ignore[assignment]


@pytest.mark.parametrize("perform", [perform_on(Unwatchable()), perform_on_async(AsyncUnwatchable())])
def test_a_store_that_cannot_be_watched_is_asked_again_after_a_while(perform: Perform) -> None:
    assert not isinstance(Unwatchable(), Watchable)
    assert not isinstance(AsyncUnwatchable(), AsyncWatchable)
    perform(Claim(KEY, "1.f", "owner", 30_000, 30_000, takeover=False))
    assert perform(Wait(KEY, "owner", 5)) >= 5
    assert POLL_MS <= perform(Wait(KEY, "owner", 60_000)) < 5_000


class Unsure(MemoryStore):
    def doubts(self, before: frozenset[str] | None) -> frozenset[str]:
        return frozenset({"a"}) if before is None else before


class AsyncUnsure(AsyncMemoryStore):
    async def doubts(self, before: frozenset[str] | None) -> frozenset[str]:
        return frozenset({"a"}) if before is None else before


@pytest.mark.parametrize("perform", [perform_on(Unsure()), perform_on_async(AsyncUnsure())])
def test_a_store_tells_its_doubts(perform: Perform) -> None:
    assert perform(Doubts(None)) == {"a"}
    assert perform(Doubts(frozenset({"b"}))) == {"b"}


@pytest.mark.parametrize("make", [memory, async_memory])
def test_a_store_that_has_none_is_sure(make: Callable[[], Perform]) -> None:
    assert make()(Doubts(None)) == frozenset()


@pytest.mark.parametrize("make", [memory, async_memory])
def test_pausing(make: Callable[[], Perform]) -> None:
    perform = make()
    before_ms = perform(Pause(1))
    assert perform(Pause(5)) - before_ms >= 5, "the driver's clock says how long it was"


class Unheard:
    """A listener that fails."""

    def __init__(self) -> None:
        self.told: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.told.append(event)
        raise StoreUnavailable("the metrics server, not the store")


@pytest.mark.parametrize(
    "wrap", [lambda on: perform_on(MemoryStore(), on), lambda on: perform_on_async(AsyncMemoryStore(), on)]
)
def test_a_listener_that_fails_is_reported_and_changes_nothing(
    wrap: Callable[[Callable[[Event], None]], Perform], caplog: pytest.LogCaptureFixture
) -> None:
    listener = Unheard()
    assert wrap(logged(listener))(Emit(EVENT)) is None
    assert listener.told == [EVENT]
    assert "the listener failed on claimed" in caplog.text


def test_those_who_do_not_listen() -> None:
    assert perform_on(MemoryStore())(Emit(EVENT)) is None


class Strange(Effect[None], frozen=True):
    def __repr__(self) -> str:
        return "Strange()"


@pytest.mark.parametrize("make", [memory, async_memory])
def test_what_no_store_performs(make: Callable[[], Perform]) -> None:
    with pytest.raises(TypeError, match=r"no store performs Strange\(\)"):
        make()(Strange())


def test_a_call_within_a_deadline_shares_it_and_no_other_does() -> None:
    seen: list[float | None] = []

    class Noting(MemoryStore):
        def get(self, key: Key) -> None:
            seen.append(SHARED_DUE_S.get())

    class AsyncNoting(AsyncMemoryStore):
        async def get(self, key: Key) -> None:
            seen.append(SHARED_DUE_S.get())

    def plan() -> Plan[None]:
        for effect in (Within(Read(KEY), 7_500), Read(KEY)):
            yield from do(effect)

    drive(plan(), performer(Noting()))
    asyncio.run(adrive(plan(), async_performer(AsyncNoting())))
    assert seen == [7.5, None] * 2


def test_a_pause_ends_with_the_time_of_the_call() -> None:
    now_ms = round(time.monotonic() * 1000)
    for pause in (Pause(60_000, now_ms + 10), Pause(60_000, now_ms - 10)):
        assert now_ms <= drive(do(pause), performer(MemoryStore())) < now_ms + 30_000
        assert now_ms <= asyncio.run(adrive(do(pause), async_performer(AsyncMemoryStore()))) < now_ms + 30_000
