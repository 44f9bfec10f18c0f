"""What every publisher promises, on a real broker that is paused, killed and restarted under it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from semel.errors import BrokerMisconfigured, BrokerUnavailable, Misuse
from semel.outbox import Message, Publisher, open_publisher
from servers.process import Server, free_port

PATIENCE_MS = 20_000
SHORT_MS = 400
PAUSED_S = 0.3
MANY = 100


@dataclass(frozen=True)
class Seen:
    """A message as a consumer sees it that knows nothing of semel."""

    id: str
    payload: bytes
    content_type: str
    key: str | None
    headers: Mapping[str, str] = field(default_factory=dict)
    """With lower-case names."""


class PublisherCases:
    """A subclass gives `broker` and the three functions below it, and gets the tests."""

    lossy_restart: ClassVar[bool] = False
    """Whether the broker forgets everything when it dies."""

    @pytest.fixture(scope="class")
    def broker(self) -> Any:
        raise NotImplementedError

    def url(self, broker: Any) -> str:
        raise NotImplementedError

    async def prepare(self, broker: Any, topic: str) -> None:
        """Make the queue, stream or subject."""
        raise NotImplementedError

    async def read(self, broker: Any, topic: str) -> list[Seen]:
        """Everything that was published to a topic."""
        raise NotImplementedError

    def open(self, broker: Any, timeout_ms: int = PATIENCE_MS) -> Publisher:
        url = self.url(broker)
        return open_publisher(f"{url}{'&' if '?' in url else '?'}timeout_ms={timeout_ms}")

    @contextlib.asynccontextmanager
    async def publisher(self, broker: Any, topic: str, timeout_ms: int = PATIENCE_MS) -> AsyncIterator[Publisher]:
        await self.prepare(broker, topic)
        publisher = self.open(broker, timeout_ms)
        try:
            yield publisher
        finally:
            await publisher.close()

    def test_a_plain_consumer_sees_the_message(self, broker: Any) -> None:
        async def run() -> list[Seen]:
            async with self.publisher(broker, "seen") as publisher:
                headers = {"trace": "t-1", "Greeting": "Grüße, 世界", "X-Empty": ""}
                await publisher.publish(
                    Message("id-1", "seen", '{"a":"ü"}'.encode(), "application/json", key="Käse 1", headers=headers)
                )
                await publisher.publish(Message("id-2", "seen", b"\x00\xff\r\n\x01", attempt=7))
                return await self.read(broker, "seen")

        one, two = asyncio.run(run())
        assert (one.id, one.payload, one.content_type, one.key) == (
            "id-1",
            '{"a":"ü"}'.encode(),
            "application/json",
            "Käse 1",
        )
        expected = {"trace": "t-1", "greeting": "Grüße, 世界", "x-empty": "", "semel-id": "id-1", "semel-key": "Käse 1"}
        assert {name: value for name, value in one.headers.items() if name in expected} == expected
        assert (two.id, two.payload, two.content_type, two.key) == (
            "id-2",
            b"\x00\xff\r\n\x01",
            "application/octet-stream",
            None,
        )
        assert "semel-key" not in two.headers

    def test_headers_of_ours_win(self, broker: Any) -> None:
        async def run() -> list[Seen]:
            async with self.publisher(broker, "wins") as publisher:
                await publisher.publish(
                    Message("true", "wins", b"", headers={"Semel-Id": "false", "semel-key": "false", "other": "kept"})
                )
                return await self.read(broker, "wins")

        (seen,) = asyncio.run(run())
        assert (seen.id, seen.key, seen.headers["semel-id"], seen.headers["other"]) == ("true", None, "true", "kept")

    def test_a_hundred_at_once(self, broker: Any) -> None:
        async def run() -> list[Seen]:
            async with self.publisher(broker, "many") as publisher:
                await asyncio.gather(*(publisher.publish(Message(f"n-{n}", "many", b"%d" % n)) for n in range(MANY)))
                return await self.read(broker, "many")

        seen = asyncio.run(run())
        assert Counter(each.id for each in seen) == {f"n-{n}": 1 for n in range(MANY)}
        assert all(each.id == f"n-{each.payload.decode()}" for each in seen)

    def test_one_after_the_other_keeps_the_order(self, broker: Any) -> None:
        async def run() -> list[Seen]:
            async with self.publisher(broker, "order") as publisher:
                for n in range(20):
                    await publisher.publish(Message(f"o-{n}", "order", b"", key="k"))
                return await self.read(broker, "order")

        assert [each.id for each in asyncio.run(run())] == [f"o-{n}" for n in range(20)]

    def test_it_returns_only_after_the_broker_confirmed(self, broker: Server) -> None:
        async def run() -> list[Seen]:
            async with self.publisher(broker, "confirmed") as publisher:
                await publisher.publish(Message("first", "confirmed", b""))
                with paused(broker):
                    waiting = asyncio.ensure_future(publisher.publish(Message("second", "confirmed", b"")))
                    await asyncio.wait([waiting], timeout=PAUSED_S)
                    assert not waiting.done(), "a broker that stands still confirmed a message"
                await waiting
                return await self.read(broker, "confirmed")

        assert [each.id for each in asyncio.run(run())] == ["first", "second"]

    def test_a_broker_that_stands_still_is_unavailable_until_it_goes_on(self, broker: Server) -> None:
        async def run() -> None:
            async with self.publisher(broker, "still", SHORT_MS) as publisher:
                await publisher.publish(Message("before", "still", b""))
                with paused(broker):
                    results = await asyncio.gather(
                        *(publisher.publish(Message(f"s-{n}", "still", b"")) for n in range(5)), return_exceptions=True
                    )
                    assert {type(each) for each in results} == {BrokerUnavailable}, results
                await until_published(publisher, Message("after", "still", b""))
                assert "after" in {each.id for each in await self.read(broker, "still")}

        asyncio.run(run())

    def test_a_broker_that_is_killed_in_between_and_comes_back(self, broker: Server) -> None:
        async def run() -> None:
            async with self.publisher(broker, "killed") as publisher:
                await publisher.publish(Message("before", "killed", b""))
                broker.pause()
                waiting = [asyncio.ensure_future(publisher.publish(Message(f"k-{n}", "killed", b""))) for n in range(5)]
                await asyncio.wait(waiting, timeout=PAUSED_S)
                broker.kill()
                async with asyncio.timeout(PATIENCE_MS / 2000):  # it is noticed, and not waited for
                    results = await asyncio.gather(*waiting, return_exceptions=True)
                assert {type(each) for each in results} == {BrokerUnavailable}, results
                with pytest.raises(BrokerUnavailable):
                    await publisher.publish(Message("away", "killed", b""))
                await asyncio.to_thread(broker.restart)
                if self.lossy_restart:
                    await self.prepare(broker, "killed")
                await until_published(publisher, Message("after", "killed", b""))
                ids = {each.id for each in await self.read(broker, "killed")}
                assert ids >= {"after"} if self.lossy_restart else ids >= {"before", "after"}

        asyncio.run(run())

    def test_a_cancelled_publish_leaves_the_connection_to_the_others(self, broker: Server) -> None:
        async def run() -> list[Seen]:
            async with self.publisher(broker, "cancelled") as publisher:
                await publisher.publish(Message("c-0", "cancelled", b""))
                with paused(broker):
                    gone = asyncio.ensure_future(publisher.publish(Message("gone", "cancelled", b"")))
                    await asyncio.wait([gone], timeout=0.05)
                    gone.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await gone
                for n in range(1, 4):
                    await until_published(publisher, Message(f"c-{n}", "cancelled", b"%d" % n))
                return await self.read(broker, "cancelled")

        ids = [each.id for each in asyncio.run(run())]
        assert [each for each in ids if each != "gone"] == ["c-0", "c-1", "c-2", "c-3"]

    def test_an_address_where_nothing_listens(self, broker: Server) -> None:
        async def run() -> None:
            url = self.url(broker).replace(str(broker.port), str(free_port()))
            publisher = open_publisher(url)
            with pytest.raises(BrokerUnavailable) as caught:
                await asyncio.wait_for(publisher.publish(Message("m", "nowhere", b"")), 5)
            assert "guest:guest" not in str(caught.value)
            await publisher.close()

        asyncio.run(run())

    def test_closing_twice_and_publishing_afterwards(self, broker: Any) -> None:
        async def run() -> None:
            async with self.publisher(broker, "closed") as publisher:
                await publisher.publish(Message("m", "closed", b""))
                await publisher.close()
                with pytest.raises(Misuse, match="closed: open another one"):
                    await publisher.publish(Message("n", "closed", b""))

        asyncio.run(run())
        asyncio.run(self.open(broker).close())

    def test_the_next_event_loop_gets_a_connection_of_its_own(self, broker: Any) -> None:
        publisher = self.open(broker)
        asyncio.run(self.prepare(broker, "loops"))
        asyncio.run(publisher.publish(Message("one", "loops", b"")))
        asyncio.run(publisher.publish(Message("two", "loops", b"")))
        asyncio.run(publisher.close())
        assert [each.id for each in asyncio.run(self.read(broker, "loops"))] == ["one", "two"]

    def test_an_option_that_is_not_known(self, broker: Any) -> None:
        url = self.url(broker)
        with pytest.raises(BrokerMisconfigured, match="did you mean timeout_ms"):
            open_publisher(f"{url}{'&' if '?' in url else '?'}timeout=5")


@contextlib.contextmanager
def paused(broker: Server) -> Any:
    broker.pause()
    try:
        yield
    finally:
        broker.resume()


async def until_published(publisher: Publisher, message: Message) -> None:
    """What a relay does: as long as the broker is away, the message is published again."""
    for _ in range(100):
        with contextlib.suppress(BrokerUnavailable):
            await publisher.publish(message)
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"the broker is back, and {message.id} could not be published")


async def outcome(publish: Callable[[], Awaitable[None]]) -> type[BaseException] | None:
    try:
        await publish()
    except Exception as error:
        return type(error)
    return None
