"""A relay on real databases: commits that come late, hints, dead letters, and a server that dies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from outbox.recording import RecordingPublisher, until
from outbox.shops import Shop, new_database
from semel.core.messages import Message
from semel.core.outbox import RedriveMessages
from semel.errors import Poison
from semel.events import Event, EventKind
from semel.outbox import Relay
from servers.mariadb import MariadbServer
from servers.postgres import Postgres, PostgresServer


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    found = Shop(new_database(request.param, request, tmp_path))
    yield found
    found.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())


def test_messages_are_published_in_order_and_settled(shop: Shop) -> None:
    async def test() -> None:
        shop.publish(range(250), keys=3)
        publisher = RecordingPublisher()
        async with Relay(shop.url, publisher, batch=100) as relay:
            assert await relay.publish_waiting() == 250
        for key in ("key-0", "key-1", "key-2"):
            assert publisher.ids(key) == sorted(publisher.ids(key), key=lambda one: int(one[3:]))
        assert publisher.published[0] == Message(
            "id-0", "orders", b"0", publisher.published[0].content_type, key="key-0", attempt=1
        )
        assert shop.counts().published == 250

    run(test)


def test_a_transaction_that_is_rolled_back_publishes_nothing(shop: Shop) -> None:
    async def test() -> None:
        with closing(shop.connect()) as connection:
            shop.publish([1], connection=connection)
            connection.rollback()
        publisher = RecordingPublisher()
        async with Relay(shop.url, publisher) as relay:
            assert await relay.publish_waiting() == 0
        assert not publisher.published

    run(test)


def test_a_relay_hears_of_a_message_before_it_polls(shop: Shop) -> None:
    async def test() -> None:
        publisher = RecordingPublisher()
        relay = Relay(shop.url, publisher, poll=30)
        task = asyncio.ensure_future(relay.run())
        try:
            for number in range(3):
                await asyncio.to_thread(shop.publish, [number])
                await until(lambda: len(publisher.published) > number)  # noqa: B023
        finally:
            relay.stop()
            await task

    run(test)


def test_a_transaction_that_commits_late_is_published(postgres_server: Postgres) -> None:
    """Its messages have smaller numbers than some that are published already."""
    shop = Shop(postgres_server.create_database(f"shop_{uuid4().hex[:12]}"))

    async def test() -> None:
        publisher = RecordingPublisher()
        with closing(shop.connect()) as late:
            shop.publish([1, 2], keys=2, connection=late)
            shop.publish([3, 4])
            async with Relay(shop.url, publisher) as relay:
                assert await relay.publish_waiting() == 2
                late.commit()
                assert await relay.publish_waiting() == 2
        assert set(publisher.ids()[:2]) == {"id-3", "id-4"}
        assert set(publisher.ids()[2:]) == {"id-1", "id-2"}

    run(test)
    shop.close()


@pytest.mark.parametrize("dead_block", [False, True])
def test_poison_and_what_comes_after_it(shop: Shop, dead_block: bool) -> None:
    async def test() -> None:
        poison = [True]

        async def before(message: Message) -> None:
            if message.id == "id-1" and poison[0]:
                raise Poison("too large")

        shop.publish(range(4), keys=1)
        publisher = RecordingPublisher(before)
        async with Relay(shop.url, publisher, dead_block=dead_block) as relay:
            await relay.publish_waiting()
            assert publisher.ids() == (["id-0"] if dead_block else ["id-0", "id-2", "id-3"])
            assert shop.counts().dead == 1
            poison[0] = False
            assert shop.store.outbox(RedriveMessages((2,))) == 1
            await relay.publish_waiting()
        assert publisher.ids() == (["id-0", "id-1", "id-2", "id-3"] if dead_block else ["id-0", "id-2", "id-3", "id-1"])
        assert shop.counts().dead == 0

    run(test)


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_server_that_is_killed_and_restarted(kind: str, request: pytest.FixtureRequest) -> None:
    server: PostgresServer | MariadbServer = request.getfixturevalue(f"private_{kind}")
    shop = Shop(server.create_database("shop"))
    events: list[Event] = []

    async def test() -> None:
        publisher = RecordingPublisher()
        relay = Relay(shop.url, publisher, poll=0.05, lease=2, on_event=events.append)
        task = asyncio.ensure_future(relay.run())
        try:
            shop.publish(range(50), keys=3)
            await until(lambda: len(publisher.published) >= 50)
            server.kill()
            await until(lambda: any(each.kind is EventKind.RELAY_PAUSED for each in events))
            await asyncio.to_thread(server.start)
            shop.publish(range(50, 100), keys=3)
            await until(lambda: {f"id-{number}" for number in range(100)} == set(publisher.ids()))
        finally:
            relay.stop()
            await task

    run(test)
    shop.close()
    again = Shop(shop.url)  # on connections of its own: the other ones died with the server
    assert not again.held()
    assert again.counts().waiting == 0
    again.close()


def test_a_store_that_is_away_from_the_start_ends_nothing(postgres_server: Postgres) -> None:
    async def test() -> None:
        events: list[Event] = []
        relay = Relay("postgresql://127.0.0.1:9/shop", RecordingPublisher(), on_event=events.append)
        task = asyncio.ensure_future(relay.run())
        await until(lambda: len(events) > 1)
        assert not task.done()
        relay.stop()
        await task
        assert {each.kind for each in events} == {EventKind.RELAY_PAUSED}

    run(test)
