"""A relay on the model of an outbox: what it publishes, in which order, and what it does when something is away."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from outbox.recording import MemoryOutbox, RecordingPublisher, message, until
from semel.core.messages import Message
from semel.core.outbox import MessageState, RedriveMessages, SettleMessages, TakeMessages
from semel.errors import BrokerMisconfigured, BrokerUnavailable, Misuse, Poison, StoreMisconfigured
from semel.events import Event, EventKind
from semel.outbox import Relay

WAITING, PUBLISHED, DEAD = MessageState.WAITING, MessageState.PUBLISHED, MessageState.DEAD


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(bounded())


@contextlib.asynccontextmanager
async def running(relay: Relay):  # type: ignore[no-untyped-def]
    task = asyncio.ensure_future(relay.run())
    try:
        yield task
    finally:
        relay.stop()
        await task


def fail(*errors: Exception) -> Callable[[Message], Awaitable[None]]:
    left = list(errors)

    async def before(message: Message) -> None:
        if left:
            raise left.pop(0)

    return before


class TestOnce:
    def test_a_batch_is_published_and_settled(self) -> None:
        async def test() -> None:
            store, publisher = MemoryOutbox(), RecordingPublisher()
            store.add(*(message(number, key="a") for number in range(5)))
            async with Relay(store, publisher, batch=3) as relay:
                assert [await relay.run_once() for _ in range(3)] == [3, 2, 0]
            assert publisher.ids() == [f"id-{number}" for number in range(5)]
            assert [each.state for each in store.entries()] == [PUBLISHED] * 5
            assert {each.attempt for each in publisher.published} == {1}
            assert not publisher.is_closed
            assert not store.is_closed

        run(test)

    def test_a_broker_that_is_away_is_said_and_costs_no_attempt(self) -> None:
        async def test() -> None:
            store, events = MemoryOutbox(), list[Event]()
            publisher = RecordingPublisher(fail(BrokerUnavailable("gone")))
            store.add(message(1, "a"), message(2, "a"))
            async with Relay(store, publisher, on_event=events.append) as relay:
                assert await relay.run_once() == 0
                assert [each.message.attempt for each in store.entries()] == [0, 0]
                assert not store.held()
                assert await relay.run_once() == 2
            assert [(each.kind, each.detail) for each in events] == [
                (EventKind.RELAY_PAUSED, "gone"),
                (EventKind.MESSAGE_PUBLISHED, ""),
                (EventKind.MESSAGE_PUBLISHED, ""),
            ]

        run(test)

    @pytest.mark.parametrize("error", [BrokerUnavailable("x"), BrokerMisconfigured("x"), ConnectionResetError("x")])
    def test_no_outage_counts_as_an_attempt(self, error: Exception) -> None:
        async def test() -> None:
            store = MemoryOutbox()
            store.add(message(1))
            async with Relay(store, RecordingPublisher(fail(*[error] * 20)), attempts_max=2) as relay:
                for _ in range(20):
                    assert await relay.run_once() == 0
                assert await relay.run_once() == 1

        run(test)

    def test_a_broker_that_does_not_confirm_is_away(self) -> None:
        async def test() -> None:
            store = MemoryOutbox()
            store.add(message(1), message(2))

            async def before(message: Message) -> None:
                if message.id == "id-1":
                    await asyncio.sleep(60)

            async with Relay(store, publisher := RecordingPublisher(before), lease=1, timeout=0.05) as relay:
                once = asyncio.ensure_future(relay.run_once())
                await until(once.done, "the relay waits for a broker that does not confirm")
                assert once.result() == 1
            assert publisher.ids() == ["id-2"]
            assert store.entries()[0].message.attempt == 0

        run(test)

    def test_poison_is_a_dead_letter_and_the_key_goes_on(self) -> None:
        async def test() -> None:
            store, events = MemoryOutbox(), list[Event]()
            publisher = RecordingPublisher(fail(Poison("too large")))
            store.add(message(1, "a"), message(2, "a"))
            async with Relay(store, publisher, on_event=events.append) as relay:
                assert [await relay.run_once() for _ in range(2)] == [0, 1]
            assert [(each.state, each.error) for each in store.entries()] == [(DEAD, "too large"), (PUBLISHED, "")]
            assert publisher.ids() == ["id-2"]
            assert str(events[0]) == "message_dead message=id-1 topic=orders attempt=1 detail=too large"

        run(test)

    def test_poison_may_block_its_key_until_it_is_redriven(self) -> None:
        async def test() -> None:
            store, publisher = MemoryOutbox(), RecordingPublisher(fail(Poison("no")))
            store.add(message(1, "a"), message(2, "a"), message(3, "b"))
            async with Relay(store, publisher, dead_block=True) as relay:
                assert [await relay.run_once() for _ in range(3)] == [1, 0, 0]
                assert publisher.ids() == ["id-3"]
                assert await store.outbox(RedriveMessages((1,))) == 1
                assert await relay.run_once() == 2
            assert publisher.ids("a") == ["id-1", "id-2"]

        run(test)

    def test_any_other_error_is_a_failed_attempt_and_then_a_dead_letter(self) -> None:
        async def test() -> None:
            clock = [1_000_000]
            store = MemoryOutbox(lambda: clock[0])
            publisher = RecordingPublisher(fail(ValueError("odd"), ValueError("odd")))
            store.add(message(1, "a"), message(2, "a"))
            async with Relay(store, publisher, attempts_max=2) as relay:
                assert await relay.run_once() == 0
                assert await relay.run_once() == 0  # the first waits for its next try, and the second for the first
                clock[0] += 1_000
                assert await relay.run_once() == 0
                assert await relay.run_once() == 1
            assert store.entries()[0].error == "given up after 2 attempts: ValueError: odd"
            assert publisher.ids() == ["id-2"]

        run(test)

    def test_an_unkeyed_failure_stops_no_other_message(self) -> None:
        async def test() -> None:
            store, publisher = MemoryOutbox(), RecordingPublisher(fail(ValueError("odd")))
            store.add(*(message(number) for number in range(3)))
            async with Relay(store, publisher) as relay:
                assert await relay.run_once() == 2

        run(test)

    def test_messages_are_published_side_by_side_but_not_those_of_a_key(self) -> None:
        async def test() -> None:
            now, most = dict[str | None, int](), dict[str | None, int]()

            async def before(message: Message) -> None:
                now[message.key] = now.get(message.key, 0) + 1
                most[message.key] = max(most.get(message.key, 0), now[message.key])
                most["all"] = max(most.get("all", 0), sum(now.values()))
                await asyncio.sleep(0.001)
                now[message.key] -= 1

            store = MemoryOutbox()
            store.add(*(message(number, "ab"[number % 2]) for number in range(20)))
            store.add(*(message(number) for number in range(20, 40)))
            async with Relay(store, RecordingPublisher(before), concurrency=7) as relay:
                assert await relay.run_once() == 40
            assert most["a"] == most["b"] == 1
            assert most["all"] == 7

        run(test)


class TestLease:
    def test_a_relay_that_was_stopped_past_its_lease_publishes_no_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another relay holds the rest by then, and has published it."""

        async def test() -> None:
            clock = [1_000_000]
            monkeypatch.setattr("semel.outbox.relay.boot_ms", lambda: clock[0])
            store, second = MemoryOutbox(lambda: clock[0]), RecordingPublisher()

            async def before(message: Message) -> None:
                if message.id == "id-1" and message not in second.published:
                    clock[0] += 60_000
                    async with Relay(store, second) as other:
                        assert await other.run_once() == 4

            store.add(*(message(number, "a") for number in range(4)))
            first = RecordingPublisher(before)
            async with Relay(store, first, lease=30) as relay:
                await relay.run_once()
            assert first.ids() == ["id-0", "id-1"]
            assert second.ids() == ["id-0", "id-1", "id-2", "id-3"]
            assert [each.message.attempt for each in store.entries()] == [1] * 4
            assert [each.state for each in store.entries()] == [PUBLISHED] * 4

        run(test)

    def test_what_the_lease_has_no_time_for_is_given_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def test() -> None:
            clock = [1_000_000]
            monkeypatch.setattr("semel.outbox.relay.boot_ms", lambda: clock[0])
            store = MemoryOutbox(lambda: clock[0])

            async def before(message: Message) -> None:
                clock[0] += 1_000

            store.add(*(message(number, "a") for number in range(10)))
            async with Relay(store, publisher := RecordingPublisher(before), lease=8, timeout=2) as relay:
                assert await relay.run_once() == 5  # 8 s, without 2 s for the last message and 1 s for settling
                assert not store.held()
                assert await relay.run_once() == 5
            assert publisher.ids() == [f"id-{number}" for number in range(10)]

        run(test)

    def test_it_leaves_alone_what_another_relay_holds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A relay is stopped past its lease. When it goes on, another one is publishing the same messages."""

        async def test() -> None:
            clock, go = [1_000_000], asyncio.Event()
            monkeypatch.setattr("semel.outbox.relay.boot_ms", lambda: clock[0])
            store, tasks = MemoryOutbox(lambda: clock[0]), list[asyncio.Future[int]]()

            async def hold(message: Message) -> None:
                await go.wait()

            second = RecordingPublisher(hold)

            async def be_stopped(message: Message) -> None:
                clock[0] += 60_000
                tasks.append(asyncio.ensure_future(Relay(store, second).run_once()))
                await until(store.held)

            store.add(message(1, "a"), message(2, "a"))
            async with Relay(store, RecordingPublisher(be_stopped)) as relay:
                await relay.run_once()
            assert [each.message.id for each in store.held()] == ["id-1", "id-2"]
            go.set()
            assert await tasks[0] == 2
            assert [each.message.attempt for each in store.entries(PUBLISHED)] == [1, 1]

        run(test)

    def test_a_broker_that_goes_away_ends_the_round(self) -> None:
        """It is not asked for each of the messages that are left."""

        async def test() -> None:
            store, tried = MemoryOutbox(), list[str]()

            async def before(message: Message) -> None:
                tried.append(message.id)
                await asyncio.sleep(0)
                raise BrokerUnavailable("gone")

            store.add(*(message(number) for number in range(50)))
            async with Relay(store, RecordingPublisher(before), concurrency=5) as relay:
                await relay.run_once()
            assert len(tried) == 5

        run(test)

    def test_settling_is_tried_again(self) -> None:
        async def test() -> None:
            store, publisher, failures = MemoryOutbox(), RecordingPublisher(), [1, 1]
            store.away = lambda call: isinstance(call, SettleMessages) and bool(failures) and bool(failures.pop())
            store.add(message(1))
            async with Relay(store, publisher) as relay:
                assert [await relay.run_once(), await relay.run_once()] == [1, 0]
            assert publisher.ids() == ["id-1"]

        run(test)

    def test_messages_that_another_relay_took_are_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        async def test() -> None:
            clock = [1_000_000]
            store = MemoryOutbox(lambda: clock[0])

            async def before(message: Message) -> None:
                clock[0] += 60_000
                await store.outbox(TakeMessages("other", 10, 60_000))

            store.add(message(1))
            async with Relay(store, RecordingPublisher(before)) as relay:
                await relay.run_once()

        with caplog.at_level(logging.WARNING, "semel"):
            run(test)
        assert "another relay took 1 messages" in caplog.text


class TestRun:
    def test_it_publishes_what_comes_until_it_is_stopped(self) -> None:
        async def test() -> None:
            store, publisher = MemoryOutbox(), RecordingPublisher()
            async with running(Relay(store, publisher, poll=10)):
                for number in range(5):
                    store.add(message(number, "a"))
                    await until(lambda: len(publisher.published) > number)  # noqa: B023
            assert publisher.ids() == [f"id-{number}" for number in range(5)]
            assert not store.held()

        run(test)

    def test_stop_waits_for_what_is_being_published_and_gives_back_the_rest(self) -> None:
        async def test() -> None:
            store, go, begun = MemoryOutbox(), asyncio.Event(), asyncio.Event()

            async def before(message: Message) -> None:
                begun.set()
                await go.wait()

            store.add(*(message(number, "a") for number in range(10)))
            relay = Relay(store, publisher := RecordingPublisher(before))
            task = asyncio.ensure_future(relay.run())
            await begun.wait()
            assert len(store.held()) == 10
            relay.stop()
            await asyncio.sleep(0.01)
            assert not task.done()
            go.set()
            await task
            assert publisher.ids() == ["id-0"]
            assert not store.held()
            assert [each.message.attempt for each in store.entries(WAITING)] == [0] * 9

        run(test)

    def test_cancelling_stops_it_in_the_same_way(self) -> None:
        async def test() -> None:
            store, begun = MemoryOutbox(), asyncio.Event()

            async def before(message: Message) -> None:
                begun.set()
                await asyncio.sleep(0.02)

            store.add(*(message(number, "a") for number in range(10)))
            task = asyncio.ensure_future(Relay(store, publisher := RecordingPublisher(before)).run())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert publisher.ids() == ["id-0"]
            assert not store.held()
            assert store.entries()[0].state is PUBLISHED

        run(test)

    def test_stop_wakes_it_from_any_sleep(self) -> None:
        async def test() -> None:
            store = MemoryOutbox()
            async with running(Relay(store, RecordingPublisher(), poll=60)) as task:
                await until(lambda: store.calls)
            assert task.done()
            store.add(message(1))
            away = RecordingPublisher(fail(*[BrokerUnavailable("x")] * 100))
            async with running(Relay(store, away, poll=60)) as task:
                await until(lambda: len(store.calls) > 8)
            assert task.done()

        run(test)

    def test_an_outage_of_the_broker_pauses_it(self) -> None:
        async def test() -> None:
            store, events, is_away = MemoryOutbox(), list[Event](), [True]

            async def before(message: Message) -> None:
                if is_away[0]:
                    raise BrokerUnavailable("gone")

            store.add(*(message(number, "a") for number in range(3)))
            publisher = RecordingPublisher(before)
            async with running(Relay(store, publisher, attempts_max=1, on_event=events.append)):
                await until(lambda: len(events) == 2)
                is_away[0] = False
                await until(lambda: len(publisher.published) == 3)
            assert [each.detail for each in events[:2]] == ["for 0.2 s: gone", "for 0.4 s: gone"]
            assert {each.attempt for each in publisher.published} == {1}

        run(test)

    def test_an_outage_of_the_store_pauses_it(self) -> None:
        async def test() -> None:
            store, publisher, events = MemoryOutbox(), RecordingPublisher(), list[Event]()
            store.away = lambda call: len(events) < 2
            store.add(message(1))
            async with running(Relay(store, publisher, on_event=events.append, poll=0.01)):
                await until(lambda: publisher.published)
            assert {each.kind for each in events[:2]} == {EventKind.RELAY_PAUSED}

        run(test)

    def test_a_hint_that_fails_is_only_a_hint(self) -> None:
        async def test() -> None:
            store, publisher = MemoryOutbox(), RecordingPublisher()
            store.away = lambda call: not isinstance(call, (TakeMessages, SettleMessages))
            relay = Relay(store, publisher, poll=0.02)
            task = asyncio.ensure_future(relay.run())
            await until(lambda: len(store.calls) > 3 or task.done())
            assert not task.done(), "the relay ended"
            store.add(message(1))
            await until(lambda: publisher.published)
            relay.stop()
            await task

        run(test)

    def test_published_messages_are_purged_beside(self) -> None:
        async def test() -> None:
            store, publisher = MemoryOutbox(), RecordingPublisher()
            store.add(*(message(number) for number in range(5)))
            async with Relay(store, publisher, keep=0) as relay:
                await relay.run_once()
            assert len(store.entries()) == 5
            async with running(Relay(store, publisher, keep=timedelta(0))):
                await until(lambda: not store.entries())

        run(test)

    def test_a_reply_of_the_store_that_was_lost_loses_nothing(self) -> None:
        async def test() -> None:
            store, publisher, failures = MemoryOutbox(), RecordingPublisher(), [1, 1, 1]
            store.lost = lambda call: (
                isinstance(call, (TakeMessages, SettleMessages)) and bool(failures and failures.pop())
            )
            store.add(message(1), message(2, "a"), message(3, "a"))
            async with running(Relay(store, publisher, lease=0.2, poll=0.01)):
                await until(lambda: len(store.entries(PUBLISHED)) == 3)
            assert set(publisher.ids()) == {"id-1", "id-2", "id-3"}

        run(test)

    def test_two_relays_keep_the_order_of_a_key(self) -> None:
        async def test() -> None:
            store = MemoryOutbox()
            store.add(*(message(number, "abc"[number % 3]) for number in range(90)))

            async def before(message: Message) -> None:
                await asyncio.sleep(0.0005)

            publisher = RecordingPublisher(before)
            async with running(Relay(store, publisher, batch=4)), running(Relay(store, publisher, batch=7)):
                await until(lambda: len(publisher.published) == 90)
            for key in "abc":
                assert publisher.ids(key) == sorted(publisher.ids(key), key=lambda one: int(one[3:]))

        run(test)


class TestUse:
    def test_a_relay_runs_once(self) -> None:
        async def test() -> None:
            store = MemoryOutbox()
            relay = Relay(store, RecordingPublisher())
            async with running(relay):
                await until(lambda: store.calls)
                with pytest.raises(Misuse, match="runs already"):
                    await relay.run_once()
            with pytest.raises(Misuse, match="was closed"):
                await relay.run()

        run(test)

    def test_stopped_before_it_runs_it_publishes_nothing(self) -> None:
        async def test() -> None:
            store, publisher = MemoryOutbox(), RecordingPublisher()
            store.add(message(1))
            relay = Relay(store, publisher)
            relay.stop()
            await relay.run()
            assert not publisher.published

        run(test)

    def test_a_listener_that_fails_changes_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        async def test() -> None:
            def listen(event: Event) -> None:
                raise RuntimeError("no")

            store = MemoryOutbox()
            store.add(message(1))
            async with Relay(store, RecordingPublisher(), on_event=listen) as relay:
                assert await relay.run_once() == 1

        run(test)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"order": "topic"}, 'order= must be "key" or "none"'),
            ({"batch": 0}, "batch= must be between 1 and 1000, not 0"),
            ({"batch": True}, "batch= must be a number"),
            ({"lease": 0.01}, "lease= must be between 0.1 and 3600 s"),
            ({"lease": "30"}, "lease= must be a timedelta"),
            ({"lease": 10, "timeout": 6}, "at least twice timeout=6 s"),
            ({"attempts_max": 0}, "attempts_max= must be between"),
            ({"concurrency": 0}, "concurrency= must be between"),
            ({"keep": -1}, "keep= must be between 0 and"),
            ({"poll": 0}, "poll= must be between 0.01 and 60 s"),
            ({"order": "none", "dead_block": True}, "dead_block=True would have no effect"),
            ({"leese": 30}, "did you mean lease="),
        ],
    )
    def test_a_wrong_option_is_refused_by_name(self, options: dict[str, Any], said: str) -> None:
        with pytest.raises((ValueError, TypeError), match=said):
            Relay(MemoryOutbox(), RecordingPublisher(), **options)

    def test_a_store_without_an_outbox_is_refused_by_name(self) -> None:
        class Bare:
            def claim(self) -> None: ...

        class Threads:
            def outbox(self) -> None: ...
            def wait_for_messages(self) -> None: ...

        with pytest.raises(StoreMisconfigured, match=r"a Bare has no outbox.*postgresql://, mariadb:// or sqlite://"):
            Relay(Bare(), RecordingPublisher())  # type: ignore[arg-type]
        with pytest.raises(StoreMisconfigured, match="a AsyncRedisStore has no outbox"):
            Relay("redis://localhost", RecordingPublisher())
        with pytest.raises(TypeError, match="store for threads"):
            Relay(Threads(), RecordingPublisher())  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="must be a store or a URL, not int"):
            Relay(1, RecordingPublisher())  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="publisher= must be a URL"):
            Relay(MemoryOutbox(), object())  # type: ignore[arg-type]
