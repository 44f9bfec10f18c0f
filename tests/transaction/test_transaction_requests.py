"""Exactly-once over HTTP when things go wrong: the task that runs a request ends its transaction, and no other does.

Effects are the rows that a fresh connection sees. Every request writes two rows, so that half of one would show.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import asyncpg
import httpx
import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from semel import OutcomeUnknown, Policy
from semel.asgi import IdempotencyMiddleware
from semel.transaction import AsyncTransactionStore
from transaction.modes import effects, ledger, sqlalchemy_url

Begin = Callable[[], AbstractAsyncContextManager[Any]]
Write = Callable[[Any, str], Any]
LEASE_S = 0.1
POLICY = Policy(guarantee="exactly-once", required=True, lease=LEASE_S, result_max=1000)
SECRET = b"0123456789abcdef0123456789abcdef"
LONG = "x" * 400
DEADLOCK = "DO $$ BEGIN RAISE EXCEPTION 'on purpose' USING ERRCODE = '40P01'; END $$"


# Connections: a pool of a fixed size, by three kinds of drivers


@asynccontextmanager
async def asyncpg_pool(url: str, size: int) -> AsyncIterator[tuple[Begin, Write]]:
    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with pool.acquire() as connection, connection.transaction():
            yield connection

    async def write(connection: Any, sql: str) -> None:
        await connection.execute(sql)

    async with asyncpg.create_pool(url, min_size=1, max_size=size) as pool:
        yield begin, write
        assert pool.get_idle_size() == pool.get_size(), "a request has kept its connection"


@asynccontextmanager
async def psycopg_pool(url: str, size: int) -> AsyncIterator[tuple[Begin, Write]]:
    """A few lines that hand connections back and out again: what matters about a pool here."""
    idle: asyncio.Queue[Any] = asyncio.Queue()
    for _ in range(size):
        idle.put_nowait(await psycopg.AsyncConnection.connect(url))

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        connection = await idle.get()
        try:
            async with connection.transaction():
                yield connection
        finally:
            fresh = connection if not connection.closed else await psycopg.AsyncConnection.connect(url)
            if fresh.info.transaction_status:
                await fresh.rollback()
            idle.put_nowait(fresh)

    async def write(connection: Any, sql: str) -> None:
        await connection.execute(sql.encode())

    yield begin, write
    assert idle.qsize() == size, "a request has kept its connection"
    while not idle.empty():
        await idle.get_nowait().close()


@asynccontextmanager
async def sqlalchemy_pool(url: str, size: int) -> AsyncIterator[tuple[Begin, Write]]:
    engine = create_async_engine(sqlalchemy_url(url, "asyncpg"), pool_size=size, max_overflow=0)

    async def write(session: Any, sql: str) -> None:
        await session.execute(text(sql))

    try:
        yield async_sessionmaker(engine).begin, write
        assert engine.pool.checkedout() == 0, "a request has kept its connection"  # type: ignore[attr-defined]
    finally:
        await engine.dispose()


@asynccontextmanager
async def sqlite_pool(url: str, size: int) -> AsyncIterator[tuple[Begin, Write]]:
    """SQLite has one writer at a time, whatever it writes, so unrelated requests wait for each other."""
    url = sqlalchemy_url(url, "aiosqlite")
    engine = create_async_engine(url, pool_size=size, max_overflow=0, connect_args={"timeout": 0.05})

    async def write(session: Any, sql: str) -> None:
        await session.execute(text(sql))

    try:
        yield async_sessionmaker(engine).begin, write
        assert engine.pool.checkedout() == 0, "a request has kept its connection"  # type: ignore[attr-defined]
    finally:
        await engine.dispose()


POOLS = {"asyncpg": asyncpg_pool, "psycopg": psycopg_pool, "sqlalchemy": sqlalchemy_pool, "sqlite": sqlite_pool}
each_pool = pytest.mark.parametrize("kind", POOLS)
on_postgres = pytest.mark.parametrize("kind", [kind for kind in POOLS if kind != "sqlite"])


def url_for(kind: str, urls: Mapping[str, str]) -> str:
    return urls["sqlite" if kind == "sqlite" else "postgres"]


# The service


class Service:
    """An ASGI application that does what the body of a request says, behind the middleware."""

    def __init__(self, store: AsyncTransactionStore[Any], write: Write, *, waiters_max: int = 100) -> None:
        self.store = store
        self._write = write
        self.runs = 0
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.go_on = asyncio.Event()
        self.app = IdempotencyMiddleware(
            self._answer,
            store=store,
            policy=POLICY,
            secret=SECRET,
            identify=lambda scope: dict(scope["headers"]).get(b"x-tenant", b"shop").decode(),
            waiters_max=waiters_max,
        )

    async def write(self, name: str) -> None:
        await self._write(self.store.current(), f"INSERT INTO effects (name) VALUES ('{name}')")

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        name, do = body["name"], body["do"]
        self.runs += 1
        await self.write(name)
        self.begun.put_nowait(name)
        again = self.runs > 1
        if do == "wait":
            await self.go_on.wait()
        elif do == "block":
            time.sleep(3 * LEASE_S)  # the loop is to stand still
        elif do == "unknown" and not again:
            raise OutcomeUnknown("on purpose")
        elif do == "cancel" and not again:
            current = asyncio.current_task()
            assert current is not None
            current.cancel()
            await asyncio.sleep(1)
        elif do == "deadlock" and not again:
            await self._write(self.store.current(), DEADLOCK)
        elif do == "terminate" and not again:
            await self._write(self.store.current(), "SELECT pg_terminate_backend(pg_backend_pid())")
        await send({"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"text/plain")]})
        if do in ("stream", "break"):
            for _ in range(4):
                await send({"type": "http.response.body", "body": LONG.encode(), "more_body": True})
        await self.write(name)
        if do == "break":
            raise ArithmeticError("on purpose, in the middle of the answer")
        await send({"type": "http.response.body", "body": b"run %d" % self.runs})

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[Call]:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            yield Call(client)


class Call:
    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def __call__(self, name: str, do: str = "", **headers: str) -> httpx.Response:
        given = {"Idempotency-Key": name, **{key.replace("_", "-"): value for key, value in headers.items()}}
        return await asyncio.wait_for(
            self.client.post("/pay", content=json.dumps({"name": name, "do": do}), headers=given), 30
        )

    async def monitor(self, accepted: httpx.Response) -> httpx.Response:
        return await self.client.get(accepted.headers["location"])


@asynccontextmanager
async def serving(kind: str, url: str, size: int = 2, **options: Any) -> AsyncIterator[tuple[Service, Call]]:
    async with POOLS[kind](url, size) as (begin, write):
        service = Service(AsyncTransactionStore(begin), write, **options)
        async with service.calling() as call:
            yield service, call
            await service.app.host.tasks.drain()


def open_transactions(url: str) -> int:
    """How many connections of others are in a transaction and do nothing."""
    with psycopg.connect(url) as connection:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
        found = connection.execute(sql).fetchone()
    assert found is not None
    return int(found[0])


# Ended by its own task, and by nothing else


@on_postgres
@pytest.mark.parametrize("size", [1, 2])
def test_a_loop_that_was_blocked_ends_no_request(kind: str, size: int, urls: Mapping[str, str]) -> None:
    """A request that is late is only late: the next claim of any key leaves its transaction alone."""
    url, name = urls["postgres"], f"blocked.{kind}.{size}"

    async def main() -> None:
        async with serving(kind, url, size) as (service, call):
            first = asyncio.create_task(call(f"{name}.a", "wait"))
            await service.begun.get()
            time.sleep(3 * LEASE_S)  # the loop is to stand still
            others = [asyncio.create_task(call(f"{name}.{number}")) for number in range(3)]
            if size > 1:
                assert [(await other).status_code for other in others] == [201, 201, 201]
            else:
                await asyncio.sleep(0.05)
            service.go_on.set()
            assert (await first).status_code == 201
            assert [(await other).status_code for other in others] == [201, 201, 201]
            again = await call(f"{name}.a", "wait")
            assert (again.status_code, again.headers["idempotent-replayed"]) == (201, "true")

    asyncio.run(main())
    found = ledger(url)
    assert {end: found[f"{name}.{end}"] for end in ("a", "0", "1", "2")} == {"a": 2, "0": 2, "1": 2, "2": 2}


@each_pool
@pytest.mark.parametrize(("do", "status"), [("unknown", 504), ("cancel", 0)])
def test_a_request_that_is_cut_off_is_rolled_back_at_once(
    kind: str, do: str, status: int, urls: Mapping[str, str]
) -> None:
    url, name = url_for(kind, urls), f"cut.{kind}.{do}"

    async def main() -> None:
        async with serving(kind, url, 1) as (service, call):
            if status:
                assert (await call(name, do)).status_code == status
            else:
                with pytest.raises(asyncio.CancelledError):
                    await call(name, do)
            if kind != "sqlite":
                assert open_transactions(url) == 0
            assert (await call(f"{name}.other")).status_code == 201  # the connection is free
            again = await call(name, do)
            assert (again.status_code, "idempotent-replayed" in again.headers) == (201, False)
            assert service.runs == 3

    asyncio.run(main())
    assert effects(url, name) == 2


# Nothing is settled before the handler has ended


@each_pool
def test_a_large_answer_is_sent_after_the_commit(kind: str, urls: Mapping[str, str]) -> None:
    url, name = url_for(kind, urls), f"large.{kind}"

    async def main() -> None:
        async with serving(kind, url) as (service, call):
            first = await call(name, "stream")
            assert (first.status_code, first.text) == (201, f"{LONG * 4}run 1")
            again = await call(name, "stream")
            assert (again.status_code, again.json()["type"].rpartition("#")[2]) == (409, "result-not-kept")
            assert service.runs == 1

    asyncio.run(main())
    assert effects(url, name) == 2


@each_pool
def test_a_large_answer_that_breaks_leaves_nothing(kind: str, urls: Mapping[str, str]) -> None:
    url, name = url_for(kind, urls), f"broken.{kind}"

    async def main() -> None:
        async with serving(kind, url) as (_, call):
            first, again = await call(name, "break"), await call(name, "break")
            assert (first.status_code, again.status_code) == (500, 500)
            assert first.content == again.content
            assert first.json()["type"].endswith("#internal-error")

    asyncio.run(main())
    assert effects(url, name) == 0


def test_an_answer_has_a_bound(urls: Mapping[str, str]) -> None:
    url = urls["postgres"]

    async def main() -> None:
        async with asyncpg_pool(url, 1) as (begin, write):
            service = Service(AsyncTransactionStore(begin, held_max=1000), write)
            async with service.calling() as call:
                assert (await call("bound", "stream")).status_code == 500

    asyncio.run(main())
    assert effects(url, "bound") == 0


# The monitor


@each_pool
def test_the_monitor_says_202_for_as_long_as_it_runs(kind: str, urls: Mapping[str, str]) -> None:
    """Also when another process is asked, which can see neither the record nor the request."""
    url, name = url_for(kind, urls), f"monitor.{kind}"

    async def main() -> None:
        async with serving(kind, url) as (service, call), serving(kind, url) as (_, elsewhere):
            accepted = await call(name, "wait", Prefer="respond-async")
            assert accepted.status_code == 202
            for asked in (call, elsewhere):
                told = await asked.monitor(accepted)
                assert (told.status_code, "retry-after" in told.headers) == (202, True)
            twin = await elsewhere(name, "wait", Prefer="respond-async")
            assert twin.status_code == (503 if kind == "sqlite" else 202)  # SQLite cannot tell who writes
            service.go_on.set()
            await service.app.host.tasks.drain()
            for asked in (call, elsewhere):
                told = await asked.monitor(accepted)
                assert (told.status_code, told.text) == (201, "run 1")

    asyncio.run(main())
    assert effects(url, name) == 2


def test_the_monitor_of_what_was_rolled_back(urls: Mapping[str, str]) -> None:
    url, name = urls["postgres"], "monitor.rolled-back"

    async def main() -> None:
        async with serving("asyncpg", url) as (service, call):
            accepted = await call(name, "unknown", Prefer="respond-async")
            assert accepted.status_code == 202
            await service.app.host.tasks.drain()
            told = await call.monitor(accepted)
            assert told.status_code == 410
            assert "repeat the request with the same key" in told.json()["detail"]
            assert (await call(name, "unknown")).status_code == 201

    asyncio.run(main())
    assert effects(url, name) == 2


# Twins


@on_postgres
@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
def test_a_twin_waits_for_longer_than_a_lease(kind: str, elsewhere: bool, urls: Mapping[str, str]) -> None:
    url, name = urls["postgres"], f"waits.{kind}.{elsewhere}"

    async def main() -> None:
        async with serving(kind, url) as (service, call), serving(kind, url) as (other, call_other):
            first = asyncio.create_task(call(name, "wait"))
            await service.begun.get()
            twin = asyncio.create_task((call_other if elsewhere else call)(name, "wait"))
            await asyncio.sleep(0.04)
            for number in range(5):  # unrelated requests go on, and end nothing
                time.sleep(LEASE_S)  # the loop is to stand still
                assert (await call(f"{name}.{number}")).status_code == 201
            service.go_on.set()
            other.go_on.set()
            answers = [await first, await twin]
            assert [answer.status_code for answer in answers] == [201, 201]
            assert answers[0].content == answers[1].content
            assert answers[1].headers["idempotent-replayed"] == "true"

    asyncio.run(main())
    assert effects(url, name) == 2


@on_postgres
def test_many_twins_leave_the_pool_to_others(kind: str, urls: Mapping[str, str]) -> None:
    """Forty repeats of one slow request wait without a connection; a tenant of another key finds one free."""
    url, name = urls["postgres"], f"crowd.{kind}"

    async def main() -> None:
        async with serving(kind, url, 2, waiters_max=20) as (service, call):
            first = asyncio.create_task(call(name, "wait"))
            await service.begun.get()
            twins = [asyncio.create_task(call(name, "wait")) for _ in range(40)]
            done: set[asyncio.Task[httpx.Response]] = set()
            while len(done) < 20:
                done, waiting = await asyncio.wait(twins, return_when=asyncio.FIRST_COMPLETED, timeout=30)
                await asyncio.sleep(0.01)
            assert {(await each).status_code for each in done} == {409}, "those above the bound are told to come back"
            assert (len(done), len(waiting)) == (20, 20)
            assert (await call(f"{name}.other", x_tenant="acme")).status_code == 201
            service.go_on.set()
            assert (await first).status_code == 201
            assert {(await each).headers["idempotent-replayed"] for each in waiting} == {"true"}

    asyncio.run(main())
    assert effects(url, name) == 2


def test_a_twin_with_another_body_is_refused_while_the_first_runs(urls: Mapping[str, str]) -> None:
    async def main() -> None:
        async with serving("asyncpg", urls["postgres"]) as (service, call):
            first = asyncio.create_task(call("other-body", "wait"))
            await service.begun.get()
            assert (await call("other-body", "something else")).status_code == 422
            service.go_on.set()
            assert (await first).status_code == 201

    asyncio.run(main())


def test_a_request_that_is_still_claiming_decides_nothing(urls: Mapping[str, str]) -> None:
    """Its key may belong to a finished operation, whose repeats are not refused because of it, and do not wait."""
    url, name, hold = urls["postgres"], "claiming", asyncio.Event()

    async def main() -> None:
        async with asyncpg_pool(url, 3) as (begin, write):
            stuck, go_on = asyncio.Event(), asyncio.Event()

            @asynccontextmanager
            async def begin_slowly() -> AsyncIterator[Any]:
                if hold.is_set():
                    hold.clear()
                    stuck.set()
                    await go_on.wait()
                async with begin() as connection:
                    yield connection

            service = Service(AsyncTransactionStore(begin_slowly, wait=0.001), write)
            async with service.calling() as call:
                assert (await call(name)).status_code == 201
                hold.set()
                wrong = asyncio.create_task(call(name, "another body"))
                await stuck.wait()
                again = await call(name)
                assert (again.status_code, again.headers["idempotent-replayed"]) == (201, "true")
                go_on.set()
                assert (await wrong).status_code == 422

    asyncio.run(main())
    assert effects(url, name) == 2


def test_a_request_that_is_cancelled_twice_waits_for_its_handler(urls: Mapping[str, str]) -> None:
    """A handler that still works on its connection when its request is cancelled again keeps it until it has ended."""
    url, name, said = urls["postgres"], "cancelled-twice", []

    async def main() -> None:
        async with asyncpg_pool(url, 1) as (begin, write):
            started = asyncio.Event()

            @asynccontextmanager
            async def begin_told() -> AsyncIterator[Any]:
                try:
                    async with begin() as connection:
                        yield connection
                finally:
                    said.append("handed back")

            store: AsyncTransactionStore[Any] = AsyncTransactionStore(begin_told)

            async def app(scope: Any, receive: Any, send: Any) -> None:
                connection = store.current()
                try:
                    started.set()
                    await asyncio.sleep(30)
                except asyncio.CancelledError:
                    with suppress(asyncio.CancelledError):
                        await asyncio.sleep(0.02)
                    await write(connection, f"INSERT INTO effects (name) VALUES ('{name}')")
                    raise
                finally:
                    said.append("ended")

            protected = IdempotencyMiddleware(app, store=store, policy=POLICY, identify=lambda _: "shop")
            transport = httpx.ASGITransport(protected, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                call = asyncio.create_task(Call(client)(name))
                await started.wait()
                [work] = [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__name__", "") == "_work"]
                for _ in range(2):
                    work.cancel()
                    await asyncio.sleep(0.005)
                with pytest.raises(asyncio.CancelledError):
                    await call

    asyncio.run(main())
    assert said == ["ended", "handed back"]
    assert effects(url, name) == 0


def test_a_long_failure_that_was_overtaken_gets_the_other_answer(urls: Mapping[str, str]) -> None:
    """A repeat in another process runs between the rollback of a failure and its record: its answer holds, alone."""
    url, name = urls["postgres"], "overtaken"

    async def main() -> None:
        async with asyncpg_pool(url, 2) as (begin, write):

            def front(begin: Begin, status: int, body: bytes) -> Call:
                store: AsyncTransactionStore[Any] = AsyncTransactionStore(begin)

                async def app(scope: Any, receive: Any, send: Any) -> None:
                    await write(store.current(), f"INSERT INTO effects (name) VALUES ('{name}')")
                    await send({"type": "http.response.start", "status": status, "headers": []})
                    await send({"type": "http.response.body", "body": body})

                protected = IdempotencyMiddleware(app, store=store, policy=POLICY, identify=lambda _: "shop")
                return Call(httpx.AsyncClient(transport=httpx.ASGITransport(protected), base_url="http://shop"))

            begun = []

            @asynccontextmanager
            async def begin_overtaken() -> AsyncIterator[Any]:
                begun.append(1)
                if len(begun) == 2:
                    assert (await quick(name)).status_code == 204
                async with begin() as connection:
                    yield connection

            quick, slow = front(begin, 204, b""), front(begin_overtaken, 409, LONG.encode() * 4)
            async with quick.client, slow.client:
                overtaken = await slow(name)
                assert (overtaken.status_code, overtaken.content) == (204, b"")

    asyncio.run(main())
    assert effects(url, name) == 1


# What the database gives up


@on_postgres
@pytest.mark.parametrize("do", ["deadlock", "terminate"])
def test_what_the_database_rolled_back_is_not_an_answer(kind: str, do: str, urls: Mapping[str, str]) -> None:
    """A lost connection and a deadlock leave nothing: 503, and the repeat runs."""
    url, name = urls["postgres"], f"given-up.{kind}.{do}"

    async def main() -> None:
        async with serving(kind, url, 1) as (service, call):
            first = await call(name, do)
            assert (first.status_code, first.json()["retryable"]) == (503, True)
            assert first.json()["type"].endswith("#not-executed")
            assert (await call(name, do)).status_code == 201
            assert (await call(name, do)).headers["idempotent-replayed"] == "true"
            assert service.runs == 2

    asyncio.run(main())
    assert effects(url, name) == 2
