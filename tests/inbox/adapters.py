"""What every adapter of a broker must do, on a real one. Each broker's file subclasses `AdapterScenarios`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from inbox.brokers import Broker, OnRabbitmq
from inbox.service import serving
from semel.core.verdicts import Handling, Verdict, judge
from semel.errors import Misuse
from semel.inbox import Delivery
from semel.inbox.worker import BrokerConsumer
from servers.process import Server
from transaction.modes import effects
from waiting import until as wait_until

PATIENCE_S = 20.0
HANDLED = judge(Handling.HANDLED)


class Stub:
    """Stands for the inbox's consumer: it records deliveries, and gives the verdicts that it was made with in turn."""

    handler = "tests.adapter"

    def __init__(self, *verdicts: Verdict, blocked: bool = False) -> None:
        self.seen: list[Delivery] = []
        self.times_s: list[float] = []
        self.running = self.running_max = self.cut = 0
        self._verdicts = list(verdicts)
        self.gate = asyncio.Event()
        if not blocked:
            self.gate.set()

    async def __call__(self, delivery: Delivery) -> Verdict:
        self.seen.append(delivery)
        self.times_s.append(asyncio.get_running_loop().time())
        verdict = self._verdicts.pop(0) if self._verdicts else HANDLED
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cut += 1
            raise
        finally:
            self.running -= 1
        return verdict

    def came(self, times: int) -> Callable[[], bool]:
        return lambda: len(self.seen) >= times


async def until(ready: Callable[[], bool] | Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not (done := ready()) or (not isinstance(done, bool) and not await done):
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def running(*workers: BrokerConsumer[Any]) -> AsyncIterator[None]:
    """The workers, until the block ends; then they are stopped, and must end in time."""
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield
        for task in tasks:
            assert not task.done(), task.exception()
    finally:
        for worker in workers:
            worker.stop()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*tasks)


class BriefWaits:
    """What these tests would wait out in full. The processes of `ServiceScenarios` wait as long as those of users."""

    @pytest.fixture(autouse=True)
    def brief_waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("semel.inbox.worker.CALL_S", 2.0)  # for connecting, and for taking leave
        for module in ("nats", "rabbitmq", "redis"):
            monkeypatch.setattr(f"semel.inbox.{module}.POLL_S", 0.1)


class AdapterScenarios(BriefWaits):
    """The tests. A subclass has the fixture `broker`."""

    def play(self, broker: Broker, scenario: Callable[[], Awaitable[None]]) -> None:
        async def scene() -> None:
            await broker.prepare()
            async with asyncio.timeout(60):
                await scenario()

        asyncio.run(scene())

    def test_a_message_is_handled_and_acknowledged(self, broker: Broker) -> None:
        async def scenario() -> None:
            stub = Stub()
            async with running(broker.worker(stub)):
                await broker.publish("m1", b'{"a": 1}', color="red")
                await until(stub.came(1))
            (delivery,) = stub.seen
            assert (delivery.id, delivery.payload, delivery.content_type) == ("m1", b'{"a": 1}', "application/json")
            assert delivery.headers["color"] == "red"
            assert broker.name in delivery.topic
            assert delivery.raw is not None
            assert await broker.left() == 0

        self.play(broker, scenario)

    def test_what_was_published_before_the_first_start_is_handled(self, broker: Broker) -> None:
        async def scenario() -> None:
            for number in range(20):
                await broker.publish(f"m{number}")
            stub = Stub()
            async with running(broker.worker(stub)):
                await until(stub.came(20))
            assert {each.id for each in stub.seen} == {f"m{number}" for number in range(20)}
            assert await broker.left() == 0

        self.play(broker, scenario)

    def test_a_message_without_an_id_has_none(self, broker: Broker) -> None:
        async def scenario() -> None:
            stub = Stub()
            async with running(broker.worker(stub)):
                await broker.publish(None)
                await until(stub.came(1))
            assert (stub.seen[0].id is None) is not broker.invents_ids

        self.play(broker, scenario)

    def test_a_message_is_delivered_again_after_its_delay(self, broker: Broker) -> None:
        async def scenario() -> None:
            stub = Stub(judge(Handling.RAISED, delay_ms=300), judge(Handling.IN_PROGRESS, delay_ms=300))
            async with running(broker.worker(stub)):
                await broker.publish("m1")
                await until(stub.came(3))
            assert [each.id for each in stub.seen] == ["m1"] * 3
            assert all(later - earlier >= 0.29 for earlier, later in zip(stub.times_s, stub.times_s[1:], strict=False))
            assert await broker.left() == 0
            assert await broker.dead() == []

        self.play(broker, scenario)

    def test_a_dead_letter_arrives_with_the_reason_and_is_not_delivered_again(self, broker: Broker) -> None:
        async def scenario() -> None:
            stub = Stub(
                judge(Handling.EXHAUSTED, "ValueError: größe\nis wrong", attempt=5),
                judge(Handling.UNKNOWN, "cut off", attempt=1),
                judge(Handling.UNNAMED),
            )
            async with running(broker.worker(stub, concurrency=1)):
                await broker.publish("m1", b"\x00\xff", color="red")
                await until(stub.came(1))
                await broker.publish("m2")
                await until(stub.came(2))
                await broker.publish(None)
                await until(stub.came(3))
            assert await broker.left() == 0
            first, second, third = await broker.dead()
            assert (first.id, second.id) == ("m1", "m2")
            assert third.id is None or broker.invents_ids
            assert first.headers["semel-reason"] == "ValueError: gr\\xf6\\xdfe is wrong"
            assert first.headers["semel-handling"] == "EXHAUSTED"
            assert first.headers["semel-attempt"] == "5"
            assert first.headers["color"] == "red"
            assert second.headers["semel-handling"] == "UNKNOWN"
            assert third.headers["semel-handling"] == "UNNAMED"

        self.play(broker, scenario)

    def test_a_message_is_not_acknowledged_while_its_dead_letter_is_not_confirmed(self, broker: Broker) -> None:
        async def scenario() -> None:
            final = judge(Handling.FINAL, "no")
            stub = Stub(final, final, final)
            worker = broker.worker(stub)
            async with running(worker):
                await broker.publish("m0")
                await until(stub.came(1))
                await until(lambda: not stub.running)
                await broker.spoil()
                await broker.publish("m1")
                await until(stub.came(2))
            assert await broker.left() == 1

        self.play(broker, scenario)

    def test_nothing_is_taken_while_the_store_is_away(self, broker: Broker) -> None:
        async def scenario() -> None:
            away = judge(Handling.STORE_AWAY, delay_ms=600)
            stub = Stub(away)
            async with running(broker.worker(stub, concurrency=1)):
                for number in range(4):
                    await broker.publish(f"m{number}")
                await until(stub.came(5))
            assert stub.times_s[1] - stub.times_s[0] >= 0.59
            assert {each.id for each in stub.seen} == {f"m{number}" for number in range(4)}
            assert await broker.left() == 0

        self.play(broker, scenario)

    def test_no_more_than_concurrency_are_handled_at_once(self, broker: Broker) -> None:
        async def scenario() -> None:
            stub = Stub(blocked=True)
            for number in range(10):
                await broker.publish(f"m{number}")
            async with running(broker.worker(stub, concurrency=3)):
                await until(lambda: stub.running == 3)
                await asyncio.sleep(0.05)
                assert stub.running_max == 3
                stub.gate.set()
                await until(stub.came(10))
            assert stub.running_max == 3
            assert await broker.left() == 0

        self.play(broker, scenario)

    def test_stop_lets_begun_work_end_and_takes_no_more(self, broker: Broker) -> None:
        async def scenario() -> None:
            stub = Stub(blocked=True)
            for number in range(5):
                await broker.publish(f"m{number}")
            worker = broker.worker(stub, concurrency=2)
            run = asyncio.create_task(worker.run())
            await until(lambda: stub.running == 2)
            worker.stop()
            await asyncio.sleep(0.05)
            assert not run.done()
            stub.gate.set()
            await asyncio.wait_for(run, PATIENCE_S)
            assert len(stub.seen) == 2
            assert stub.cut == 0
            assert await broker.left() == 3

        self.play(broker, scenario)

    def test_work_that_outlasts_the_drain_is_cut_off_and_delivered_again(self, broker: Broker) -> None:
        async def scenario() -> None:
            await broker.publish("m1")
            stub = Stub(blocked=True)
            worker = broker.worker(stub, drain=0.1)
            run = asyncio.create_task(worker.run())
            await until(lambda: stub.running == 1)
            worker.stop()
            await asyncio.wait_for(run, PATIENCE_S)
            assert stub.cut == 1
            assert await broker.left() == 1
            heir = Stub()
            async with running(broker.worker(heir)):
                await until(heir.came(1))
            assert heir.seen[0].id == "m1"
            assert await broker.left() == 0

        self.play(broker, scenario)

    def test_a_cancelled_run_acknowledges_nothing(self, broker: Broker) -> None:
        async def scenario() -> None:
            await broker.publish("m1")
            stub = Stub(blocked=True)
            run = asyncio.create_task(broker.worker(stub).run())
            await until(lambda: stub.running == 1)
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            assert stub.cut == 1
            assert await broker.left() == 1

        self.play(broker, scenario)

    def test_a_handler_may_take_longer_than_the_broker_waits(self, broker: Broker) -> None:
        if broker.lease_s is None:
            return  # it waits as long as the connection lives
        lease_s = broker.lease_s

        async def scenario() -> None:
            first, second = Stub(blocked=True), Stub(blocked=True)
            async with running(broker.worker(first), broker.worker(second)):
                await broker.publish("m1")
                await until(lambda: first.running + second.running == 1)
                begun_s = asyncio.get_running_loop().time()
                await until(lambda: asyncio.get_running_loop().time() > begun_s + 2.5 * lease_s)
                first.gate.set()
                second.gate.set()
            assert len(first.seen + second.seen) == 1
            assert await broker.left() == 0

        self.play(broker, scenario)

    def test_a_broken_consumer_leaves_the_message_with_the_broker(self, broker: Broker) -> None:
        async def scenario() -> None:
            class Broken(Stub):
                async def __call__(self, delivery: Delivery) -> Verdict:
                    await super().__call__(delivery)
                    raise RuntimeError("a bug")

            stub = Broken()
            async with running(broker.worker(stub)):
                await broker.publish("m1")
                await until(stub.came(1))
            assert await broker.left() == 1

        self.play(broker, scenario)

    def test_a_worker_runs_once(self, broker: Broker) -> None:
        async def scenario() -> None:
            worker = broker.worker(Stub())
            async with running(worker):
                await asyncio.sleep(0)
                with pytest.raises(Misuse, match="make a new consumer"):
                    await worker.run()

        self.play(broker, scenario)

    def test_options_are_checked(self, broker: Broker) -> None:
        async def scenario() -> None:
            with pytest.raises(TypeError, match="did you mean concurrency="):
                broker.worker(Stub(), concurency=3)
            with pytest.raises(ValueError, match="concurrency must be a number from 1 to 1000, not 0"):
                broker.worker(Stub(), concurrency=0)
            with pytest.raises(ValueError, match="drain must be between"):
                broker.worker(Stub(), drain=-1)

        self.play(broker, scenario)


class ServiceScenarios:
    """The same with the real inbox, as a process of its own, on PostgreSQL."""

    def publish(self, broker: Broker, *messages: str) -> None:
        async def all_of_them() -> None:
            for message in messages:
                name = f"{broker.name}-{message}"
                await broker.publish(name, name.encode())

        asyncio.run(all_of_them())

    def assert_each_once(self, broker: Broker, database: str, *messages: str) -> None:
        assert {each: effects(database, f"{broker.name}-{each}") for each in messages} == dict.fromkeys(messages, 1)

    def test_what_is_delivered_twice_takes_effect_once(
        self, broker: Broker, urls: Mapping[str, str], tmp_path: Path
    ) -> None:
        asyncio.run(broker.prepare())
        (tmp_path / "gate").touch()
        self.publish(broker, "m1", "m2", "m1", "m2", "m1")
        database, gate = urls["postgres"], tmp_path / "gate"
        with serving(broker, database, gate) as one, serving(broker, database, gate) as other:
            self.publish(broker, "m2", "m1", "m3")
            wait_until(lambda: effects(database, f"{broker.name}-m3"))
            assert (one.end(), other.end()) == (0, 0)
        with serving(broker, urls["postgres"], tmp_path / "gate") as heir:  # for what was to be delivered again
            wait_until(lambda: asyncio.run(broker.left()) == 0)
            assert heir.end() == 0
        self.assert_each_once(broker, urls["postgres"], "m1", "m2", "m3")
        assert asyncio.run(broker.left()) == 0
        assert asyncio.run(broker.dead()) == []

    def test_a_process_killed_while_handling_leaves_its_messages_to_another(
        self, broker: Broker, urls: Mapping[str, str], tmp_path: Path
    ) -> None:
        asyncio.run(broker.prepare())
        database, gate = urls["postgres"], tmp_path / "gate"
        written = [f"{broker.name}-m1", f"{broker.name}-m2"]
        with serving(broker, database, gate) as victim:
            self.publish(broker, "m1", "m2")
            victim.has_written(*written)
            victim.process.kill()
        assert effects(database, written[0]) == effects(database, written[1]) == 0
        gate.touch()
        with serving(broker, database, gate) as heir:
            heir.has_written(*written)
            wait_until(lambda: all(effects(database, each) for each in written))
            assert heir.end() == 0
        self.assert_each_once(broker, database, "m1", "m2")
        assert asyncio.run(broker.left()) == 0

    def test_a_process_that_sleeps_past_its_lease_does_not_repeat_the_effect(
        self, broker: Broker, urls: Mapping[str, str], tmp_path: Path
    ) -> None:
        asyncio.run(broker.prepare())
        database, gate = urls["postgres"], tmp_path / "gate"
        with serving(broker, database, gate) as sleeper, serving(broker, database, gate) as other:
            self.publish(broker, "m1", "m2", "m3")
            wait_until(lambda: len(sleeper.written) + len(other.written) == 3)
            sleeper.process.send_signal(signal.SIGSTOP)
            taken = len(other.written)
            if broker.lease_s is not None:
                deadline = asyncio.run(broker.left())
                assert deadline == 3
                _sleep_past(2 * broker.lease_s)
            gate.touch()
            wait_until(lambda: sum(effects(database, f"{broker.name}-m{each}") for each in (1, 2, 3)) >= taken)
            sleeper.process.send_signal(signal.SIGCONT)
            wait_until(lambda: all(effects(database, f"{broker.name}-m{each}") for each in (1, 2, 3)))
            assert (sleeper.end(), other.end()) == (0, 0)
        with serving(broker, database, gate) as heir:
            if not isinstance(broker, OnRabbitmq):
                wait_until(lambda: asyncio.run(broker.left()) == 0)
            assert heir.end() == 0
        self.assert_each_once(broker, database, "m1", "m2", "m3")
        assert asyncio.run(broker.dead()) == []


def _sleep_past(seconds: float) -> None:
    """Let a lease of the broker run out: its server has a clock of its own."""
    begun_s = monotonic()
    wait_until(lambda: monotonic() > begun_s + seconds)


class RestartScenarios(BriefWaits):
    """What happens when the broker dies. A subclass has the fixture `private`, a server of its own."""

    def test_consuming_goes_on_after_the_broker_was_killed_and_restarted(
        self, private: Server, private_broker: Broker
    ) -> None:
        async def scenario() -> None:
            await private_broker.prepare()
            stub = Stub()
            async with running(private_broker.worker(stub)):
                await private_broker.publish("m1")
                await until(stub.came(1))
                await asyncio.to_thread(private.kill)
                await asyncio.to_thread(private.restart)
                await private_broker.publish("m2")
                await until(lambda: any(each.id == "m2" for each in stub.seen))
                await until(private_broker.is_done)

        asyncio.run(scenario())

    def test_a_dead_letter_that_the_broker_does_not_confirm_leaves_the_message(
        self, private: Server, private_broker: Broker
    ) -> None:
        async def scenario() -> None:
            await private_broker.prepare()
            final = judge(Handling.FINAL, "no")
            stub = Stub(final, final, final, blocked=True)
            worker = private_broker.worker(stub)
            run = asyncio.create_task(worker.run())
            await private_broker.publish("m1")
            await until(lambda: stub.running == 1)
            await asyncio.to_thread(private.pause)
            stub.gate.set()
            await until(lambda: stub.running == 0)
            run.cancel()  # while the dead letter is on its way
            with pytest.raises(asyncio.CancelledError):
                await run
            await asyncio.to_thread(private.resume)
            dead, left = await private_broker.dead(), await private_broker.left()
            assert (len(dead), left) in ((0, 1), (1, 1))
            heir = Stub(final)
            async with running(private_broker.worker(heir)):
                await until(heir.came(1))
            assert len(await private_broker.dead()) >= 1
            assert await private_broker.left() == 0

        asyncio.run(scenario())

    def test_a_broker_that_is_away_at_the_start_is_waited_for(self, private: Server, private_broker: Broker) -> None:
        async def scenario() -> None:
            await private_broker.prepare()
            await asyncio.to_thread(private.end)  # in good order: RabbitMQ writes down its queues a moment later
            stub = Stub()
            async with running(private_broker.worker(stub)):
                await asyncio.to_thread(private.restart)
                await private_broker.publish("m1")
                await until(stub.came(1))
                await until(private_broker.is_done)

        asyncio.run(scenario())

    def test_stop_ends_a_worker_whose_broker_is_away(self, private: Server, private_broker: Broker) -> None:
        async def scenario() -> None:
            await asyncio.to_thread(private.kill)
            async with running(private_broker.worker(Stub())):
                await asyncio.sleep(0.05)

        asyncio.run(scenario())
