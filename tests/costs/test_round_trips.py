"""How often the store is asked, counted on the wire: once for a claim, a completion, a replay; never without a key."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import pytest

from costs.counting import RoundTrips, traced, watched
from semel import Acquired, Key, Occupied, Result, open_async_store, open_store
from semel.asgi import IdempotencyMiddleware
from semel.core.effects import Read
from semel.core.records import Claimed, Lease
from semel.store import AsyncStore, Migratable, Store
from semel.stores.sqlite.answers import Replied, value_of
from semel.stores.sqlite.store import SqliteStore

TIMES = {"lease_ms": 600_000, "retention_ms": 3_600_000}
RESULT = Result("t", b"x" * 200)
WARM = 8
"""Statements are prepared when they have been used for some time; after that every call is like the next."""

Asked = tuple[str, RoundTrips]


@pytest.fixture(scope="module", params=["postgres", "redis"])
def asked(request: pytest.FixtureRequest) -> Iterator[Asked]:
    url = request.getfixturevalue(f"{request.param}_url")
    if request.param == "postgres":
        store = open_store(url)
        assert isinstance(store, Migratable)
        store.migrate()
        store.close()
    with watched(url) as found:
        yield found


def new_key() -> Key:
    return Key("shop", "POST /pay", secrets.token_hex(8))


def claim(store: Store, key: Key) -> Claimed:
    return store.claim(key, "f", owner=secrets.token_hex(8), takeover=False, **TIMES)


def finish(store: Store, lease: Lease) -> None:
    assert store.complete(lease, RESULT, retention_ms=3_600_000)


async def aclaim(store: AsyncStore, key: Key) -> Claimed:
    return await store.claim(key, "f", owner=secrets.token_hex(8), takeover=False, **TIMES)


async def afinish(store: AsyncStore, claimed: Claimed) -> None:
    assert isinstance(claimed, Acquired)
    assert await store.complete(claimed.lease, RESULT, retention_ms=3_600_000)


def test_a_thread_asks_once_for_each_step(asked: Asked) -> None:
    url, trips = asked
    store = open_store(url)
    for _ in range(WARM):
        key, before = new_key(), trips.taken()
        claimed = claim(store, key)
        claiming = trips.taken()
        assert isinstance(claimed, Acquired)
        finish(store, claimed.lease)
        finishing = trips.taken()
        assert isinstance(claim(store, key), Occupied)
        replaying = trips.taken()
    store.close()
    assert (before, claiming, finishing, replaying) == (0, 1, 1, 1)


def test_a_task_asks_once_for_each_step_and_many_ask_together(asked: Asked) -> None:
    url, trips = asked

    async def run() -> None:
        store = open_async_store(url)
        for _ in range(WARM):
            key, before = new_key(), trips.taken()
            claimed = await aclaim(store, key)
            claiming = trips.taken()
            await afinish(store, claimed)
            finishing = trips.taken()
            assert isinstance(await aclaim(store, key), Occupied)
            replaying = trips.taken()
        assert (before, claiming, finishing, replaying) == (0, 1, 1, 1)
        keys = [new_key() for _ in range(64)]
        granted = await asyncio.gather(*(aclaim(store, key) for key in keys))
        together = [trips.taken()]
        await asyncio.gather(*(afinish(store, each) for each in granted))
        together.append(trips.taken())
        await asyncio.gather(*(aclaim(store, key) for key in keys))
        together.append(trips.taken())
        await store.close()
        assert max(together) <= 2, f"64 calls at once took {together} round trips"

    asyncio.run(run())


def test_a_request_asks_as_often_as_its_case_needs(asked: Asked) -> None:
    url, trips = asked
    entered, release = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if scope["path"] == "/hold":
            entered.set()
            await release.wait()
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def run() -> dict[str, tuple[int, int]]:
        middleware = IdempotencyMiddleware(app, store=url, identify=lambda scope: "shop")

        async def case(key: str | None, body: bytes = b"{}", path: str = "/pay") -> tuple[int, int]:
            trips.taken()
            return await post(middleware, key, body, path), trips.taken()

        for _ in range(WARM):
            key = secrets.token_hex(8)
            first, replay = await case(key), await case(key)
        mismatch, without = await case(key, b"other"), await case(None)
        held = asyncio.create_task(post(middleware, "held", b"{}", "/hold"))
        await entered.wait()
        in_flight = await case("held", path="/hold")
        release.set()
        await held
        await middleware.close()
        return {
            "first": first,
            "replay": replay,
            "mismatch": mismatch,
            "without": without,
            "in flight": in_flight,
        }

    assert asyncio.run(run()) == {
        "first": (201, 2),
        "replay": (201, 1),
        "mismatch": (422, 1),
        "without": (201, 0),
        "in flight": (409, 1),
    }


async def post(app: Callable[..., Awaitable[None]], key: str | None, body: bytes, path: str) -> int:
    headers = [] if key is None else [(b"idempotency-key", key.encode())]
    statuses = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if "status" in message:
            statuses.append(message["status"])

    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    await app(scope, receive, send)
    [status] = statuses
    assert isinstance(status, int)
    return status


def test_exactly_once_adds_two_statements_to_a_transaction(postgres_url: str) -> None:
    """The claim and the result; a replay only looks. Between them are the statements that are yours."""
    from semel.transaction import within

    async def run(url: str, trips: RoundTrips) -> None:
        store = open_async_store(postgres_url + "?migrate=auto")
        await store.get(new_key())
        await store.close()
        connection = await asyncpg.connect(url)

        async def once(key: str | None) -> int:
            trips.taken()
            async with connection.transaction():
                if key is None:
                    await connection.execute("SELECT 1")
                else:
                    async with within(connection).operation(key, scope="operation") as op:
                        if not op.replayed:
                            await connection.execute("SELECT 1")
                            op.result = {"amount": 10}
            return trips.taken()

        for _ in range(WARM):
            key = secrets.token_hex(8)
            alone, first, replay = await once(None), await once(key), await once(key)
        await connection.close()
        assert alone == 3  # BEGIN, yours, COMMIT
        assert first - alone == 2
        assert replay == alone

    with watched(postgres_url) as (url, trips):
        asyncio.run(run(url, trips))


def test_sqlite_commits_once_for_each_step(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    statements = traced(monkeypatch)

    def commits() -> int:
        count = sum(statement.startswith("COMMIT") for statement in statements)
        statements.clear()
        return count

    store = open_store(f"sqlite:///{tmp_path}/semel.db")
    finish_first = claim(store, new_key())
    assert isinstance(finish_first, Acquired)
    commits()
    key = new_key()
    claimed = claim(store, key)
    claiming = commits()
    assert isinstance(claimed, Acquired)
    finish(store, claimed.lease)
    finishing = commits()
    assert isinstance(claim(store, key), Occupied)
    replaying = commits()
    store.close()
    assert (claiming, finishing) == (1, 1)
    assert replaying <= 1


def test_sqlite_looks_once_for_all_who_ask_together(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 64 with one statement, and each gets what is its own."""
    statements = traced(monkeypatch)
    keys = [new_key() for _ in range(150)]
    store = SqliteStore(f"{tmp_path}/semel.db")
    for key in keys[::2]:
        assert isinstance(claimed := claim(store, key), Acquired)
        assert store.complete(claimed.lease, Result("t", key.name.encode()), retention_ms=3_600_000)
    database = store._database.get()
    for count, looks in ((1, 1), (2, 1), (3, 1), (64, 1), (65, 2), (150, 3)):
        statements.clear()
        replies = database.look([Read(key) for key in keys[:count]])
        found = [value_of(reply) for reply in replies if isinstance(reply, Replied)]
        assert [None if one is None else one.result.payload.decode() for one in found] == [
            key.name if number % 2 == 0 else None for number, key in enumerate(keys[:count])
        ]
        assert len(statements) == looks
    store.close()
