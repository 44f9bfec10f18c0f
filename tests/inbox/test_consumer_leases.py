"""Consumers whose effect is elsewhere: under a lease, with the guarantee that the policy declares."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import semel
from inbox.shop import a_delivery, handlings
from semel.core.verdicts import Handling, Settling
from semel.errors import NotExecuted, StoreMisconfigured, StoreUnavailable
from semel.inbox import AsyncInbox, Delivery, Inbox, Verdict
from semel.runtime.operation import current_operation
from semel.store import Migratable
from semel.stores.memory import AsyncMemoryStore, MemoryStore
from semel.testing import ManualClock
from waiting import until

AT_LEAST = semel.Policy(guarantee="at-least-once")
HANDLER = "orders.mailer"


class Mailer:
    """A handler that sends a mail, which is the effect, then does what `then` says."""

    def __init__(self, store: Any, *, is_async: bool, **options: Any) -> None:
        self.sent: list[Delivery] = []
        self.keys: list[str] = []
        self.then: Callable[[Delivery], object] = lambda delivery: None
        self.loop = asyncio.new_event_loop() if is_async else None
        chosen = {name: options.pop(name) for name in ("reconcile",) if name in options}
        inbox: Any = (AsyncInbox if is_async else Inbox)(options.pop("handler", HANDLER), store=store, **options)
        self.consumer: Any = inbox.consumer(self.ahandle if is_async else self.handle, **chosen)

    def handle(self, delivery: Delivery) -> object:
        operation = current_operation()
        assert operation is not None
        self.keys.append(operation.derive("mail"))
        self.sent.append(delivery)
        return self.then(delivery)

    async def ahandle(self, delivery: Delivery) -> None:
        done = self.handle(delivery)
        if inspect.isawaitable(done):
            await done

    def deliver(self, *deliveries: Delivery) -> list[Verdict]:
        return [self.end(self.consumer(each)) for each in deliveries]

    def end(self, reply: Any) -> Any:
        return reply if self.loop is None else self.loop.run_until_complete(reply)

    def raise_in(self, *deliveries: Delivery, error: BaseException) -> None:
        def then(delivery: Delivery) -> None:
            if delivery in deliveries:
                raise error

        self.then = then


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    fixed = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/semel.db"}
    return fixed.get(request.param) or str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(params=[False, True], ids=["threads", "tasks"])
def make(request: pytest.FixtureRequest, url: str) -> Iterator[Callable[..., Mailer]]:
    """Makes mailers on one store, with one clock."""
    clock, is_async = ManualClock(), request.param
    store: Any = (semel.open_async_store if is_async else semel.open_store)(url, clock=clock)
    loop = asyncio.new_event_loop() if is_async else None
    if isinstance(store, Migratable):
        migrated: Any = store.migrate()
        if loop is not None:
            loop.run_until_complete(migrated)
    mailers: list[Mailer] = []

    def mailer(**options: Any) -> Mailer:
        made = Mailer(store, is_async=is_async, **options)
        if loop is not None:
            assert made.loop is not None
            made.loop.close()
            made.loop = loop
        mailers.append(made)
        return made

    mailer.clock = clock  # type: ignore[attr-defined]
    yield mailer
    closed: Any = store.close()
    if loop is not None:
        loop.run_until_complete(closed)
        loop.close()


def test_a_message_is_handled_once_however_often_it_is_delivered(make: Callable[..., Mailer]) -> None:
    mailer, delivery = make(), a_delivery()
    verdicts = mailer.deliver(delivery, delivery)
    assert handlings(verdicts) == [Handling.HANDLED, Handling.DUPLICATE]
    assert len(mailer.sent) == 1


def test_at_most_once_a_failure_leaves_the_outcome_unknown_and_parks(make: Callable[..., Mailer]) -> None:
    mailer, delivery = make(), a_delivery()
    mailer.raise_in(delivery, error=ConnectionResetError("the mail server hung up"))
    verdicts = mailer.deliver(delivery, delivery, delivery)
    assert handlings(verdicts) == [Handling.UNKNOWN] * 3
    assert {verdict.settling for verdict in verdicts} == {Settling.PARK}
    assert "the mail server hung up" in verdicts[0].reason
    assert len(mailer.sent) == 1


def test_at_least_once_a_failure_is_counted_and_run_again_under_the_same_keys(make: Callable[..., Mailer]) -> None:
    mailer, delivery, poison = make(policy=AT_LEAST, attempts_max=3), a_delivery(), a_delivery()
    mailer.raise_in(delivery, poison, error=ConnectionResetError("the mail server hung up"))
    [first] = mailer.deliver(delivery)
    assert (first.handling, first.attempt, first.delay_ms) == (Handling.RAISED, 1, 1_000)
    verdicts = mailer.deliver(poison, poison, poison)
    assert handlings(verdicts) == [Handling.RAISED, Handling.RAISED, Handling.EXHAUSTED]
    assert [verdict.attempt for verdict in verdicts] == [1, 2, 3]
    mailer.then = lambda delivery: None
    assert handlings(mailer.deliver(delivery, delivery, poison)) == [
        Handling.HANDLED,
        Handling.DUPLICATE,
        Handling.HANDLED,
    ]
    assert len({mailer.keys[0], mailer.keys[4]}) == 1, "the mail server can tell the second try by its key"


def test_a_final_error_is_stored_and_every_redelivery_is_a_dead_letter(make: Callable[..., Mailer]) -> None:
    mailer, delivery = make(final_errors=[LookupError]), a_delivery()
    mailer.raise_in(delivery, error=KeyError("customer"))
    verdicts = mailer.deliver(delivery, delivery)
    assert handlings(verdicts) == [Handling.FINAL] * 2
    assert {verdict.settling for verdict in verdicts} == {Settling.DEAD_LETTER}
    assert len(mailer.sent) == 1


@pytest.mark.parametrize("how", ["raised", "declared", "by policy"])
def test_what_was_not_done_is_delivered_again_and_never_counted(make: Callable[..., Mailer], how: str) -> None:
    policy = semel.Policy(release_exceptions=[TimeoutError])
    mailer, delivery = make(attempts_max=1, policy=policy), a_delivery()

    def declare(delivery: Delivery) -> None:
        operation = current_operation()
        assert operation is not None
        operation.nothing_done()

    mailer.then = declare
    if how != "declared":
        mailer.raise_in(delivery, error=NotExecuted("closed") if how == "raised" else TimeoutError("no connection"))
    assert handlings(mailer.deliver(delivery, delivery)) == [Handling.NOTHING_DONE] * 2
    mailer.then = lambda delivery: None
    assert handlings(mailer.deliver(delivery)) == [Handling.HANDLED]


def test_the_same_id_with_another_payload_is_a_dead_letter(make: Callable[..., Mailer]) -> None:
    mailer, first = make(), a_delivery()
    other = a_delivery("another payload", id=first.id)
    assert handlings(mailer.deliver(first, other)) == [Handling.HANDLED, Handling.REUSED]
    assert mailer.sent == [first]


def test_a_batch_is_handled_one_by_one_and_a_message_in_it_once(make: Callable[..., Mailer]) -> None:
    mailer, one, two, nameless = make(), a_delivery(), a_delivery(), Delivery(b"x")
    verdicts = mailer.end(mailer.consumer.handle_batch([one, two, one, nameless]))
    assert handlings(verdicts) == [Handling.HANDLED, Handling.HANDLED, Handling.DUPLICATE, Handling.UNNAMED]
    assert mailer.sent == [one, two]


def test_two_handlers_each_handle_a_message(make: Callable[..., Mailer]) -> None:
    delivery, one, two = a_delivery(), make(handler="one"), make(handler="two")
    assert handlings([*one.deliver(delivery), *two.deliver(delivery), *one.deliver(delivery)]) == [
        Handling.HANDLED,
        Handling.HANDLED,
        Handling.DUPLICATE,
    ]


def test_after_its_retention_a_message_is_new_again(make: Callable[..., Mailer]) -> None:
    """The boundary of the promise: choose a retention above the longest redrive."""
    mailer, delivery, clock = make(), a_delivery(), make.clock  # type: ignore[attr-defined]
    mailer.deliver(delivery)
    week_ms = 7 * 24 * 3600 * 1000
    clock.advance(week_ms - 1)
    assert handlings(mailer.deliver(delivery)) == [Handling.DUPLICATE]
    clock.advance(1)
    assert handlings(mailer.deliver(delivery)) == [Handling.HANDLED]
    assert len(mailer.sent) == 2


@pytest.mark.parametrize(
    ("answer", "handled", "sent"),
    [
        (semel.StillUnknown(), Handling.UNKNOWN, 1),
        (semel.NotDone(), Handling.HANDLED, 2),
        (None, Handling.DUPLICATE, 1),
    ],
    ids=["unknown", "not done", "done"],
)
def test_a_reconciler_ends_an_unknown_outcome(
    make: Callable[..., Mailer], answer: object, handled: Handling, sent: int
) -> None:
    asked: list[Delivery] = []

    def reconcile(delivery: Delivery) -> object:
        asked.append(delivery)
        return answer

    mailer, delivery = make(reconcile=reconcile), a_delivery()
    mailer.raise_in(delivery, error=ConnectionResetError("hung up"))
    assert handlings(mailer.deliver(delivery)) == [Handling.UNKNOWN]
    mailer.then = lambda delivery: None
    assert handlings(mailer.deliver(delivery)) == [handled]
    assert asked == [delivery]
    assert len(mailer.sent) == sent


def test_an_interrupt_goes_through_and_the_outcome_is_unknown(make: Callable[..., Mailer]) -> None:
    mailer, delivery, clock = make(), a_delivery(), make.clock  # type: ignore[attr-defined]
    mailer.raise_in(delivery, error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        mailer.deliver(delivery)
    assert handlings(mailer.deliver(delivery)) == [Handling.IN_PROGRESS]
    clock.advance(30_000)
    assert handlings(mailer.deliver(delivery)) == [Handling.UNKNOWN]
    assert len(mailer.sent) == 1


# Two deliveries at once


def test_a_delivery_beside_a_running_one_is_delivered_again_soon_and_never_counted() -> None:
    with MemoryStore() as store:
        mailer, delivery = Mailer(store, is_async=False, attempts_max=1), a_delivery()
        entered, leave = threading.Event(), threading.Event()

        def hold(delivery: Delivery) -> None:
            entered.set()
            leave.wait(30)

        mailer.then = hold
        verdicts: list[Verdict] = []
        first = threading.Thread(target=lambda: verdicts.extend(mailer.deliver(delivery)))
        first.start()
        entered.wait(30)
        [beside] = mailer.deliver(delivery)
        assert (beside.handling, beside.settling, beside.counted) == (
            Handling.IN_PROGRESS,
            Settling.DELIVER_AGAIN,
            False,
        )
        assert 0 < beside.delay_ms <= 10_000
        leave.set()
        first.join(30)
        assert handlings([*verdicts, *mailer.deliver(delivery)]) == [Handling.HANDLED, Handling.DUPLICATE]
        assert len(mailer.sent) == 1


def test_a_delivery_may_wait_for_the_running_one() -> None:
    async def main() -> list[Verdict]:
        async with AsyncMemoryStore() as store:
            entered, sent = asyncio.Event(), []

            async def handle(delivery: Delivery) -> None:
                sent.append(delivery)
                entered.set()
                await asyncio.sleep(0.02)

            policy = semel.Policy(in_flight="wait", wait=30)
            consumer = AsyncInbox(HANDLER, store=store, policy=policy).consumer(handle)
            delivery = a_delivery()
            verdicts = await asyncio.gather(consumer(delivery), consumer(delivery), consumer(delivery))
            assert len(sent) == 1
            return list(verdicts)

    assert sorted(each.name for each in handlings(asyncio.run(main()))) == ["DUPLICATE", "DUPLICATE", "HANDLED"]


def test_an_executor_that_was_taken_over_does_not_speak_for_the_message() -> None:
    clock = ManualClock()
    with MemoryStore(clock=clock) as store:
        slow, quick = (Mailer(store, is_async=False, policy=AT_LEAST) for _ in range(2))
        delivery, verdicts = a_delivery(), []

        def overtake(_: Delivery) -> None:
            clock.advance(30_000)  # its lease lapses, and another consumer takes the message over
            verdicts.extend(quick.deliver(delivery))

        slow.then = overtake
        assert handlings([*slow.deliver(delivery), *verdicts]) == [Handling.DUPLICATE, Handling.HANDLED]


def test_the_lease_is_renewed_while_the_handler_runs() -> None:
    with MemoryStore() as store:
        policy = semel.Policy(lease=0.06, guarantee="at-least-once")
        mailer, delivery, beside = (
            Mailer(store, is_async=False, policy=policy),
            a_delivery(),
            Mailer(store, is_async=False, policy=policy),
        )
        seen: list[Handling] = []

        def hold(delivery: Delivery) -> None:
            for _ in range(6):
                threading.Event().wait(0.04)
                seen.extend(handlings(beside.deliver(delivery)))

        mailer.then = hold
        assert handlings(mailer.deliver(delivery)) == [Handling.HANDLED]
        assert set(seen) == {Handling.IN_PROGRESS}
        assert beside.sent == []


# A store that is away


class Failing:
    """A memory store that fails on chosen calls."""

    def __init__(self) -> None:
        self.within = semel.open_store("memory://")
        self.fails: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.within, name)
        if name not in ("claim", "renew", "complete", "release", "get", "count_attempt"):
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            if name in self.fails:
                raise StoreUnavailable("no route to host")
            return method(*args, **kwargs)

        return call

    def count_attempt(self, key: Any, error: str, *, retention_ms: int) -> int:
        return int(self.__getattr__("count_attempt")(key, error, retention_ms=retention_ms))


def test_a_store_that_is_away_stops_the_consumer_before_anything_runs() -> None:
    store = Failing()
    mailer, delivery = Mailer(store, is_async=False), a_delivery()
    store.fails = {"claim", "get", "release"}
    [verdict] = mailer.deliver(delivery)
    assert (verdict.handling, verdict.settling, verdict.counted) == (Handling.STORE_AWAY, Settling.STOP, False)
    assert mailer.sent == []
    store.fails = set()
    until(lambda: handlings(mailer.deliver(delivery)) == [Handling.HANDLED], "it comes back, and the claim is free")
    assert len(mailer.sent) == 1


def test_a_message_whose_record_was_not_stored_is_not_acknowledged() -> None:
    store = Failing()
    mailer, delivery = Mailer(store, is_async=False, policy=semel.Policy(lease=0.05)), a_delivery()
    store.fails = {"complete", "get"}
    [verdict] = mailer.deliver(delivery)
    assert (verdict.handling, verdict.settling) == (Handling.STORE_AWAY, Settling.STOP)
    store.fails = set()
    until(lambda: handlings(mailer.deliver(delivery)) == [Handling.UNKNOWN], "it is parked, as nobody can tell")
    assert len(mailer.sent) == 1


def test_an_attempt_that_cannot_be_counted_stops_the_consumer() -> None:
    store = Failing()
    mailer, delivery = Mailer(store, is_async=False, policy=AT_LEAST, attempts_max=1), a_delivery()
    mailer.raise_in(delivery, error=ValueError("it burnt"))
    store.fails = {"count_attempt"}
    [away] = mailer.deliver(delivery)
    assert (away.handling, "was not counted" in away.reason) == (Handling.STORE_AWAY, True)
    store.fails = set()
    assert handlings(mailer.deliver(delivery)) == [Handling.EXHAUSTED]


# What is refused at the beginning


class Uncounting:
    """A store of a third party, with the seven calls only."""

    def __init__(self) -> None:
        within = semel.open_store("memory://")
        self.claim, self.renew, self.complete, self.release = (
            within.claim,
            within.renew,
            within.complete,
            within.release,
        )
        self.get, self.purge, self.close = within.get, within.purge, within.close


def test_a_store_that_cannot_count_is_refused_where_attempts_are_counted() -> None:
    handled = ANY_INBOX(HANDLER, store=Uncounting()).consumer(lambda delivery: None)
    assert handled(a_delivery()).handling is Handling.HANDLED
    with pytest.raises(TypeError, match="Uncounting cannot: it has no count_attempt"):
        ANY_INBOX(HANDLER, store=Uncounting(), policy=AT_LEAST).consumer(lambda delivery: None)


ANY_INBOX: Any = Inbox
ANY_ASYNC_INBOX: Any = AsyncInbox


async def ahandle(delivery: Delivery) -> None:
    pass


def handle(delivery: Delivery) -> None:
    pass


@pytest.mark.parametrize(
    ("mistake", "error", "message"),
    [
        (lambda: ANY_INBOX("", store="memory://"), ValueError, "handler must not be empty"),
        (lambda: ANY_INBOX("a\nb"), ValueError, "handler must be printable"),
        (lambda: ANY_INBOX("h", attempt_max=3), TypeError, "did you mean attempts_max="),
        (lambda: ANY_INBOX("h", attempts_max=0), ValueError, "attempts_max= must be between 1"),
        (lambda: ANY_INBOX("h", attempts_max="5"), TypeError, "attempts_max= must be a whole number"),
        (lambda: ANY_INBOX("h", policy={"lease": 3}), TypeError, "must be a semel.Policy"),
        (lambda: ANY_INBOX("h", retention=0), ValueError, "retention: must be between"),
        (lambda: ANY_INBOX("h", final_errors=["x"]), TypeError, "final_errors= must be exception types"),
        (lambda: ANY_INBOX("h", policy=semel.Policy(on_store_error="open")), StoreMisconfigured, "A message can wait"),
        (lambda: ANY_INBOX("h", policy=semel.Policy(in_flight="accept")), StoreMisconfigured, "HTTP answer"),
        (lambda: ANY_INBOX("h", store=semel.open_async_store("memory://")), TypeError, "async store"),
        (lambda: ANY_ASYNC_INBOX("h", store=semel.open_store("memory://")), TypeError, "sync store"),
        (lambda: ANY_INBOX("h").receive("m-1"), semel.errors.Misuse, "has no store"),
        (lambda: ANY_INBOX("h").consumer(handle), semel.errors.Misuse, "give store= .* or begin="),
        (lambda: ANY_INBOX("h", store="memory://").consumer(ahandle), TypeError, "use AsyncInbox"),
        (lambda: ANY_ASYNC_INBOX("h", store="memory://").consumer(handle), TypeError, "would block the event loop"),
        (lambda: ANY_INBOX("h", store="memory://").consumer(handle, tries_max=3), TypeError, "about transactions"),
        (lambda: ANY_INBOX("h", store="memory://").consumer(handle, ids="x"), TypeError, "did you mean id="),
        (lambda: ANY_INBOX("h", store="memory://").consumer(handle, id=7), TypeError, 'id= must be "property"'),
        (lambda: ANY_INBOX("h", store="memory://").consumer(3), TypeError, "the handler must be a function"),
        (lambda: ANY_INBOX("h").consumer(handle, begin=3), TypeError, "begin= must be a function"),
        (lambda: ANY_INBOX("h").consumer(handle, begin=handle, reconcile=handle), TypeError, "no outcome is unknown"),
        (lambda: ANY_INBOX("h").consumer(handle, begin=handle, tries_max=0), ValueError, "tries_max= must be between"),
        (
            lambda: ANY_INBOX("h", store="memory://").consumer(handle, payload_fingerprint="raw"),
            TypeError,
            "payload_fingerprint= must be",
        ),
        (
            lambda: ANY_INBOX("h", store="memory://").consumer(handle, reconcile=ahandle),
            TypeError,
            "reconcile= is a coroutine",
        ),
        (
            lambda: ANY_INBOX("h", store="memory://", policy=AT_LEAST).consumer(handle, reconcile=handle),
            StoreMisconfigured,
            "never asked",
        ),
        (
            lambda: ANY_INBOX("h", store="memory://", policy=semel.Policy(guarantee="exactly-once")).consumer(handle),
            StoreMisconfigured,
            "exactly-once",
        ),
    ],
)
def test_a_mistake_is_refused_at_once_and_names_the_way_out(
    mistake: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        mistake()
