"""Consumers whose handler writes to the database of the record: every verdict, on every kind of connection."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest

import semel
from inbox.shop import HANDLER, Shop, a_delivery, handlings, nothing, raising
from semel.codecs.values import Values
from semel.core.fingerprint import function_digest
from semel.core.records import Key
from semel.errors import NotExecuted
from semel.inbox import Delivery, Handling, Settling, field, header
from semel.transaction import RetryTransaction, within
from transaction.modes import MODES, Mode, ledger
from waiting import until

FEW = [mode for mode in MODES if mode.name in ("psycopg", "asyncpg", "sqlite3", "aiosqlite")]


@pytest.fixture(params=MODES, ids=lambda mode: mode.name)
def shop(request: pytest.FixtureRequest, urls: Mapping[str, str]) -> Shop:
    return Shop(request.param, urls[request.param.database], attempts_max=3)


@pytest.fixture(params=FEW, ids=lambda mode: mode.name)
def mode(request: pytest.FixtureRequest) -> Mode:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def open_shop(mode: Mode, urls: Mapping[str, str]) -> Any:
    """Makes a shop with options, on a few kinds of connections."""
    return lambda **options: Shop(mode, urls[mode.database], **options)


# On every kind of connection


def test_a_message_takes_effect_once_however_often_it_is_delivered(shop: Shop) -> None:
    delivery = a_delivery()
    verdicts = shop.deliver(delivery, delivery, delivery)
    assert handlings(verdicts) == [Handling.HANDLED, Handling.DUPLICATE, Handling.DUPLICATE]
    assert {verdict.settling for verdict in verdicts} == {Settling.ACKNOWLEDGE}
    assert shop.effects(delivery) == 1
    assert shop.judged == ["handled", "duplicate", "duplicate"]


def test_a_handler_that_raises_is_rolled_back_counted_and_run_again(shop: Shop) -> None:
    delivery = a_delivery()
    shop.then = raising(ValueError("the printer\nis on fire"))
    [first, second] = shop.deliver(delivery, delivery)
    assert (first.handling, first.attempt, first.reason) == (Handling.RAISED, 1, "ValueError: the printer is on fire")
    assert (second.attempt, second.delay_ms, second.counted) == (2, 2_000, True)
    assert second.settling is Settling.DELIVER_AGAIN
    assert shop.effects(delivery) == 0
    shop.then = nothing
    assert handlings(shop.deliver(delivery, delivery)) == [Handling.HANDLED, Handling.DUPLICATE]
    assert shop.effects(delivery) == 1


def test_a_poison_message_becomes_a_dead_letter_and_has_all_attempts_again_when_it_is_redriven(shop: Shop) -> None:
    poison = a_delivery()
    shop.then = raising(ValueError("no such customer"))
    verdicts = shop.deliver(*[poison] * 6)
    assert handlings(verdicts) == [Handling.RAISED, Handling.RAISED, Handling.EXHAUSTED] * 2
    assert [verdict.attempt for verdict in verdicts] == [1, 2, 3, 4, 5, 6]
    assert (verdicts[2].settling, verdicts[2].reason) == (Settling.DEAD_LETTER, "ValueError: no such customer")
    assert shop.effects(poison) == 0
    assert shop.judged == ["raised", "raised", "exhausted"] * 2


def test_a_batch_is_handled_together_and_a_message_in_it_once(shop: Shop) -> None:
    known, one, two = a_delivery(), a_delivery(), a_delivery()
    shop.deliver(known)
    verdicts = shop.deliver_batch(one, known, two, one)
    assert handlings(verdicts) == [Handling.HANDLED, Handling.DUPLICATE, Handling.HANDLED, Handling.DUPLICATE]
    assert [shop.effects(each) for each in (known, one, two)] == [1, 1, 1]


def test_a_batch_in_which_one_fails_is_handled_one_by_one(shop: Shop) -> None:
    good, bad, late = a_delivery(), a_delivery(), a_delivery()
    ran: list[str | None] = []

    def then(delivery: Delivery) -> None:
        ran.append(delivery.id)
        if delivery == bad:
            raise ValueError("no such customer")

    shop.then = then
    verdicts = shop.deliver_batch(good, bad, late)
    assert handlings(verdicts) == [Handling.HANDLED, Handling.RAISED, Handling.HANDLED]
    assert [shop.effects(each) for each in (good, bad, late)] == [1, 0, 1]
    assert ran == [each.id for each in (good, bad, good, bad, late)]


# Each row of the table of verdicts


def test_a_final_error_makes_a_dead_letter_at_once_and_stores_nothing(open_shop: Any) -> None:
    shop, delivery = open_shop(final_errors=[LookupError]), a_delivery()
    shop.then = raising(KeyError("customer"))
    for verdict in shop.deliver(delivery, delivery):
        assert (verdict.handling, verdict.settling, verdict.attempt) == (Handling.FINAL, Settling.DEAD_LETTER, 0)
    assert shop.effects(delivery) == 0
    shop.then = nothing
    assert handlings(shop.deliver(delivery)) == [Handling.HANDLED], "a redriven message may be handled"


@pytest.mark.parametrize("how", ["raised", "declared"])
def test_what_was_not_done_is_delivered_again_and_never_counted(open_shop: Any, how: str) -> None:
    shop, delivery = open_shop(attempts_max=1), a_delivery()

    def declare(delivery: Delivery) -> None:
        operation = semel.current_operation()
        assert operation is not None
        operation.nothing_done()

    shop.then = declare if how == "declared" else raising(NotExecuted("the shop is closed"))
    verdicts = shop.deliver(delivery, delivery)
    assert handlings(verdicts) == [Handling.NOTHING_DONE] * 2
    assert (verdicts[0].settling, verdicts[0].counted, verdicts[0].delay_ms) == (Settling.DELIVER_AGAIN, False, 1_000)
    assert shop.effects(delivery) == 0
    shop.then = nothing
    assert handlings(shop.deliver(delivery)) == [Handling.HANDLED]


def test_a_transaction_that_the_database_gives_up_runs_again_at_once(open_shop: Any) -> None:
    shop, delivery = open_shop(), a_delivery()
    left = iter([RetryTransaction("deadlock"), RetryTransaction("deadlock")])

    def then(delivery: Delivery) -> None:
        for error in left:
            raise error

    shop.then = then
    assert handlings(shop.deliver(delivery)) == [Handling.HANDLED]
    assert shop.effects(delivery) == 1


def test_a_transaction_that_is_always_given_up_is_delivered_again_and_never_counted(open_shop: Any) -> None:
    shop, delivery = open_shop(attempts_max=1, tries_max=2), a_delivery()
    shop.then = raising(RetryTransaction("deadlock"))
    [verdict, again] = shop.deliver(delivery, delivery)
    assert (verdict.handling, verdict.settling, verdict.counted) == (
        Handling.UNCOMMITTED,
        Settling.DELIVER_AGAIN,
        False,
    )
    assert again.handling is Handling.UNCOMMITTED
    assert shop.effects(delivery) == 0


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "not committed"])
def test_a_lost_reply_to_commit_is_no_failure_of_the_handler(
    mode: Mode, urls: Mapping[str, str], committed: bool
) -> None:
    """The record decides whether it ran: it is looked up by the next try."""
    opener, lost = mode.opener(urls[mode.database]), iter([ConnectionResetError("the server went away")])

    @contextmanager
    def begin() -> Iterator[Any]:
        with suppress(Gone), opener() as connection:
            yield connection
            fail_before(connection)
        for error in lost:
            raise error

    @asynccontextmanager
    async def abegin() -> AsyncIterator[Any]:
        with suppress(Gone):
            async with opener() as connection:
                yield connection
                fail_before(connection)
        for error in lost:
            raise error

    undone = iter([] if committed else [Gone()])

    def fail_before(connection: Any) -> None:
        for error in undone:
            raise error

    shop, delivery = (
        Shop(mode, urls[mode.database], attempts_max=1, begin=abegin if mode.is_async else begin),
        a_delivery(),
    )
    expected = Handling.DUPLICATE if committed else Handling.HANDLED
    assert handlings(shop.deliver(delivery)) == [expected]
    assert shop.effects(delivery) == 1


class Gone(Exception):
    """The transaction is rolled back, and the error that says so is lost."""


@pytest.mark.parametrize("delivery", [Delivery(b"x"), Delivery(b"x", id="")], ids=["none", "empty"])
def test_a_message_without_an_id_is_a_dead_letter_and_never_handled(open_shop: Any, delivery: Delivery) -> None:
    shop = open_shop()
    shop.then = raising(AssertionError("it must not run"))
    [verdict] = shop.deliver(delivery)
    assert (verdict.handling, verdict.settling) == (Handling.UNNAMED, Settling.DEAD_LETTER)
    assert verdict.reason == "it has no message id"
    assert shop.judged == ["unnamed"]


@pytest.mark.parametrize("id", ["x" * 300, "a\nb", "a\0b"], ids=["too long", "two lines", "NUL"])
def test_an_id_that_no_store_can_keep_is_a_dead_letter(open_shop: Any, id: str) -> None:
    [verdict] = open_shop().deliver(Delivery(b"x", id=id))
    assert verdict.handling is Handling.UNNAMED
    assert "the message id" in verdict.reason


def test_the_same_id_with_another_payload_is_a_dead_letter(open_shop: Any) -> None:
    shop, first = open_shop(), a_delivery()
    other = a_delivery(uuid.uuid4().hex, id=first.id)
    verdicts = shop.deliver(first, other, first)
    assert handlings(verdicts) == [Handling.HANDLED, Handling.REUSED, Handling.DUPLICATE]
    assert verdicts[1].settling is Settling.DEAD_LETTER
    assert shop.effects(other) == 0
    assert handlings(shop.deliver_batch(first, other)) == [Handling.DUPLICATE, Handling.REUSED]


def test_payloads_are_compared_as_the_user_says(open_shop: Any) -> None:
    first = a_delivery()
    again = a_delivery(first.payload.decode() + " sent again", id=first.id)
    ignoring = open_shop(payload_fingerprint=False, handler=f"{HANDLER}.ignoring")
    assert handlings(ignoring.deliver(first, again)) == [Handling.HANDLED, Handling.DUPLICATE]
    by_first_word = open_shop(
        payload_fingerprint=lambda delivery: delivery.payload.split()[0], handler=f"{HANDLER}.first"
    )
    assert handlings(by_first_word.deliver(first, again)) == [Handling.HANDLED, Handling.DUPLICATE]
    broken = open_shop(payload_fingerprint=lambda delivery: 1 / 0)
    [verdict] = broken.deliver(first)
    assert (verdict.handling, "ZeroDivisionError" in verdict.reason) == (Handling.UNNAMED, True)


def test_a_record_whose_outcome_is_unknown_parks_the_message(open_shop: Any) -> None:
    """Committed in the middle of its block, by hand, in an older version of the handler."""
    shop, delivery = open_shop(payload_fingerprint=False), a_delivery()
    store = semel.open_store(shop.url)
    printed = Values[Any](object, (), None)
    key = Key("", HANDLER, str(delivery.id))
    fingerprint = function_digest([b"function", printed.canonical(None)])
    store.claim(key, fingerprint, owner="gone", lease_ms=1, retention_ms=60_000, takeover=False)
    until(lambda: handlings(shop.deliver(delivery)) == [Handling.UNKNOWN])
    [verdict] = shop.deliver(delivery)
    assert (verdict.settling, shop.effects(delivery)) == (Settling.PARK, 0)
    store.close()


def test_two_handlers_each_handle_a_message(open_shop: Any) -> None:
    delivery, one, two = a_delivery(), open_shop(handler="one"), open_shop(handler="two")
    assert handlings([*one.deliver(delivery, delivery), *two.deliver(delivery)]) == [
        Handling.HANDLED,
        Handling.DUPLICATE,
        Handling.HANDLED,
    ]
    assert one.effects(delivery) == 2
    third = open_shop(handler="one", tenant="acme")
    assert handlings(third.deliver(delivery)) == [Handling.HANDLED]


def test_ids_come_from_where_the_user_says(open_shop: Any) -> None:
    name = uuid.uuid4().hex
    payload = f'{{"order": {{"id": "{name}"}}}}'.encode()
    delivery = Delivery(payload, id=uuid.uuid4().hex, headers={"X-Event": f"event-{name}"})
    for find in (header("x-event"), field("/order/id"), lambda delivery: f"own-{name}"):
        shop = open_shop(id=find)
        again = Delivery(payload, id=uuid.uuid4().hex, headers=delivery.headers)
        assert handlings(shop.deliver(delivery, again)) == [Handling.HANDLED, Handling.DUPLICATE]


# The database is away, and misuse


def test_a_database_that_is_away_stops_the_consumer_and_counts_nothing(mode: Mode, urls: Mapping[str, str]) -> None:
    away = iter([ConnectionRefusedError("no route to host")] * 3)
    opener = mode.opener(urls[mode.database])

    def begin() -> Any:
        for error in away:
            raise error
        return opener()

    shop, delivery, other = Shop(mode, urls[mode.database], attempts_max=1, begin=begin), a_delivery(), a_delivery()
    [verdict] = shop.deliver(delivery)
    assert (verdict.handling, verdict.settling, verdict.counted) == (Handling.STORE_AWAY, Settling.STOP, False)
    assert verdict.delay_ms > 0
    assert handlings(shop.deliver_batch(delivery, other)) == [Handling.STORE_AWAY] * 2
    assert handlings(shop.deliver_batch(delivery, other)) == [Handling.HANDLED] * 2
    assert (shop.effects(delivery), shop.effects(other)) == (1, 1)


def test_a_database_that_goes_away_before_the_count_stops_the_consumer(mode: Mode, urls: Mapping[str, str]) -> None:
    opener, calls = mode.opener(urls[mode.database]), iter(range(1000))

    def begin() -> Any:
        if next(calls) == 1:
            raise ConnectionRefusedError("no route to host")
        return opener()

    shop, delivery = Shop(mode, urls[mode.database], attempts_max=1, begin=begin), a_delivery()
    shop.then = raising(ValueError("it burnt"))
    [away, dead] = shop.deliver(delivery, delivery)
    assert (away.handling, "was not counted" in away.reason) == (Handling.STORE_AWAY, True)
    assert (dead.handling, dead.attempt) == (Handling.EXHAUSTED, 1)


def test_a_begin_that_does_not_commit_is_found_out_before_a_message_is_lost(
    mode: Mode, urls: Mapping[str, str]
) -> None:
    opener = mode.opener(urls[mode.database])

    @contextmanager
    def begin() -> Iterator[Any]:
        with suppress(Gone), opener() as connection:
            yield connection
            raise Gone

    @asynccontextmanager
    async def abegin() -> AsyncIterator[Any]:
        with suppress(Gone):
            async with opener() as connection:
                yield connection
                raise Gone

    shop, delivery = Shop(mode, urls[mode.database], begin=abegin if mode.is_async else begin), a_delivery()
    for _ in range(2):
        [verdict] = shop.deliver(delivery)
        assert (verdict.settling, "begin= did not commit" in verdict.reason) == (Settling.STOP, True)
    assert {each.settling for each in shop.deliver_batch(delivery, a_delivery())} == {Settling.STOP}
    assert shop.effects(delivery) == 0


def test_a_begin_that_hides_errors_acknowledges_nothing(mode: Mode, urls: Mapping[str, str]) -> None:
    opener = mode.opener(urls[mode.database])

    @contextmanager
    def begin() -> Iterator[Any]:
        with suppress(ValueError), opener() as connection:
            yield connection

    @asynccontextmanager
    async def abegin() -> AsyncIterator[Any]:
        with suppress(ValueError):
            async with opener() as connection:
                yield connection

    shop, delivery = Shop(mode, urls[mode.database], begin=abegin if mode.is_async else begin), a_delivery()
    shop.then = raising(ValueError("it burnt"))
    assert handlings(shop.deliver(delivery)) == [Handling.RAISED]
    assert handlings(shop.deliver_batch(delivery, a_delivery())) == [Handling.RAISED] * 2
    assert shop.effects(delivery) == 0


@pytest.mark.parametrize("stop", [KeyboardInterrupt, asyncio.CancelledError])
def test_an_interrupt_goes_through_and_rolls_back(open_shop: Any, stop: type[BaseException]) -> None:
    shop, delivery = open_shop(attempts_max=1), a_delivery()
    shop.then = raising(stop())
    with pytest.raises(stop):
        shop.deliver(delivery)
    with pytest.raises(stop):
        shop.deliver_batch(delivery, a_delivery())
    assert shop.effects(delivery) == 0
    shop.then = nothing
    assert handlings(shop.deliver(delivery)) == [Handling.HANDLED], "it was not counted"


def test_a_batch_has_a_bound_and_goes_in_parts(open_shop: Any) -> None:
    shop = open_shop()
    many = [a_delivery() for _ in range(230)]
    assert handlings(shop.deliver_batch(*many, *many[:5])) == [Handling.HANDLED] * 230 + [Handling.DUPLICATE] * 5
    took = ledger(shop.url)
    assert {took[each.payload.decode()] for each in many} == {1}
    assert shop.deliver_batch() == []
    with pytest.raises(ValueError, match="1001 deliveries, the limit is 1000"):
        shop.deliver_batch(*[a_delivery()] * 1001)


# Concurrency


def test_deliveries_of_one_message_at_once_take_effect_once(open_shop: Any) -> None:
    shop = open_shop()
    deliveries = [a_delivery() for _ in range(5)]
    verdicts = shop.at_once(*deliveries, *deliveries, *deliveries)
    for each in deliveries:
        assert shop.effects(each) == 1
    assert {verdict.settling for verdict in verdicts} <= {Settling.ACKNOWLEDGE, Settling.DELIVER_AGAIN}
    assert handlings(verdicts).count(Handling.HANDLED) == 5


def test_a_message_that_is_being_handled_comes_again_soon_and_is_not_counted(urls: Mapping[str, str]) -> None:
    [mode] = [each for each in MODES if each.name == "psycopg"]
    shop, delivery = Shop(mode, urls["postgres"], wait=0.05, attempts_max=1), a_delivery()
    key = Key("", HANDLER, str(delivery.id))
    with (
        shop.mode.begin(shop.url, "") as connection,
        within(connection).operation(key, fingerprint="another transaction has it") as op,
    ):
        assert not op.replayed
        [verdict] = shop.deliver(delivery)
        op.result = None
    assert (verdict.handling, verdict.settling, verdict.counted) == (
        Handling.IN_PROGRESS,
        Settling.DELIVER_AGAIN,
        False,
    )
    assert 0 < verdict.delay_ms <= 10_000


def test_a_task_that_is_cancelled_leaves_nothing_behind(urls: Mapping[str, str]) -> None:
    [mode] = [each for each in MODES if each.name == "asyncpg"]
    shop, delivery, entered = Shop(mode, urls["postgres"], attempts_max=1), a_delivery(), threading.Event()

    async def hang(delivery: Delivery) -> None:
        entered.set()
        await asyncio.Event().wait()

    async def cancel() -> None:
        shop.then = hang
        task = asyncio.create_task(shop.consumer(delivery))
        while not entered.is_set():
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    shop.then = nothing
    assert handlings(shop.deliver(delivery)) == [Handling.HANDLED]
    assert shop.effects(delivery) == 1
