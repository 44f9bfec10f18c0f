"""Exactly-once over ASGI against what frameworks and servers do to a handler: cancel, swallow, linger, fill the disk.

Effects are the rows that a fresh connection sees.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import httpx
import psycopg
import pytest
from quart import Quart
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from semel import Policy
from semel.asgi import IdempotencyMiddleware
from semel.transaction import AsyncTransactionStore
from transaction.modes import effects
from transaction.test_transaction_requests import POOLS, SECRET, each_pool, on_postgres, open_transactions, url_for

POLICY = Policy(guarantee="exactly-once", required=True, result_max=1000)
App = Callable[[Any, Any, Any], Awaitable[None]]
Handler = Callable[["Shop", Request], Awaitable[Response]]
SLOW_COMMIT = """
CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER linger AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.name LIKE 'slow.%') EXECUTE FUNCTION linger()
"""


class Shop:
    """An application behind the middleware, and a client of it."""

    def __init__(self, store: AsyncTransactionStore[Any], write: Callable[[Any, str], Any]) -> None:
        self.store = store
        self._write = write
        self.front: Any = None
        self.client: Any = None
        self.runs = 0
        self.go_on = asyncio.Event()

    async def execute(self, sql: str) -> None:
        await self._write(self.store.current(), sql)

    async def write(self, name: str) -> None:
        self.runs += 1
        await self.execute(f"INSERT INTO effects (name) VALUES ('{name}')")

    def serve(self, app: App) -> Shop:
        self.front = IdempotencyMiddleware(
            app, store=self.store, policy=POLICY, secret=SECRET, identify=lambda _: "shop"
        )
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.front, raise_app_exceptions=False), base_url="http://shop"
        )
        return self

    def handle(self, handler: Handler) -> Shop:
        async def pay(request: Request) -> Response:
            return await handler(self, request)

        return self.serve(Starlette(routes=[Route("/pay", pay, methods=["POST"])]))

    async def call(self, name: str, **headers: str) -> httpx.Response:
        async with asyncio.timeout(30):
            answer: httpx.Response = await self.client.post("/pay", headers={"Idempotency-Key": name, **headers})
        return answer


@asynccontextmanager
async def shop(kind: str, urls: Mapping[str, str], size: int = 2, **options: Any) -> AsyncIterator[Shop]:
    async with POOLS[kind](url_for(kind, urls), size) as (begin, write):
        made = Shop(AsyncTransactionStore(begin, **options), write)
        yield made
        await made.front.host.tasks.drain()
        assert not made.store._twins.get().keys._claims, "a key is still open"
    if kind != "sqlite":
        assert open_transactions(urls["postgres"]) == 0


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.005)


# The end of a transaction is not the application's to cut off


@each_pool
@pytest.mark.parametrize("size", [1, 2])
def test_a_streamed_answer_of_an_accepted_request_is_committed(kind: str, size: int, urls: Mapping[str, str]) -> None:
    """A server says `http.disconnect` after the 202, and Starlette then cancels the task that streams the answer."""
    url, name = url_for(kind, urls), f"streamed.{kind}.{size}"

    async def pay(self: Shop, request: Request) -> Response:
        await self.write(name)
        await self.go_on.wait()

        async def parts() -> AsyncIterator[str]:
            yield "paid"

        return StreamingResponse(parts(), 201)

    async def main() -> None:
        async with shop(kind, urls, size) as service:
            accepted = await service.handle(pay).call(name, Prefer="respond-async")
            assert accepted.status_code == 202
            service.go_on.set()
            await service.front.host.tasks.drain()
            told = await service.client.get(accepted.headers["location"])
            assert (told.status_code, told.text) == (201, "paid")

    asyncio.run(main())
    assert effects(url, name) == 1


@each_pool
def test_an_accepted_request_of_quart_is_committed(kind: str, urls: Mapping[str, str]) -> None:
    """Quart cancels its handler when the server says `http.disconnect`."""
    url, name = url_for(kind, urls), f"quart.{kind}"

    async def main() -> None:
        async with shop(kind, urls, 1) as service:
            app = Quart("shop")

            @app.post("/pay")
            async def pay() -> Any:
                await service.write(name)
                await service.go_on.wait()
                return "paid", 201

            accepted = await service.serve(app.asgi_app).call(name, Prefer="respond-async")
            assert accepted.status_code == 202
            service.go_on.set()
            await service.front.host.tasks.drain()
            told = await service.client.get(accepted.headers["location"])
            assert (told.status_code, told.text) == (201, "paid")

    asyncio.run(main())
    assert effects(url, name) == 1


@on_postgres
@pytest.mark.parametrize("size", [1, 2])
def test_a_timeout_around_the_handler_does_not_reach_the_commit(kind: str, size: int, urls: Mapping[str, str]) -> None:
    url, name = urls["postgres"], f"slow.{kind}.{size}"
    with psycopg.connect(url) as connection:
        connection.execute("DROP TRIGGER IF EXISTS linger ON effects; DROP FUNCTION IF EXISTS linger")
        connection.execute(SLOW_COMMIT.encode())

    async def main() -> None:
        async with shop(kind, urls, size) as service:

            async def app(scope: Any, receive: Any, send: Any) -> None:
                try:
                    async with asyncio.timeout(0.1):
                        await service.write(name)
                        await PlainTextResponse("paid", 201)(scope, receive, send)
                except TimeoutError:
                    await PlainTextResponse("late", 504)(scope, receive, send)

            first = await service.serve(app).call(name)
            assert (first.status_code, first.text) == (201, "paid")
            assert (await service.call(name)).headers["idempotent-replayed"] == "true"

    asyncio.run(main())
    assert effects(url, name) == 1


def test_a_transaction_ends_in_the_task_that_began_it(urls: Mapping[str, str]) -> None:
    """What opens a transaction may use what belongs to one task: a context variable, a timeout, a task group."""
    name, variable = "same-task", ContextVar("variable", default="")
    tasks: list[Any] = []

    async def pay(self: Shop, request: Request) -> Response:
        await self.write(name)

        async def parts() -> AsyncIterator[str]:
            yield f"paid {variable.get()}"

        return StreamingResponse(parts(), 201)

    async def main() -> None:
        async with POOLS["asyncpg"](urls["postgres"], 1) as (begin, write):

            @asynccontextmanager
            async def begin_here() -> AsyncIterator[Any]:
                token = variable.set("tenant")
                async with begin() as connection, asyncio.timeout(30):
                    tasks.append(asyncio.current_task())
                    yield connection
                tasks.append(asyncio.current_task())
                variable.reset(token)

            service = Shop(AsyncTransactionStore(begin_here), write).handle(pay)
            answer = await service.call(name)
            assert (answer.status_code, answer.text) == (201, "paid tenant")

    asyncio.run(main())
    assert (len(tasks), len(set(tasks))) == (2, 1)
    assert effects(urls["postgres"], name) == 1


# Every request is answered, and in time


@on_postgres
def test_a_repeat_is_answered_while_background_tasks_run(kind: str, urls: Mapping[str, str]) -> None:
    name = f"background.{kind}"

    async def pay(self: Shop, request: Request) -> Response:
        await self.write(name)
        return PlainTextResponse("paid", 201, background=BackgroundTask(self.go_on.wait))

    async def main() -> None:
        async with shop(kind, urls, 1, wait=0.05) as service:
            service.handle(pay)
            first = asyncio.create_task(service.call(name))
            await until(lambda: effects(urls["postgres"], name) == 1)
            again = await service.call(name)
            assert (again.status_code, again.text) == (201, "paid")
            service.go_on.set()
            assert (await first).status_code == 201

    asyncio.run(main())
    assert effects(urls["postgres"], name) == 1


@on_postgres
def test_a_failure_is_answered_while_background_tasks_run(kind: str, urls: Mapping[str, str]) -> None:
    """Its connection is free meanwhile, too."""
    name = f"failed.{kind}"

    async def pay(self: Shop, request: Request) -> Response:
        await self.write(name)
        return PlainTextResponse("sorry", 500, background=BackgroundTask(self.go_on.wait))

    async def main() -> None:
        async with shop(kind, urls, 1, wait=0.05) as service:
            service.handle(pay)
            first = asyncio.create_task(service.call(name))
            await until(lambda: service.runs == 1)
            started = time.monotonic()
            again = await service.call(name)
            while again.status_code == 409 and time.monotonic() - started < 3:
                again = await service.call(name)
            assert (again.status_code, again.text) == (500, "sorry")
            service.go_on.set()
            assert (await first).status_code == 500

    asyncio.run(main())
    assert effects(urls["postgres"], name) == 0


@on_postgres
@pytest.mark.parametrize("then", ["returns", "answers"])
def test_an_application_that_swallows_what_send_raises_is_answered(
    kind: str, then: str, urls: Mapping[str, str]
) -> None:
    name = f"swallowed.{kind}.{then}"

    async def main() -> None:
        async with shop(kind, urls, 1) as service:

            async def app(scope: Any, receive: Any, send: Any) -> None:
                await service.write(name)
                try:
                    await PlainTextResponse("paid", 201, {"Semel-Directive": "wrong"})(scope, receive, send)
                except ValueError:
                    if then == "answers":
                        await PlainTextResponse("sorry", 500)(scope, receive, send)

            first = await service.serve(app).call(name)
            assert first.status_code == 500
            assert first.json()["type"].endswith("#internal-error")
            assert (await service.call(name)).content == first.content

    asyncio.run(main())
    assert effects(urls["postgres"], name) == 0


def test_a_full_disk_keeps_neither_connection_nor_key(urls: Mapping[str, str]) -> None:
    """The file that holds a long answer cannot be written: the answer is a failure, and its transaction has ended."""
    name, (before, most) = "disk", resource.getrlimit(resource.RLIMIT_FSIZE)

    async def pay(self: Shop, request: Request) -> Response:
        await self.write(name)

        async def parts() -> AsyncIterator[bytes]:
            for _ in range(300):
                yield b"x" * 10_001

        return StreamingResponse(parts(), 201)

    async def main() -> None:
        async with shop("asyncpg", urls, 1) as service:
            service.handle(pay)
            resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, most))
            try:
                assert (await service.call(name)).status_code >= 500
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
            assert (await service.call(f"{name}.other")).status_code == 201

    asyncio.run(main())
    assert effects(urls["postgres"], name) == 1  # of the second request


# Nothing but its own transaction


@on_postgres
def test_what_goes_on_after_a_failure_writes_nothing(kind: str, urls: Mapping[str, str]) -> None:
    """A failure is remembered in a second transaction, which is not the handler's: `asyncio.gather` leaves children."""
    name = f"child.{kind}"
    wrote: list[str] = []
    children: list[asyncio.Task[None]] = []

    async def main() -> None:
        async with shop(kind, urls, 2) as service:
            begin = service.store._begin

            @asynccontextmanager
            async def begin_slowly() -> AsyncIterator[Any]:
                async with begin() as connection:
                    yield connection
                    await asyncio.sleep(0.02)

            service.store._begin = begin_slowly

            async def child() -> None:
                first = service.store.current()
                while True:
                    await asyncio.sleep(0)
                    try:
                        current = service.store.current()
                    except Exception:
                        continue
                    if current is not first:
                        wrote.append("found another connection")
                        return

            async def pay(self: Shop, request: Request) -> Response:
                await self.write(name)
                children.append(asyncio.create_task(child()))
                await asyncio.sleep(0.01)
                return PlainTextResponse("no", 402)

            assert (await service.handle(pay).call(name)).status_code == 402
            await asyncio.sleep(0.05)
            children[0].cancel()

    asyncio.run(main())
    assert wrote == []


@on_postgres
def test_twins_of_a_request_elsewhere_rest_between_their_looks(kind: str, urls: Mapping[str, str]) -> None:
    """They do not wake each other: five twins look at the database a few times a second each."""
    name = f"restless.{kind}"
    begun = 0

    async def pay(self: Shop, request: Request) -> Response:
        await self.write(name)
        await self.go_on.wait()
        return PlainTextResponse("paid", 201)

    async def main() -> None:
        nonlocal begun
        async with shop(kind, urls, 2) as here, shop(kind, urls, 2) as elsewhere:
            begin = elsewhere.store._begin

            @asynccontextmanager
            async def counted() -> AsyncIterator[Any]:
                nonlocal begun
                begun += 1
                async with begin() as connection:
                    yield connection

            elsewhere.store._begin = counted
            elsewhere.handle(pay)
            first = asyncio.create_task(here.handle(pay).call(name))
            await until(lambda: here.runs == 1)
            twins = [asyncio.create_task(elsewhere.call(name)) for _ in range(5)]
            await asyncio.sleep(1)
            looks = begun
            here.go_on.set()
            assert {(await each).text for each in (first, *twins)} == {"paid"}
            assert looks <= 5 * 10, looks

    asyncio.run(main())
    assert effects(urls["postgres"], name) == 1


# What is said


@on_postgres
def test_the_answer_of_another_attempt_has_its_own_body(kind: str, urls: Mapping[str, str]) -> None:
    """A long failure is superseded by a twin's short success, before it was remembered."""
    name = f"superseded.{kind}"

    async def main() -> None:
        async with shop(kind, urls, 2) as here, shop(kind, urls, 2) as elsewhere:

            async def fail(self: Shop, request: Request) -> Response:
                begin = self.store._begin

                @asynccontextmanager
                async def after_the_twin() -> AsyncIterator[Any]:
                    self.store._begin = begin
                    assert (await elsewhere.call(name)).status_code == 204
                    async with begin() as connection:
                        yield connection

                self.store._begin = after_the_twin
                return PlainTextResponse("mine " * 1000, 422)

            async def pay(self: Shop, request: Request) -> Response:
                await self.write(name)
                return Response(status_code=204)

            elsewhere.handle(pay)
            answer = await here.handle(fail).call(name)
            assert (answer.status_code, answer.content) == (204, b"")

    asyncio.run(main())
    assert effects(urls["postgres"], name) == 1


def test_a_long_failure_is_not_said_to_be_carried_out(urls: Mapping[str, str]) -> None:
    name = "long-failure"

    async def pay(self: Shop, request: Request) -> Response:
        await self.write(name)
        return PlainTextResponse("no " * 1000, 422)

    async def main() -> None:
        async with shop("asyncpg", urls, 1) as service:
            assert (await service.handle(pay).call(name)).status_code == 422
            again = await service.call(name)
            assert "carried out" not in again.text

    asyncio.run(main())
    assert effects(urls["postgres"], name) == 0


@on_postgres
def test_a_handler_that_commits_makes_its_outcome_unknown(kind: str, urls: Mapping[str, str]) -> None:
    name = f"commits.{kind}"

    async def pay(self: Shop, request: Request) -> Response:
        await self.write(name)
        await self.execute("COMMIT")
        return PlainTextResponse("paid", 201)

    async def main() -> None:
        async with shop(kind, urls, 1) as service:
            first = await service.handle(pay).call(name)
            again = await service.call(name)
            assert again.json()["type"].endswith("#outcome-unknown")
            assert first.json()["type"].endswith(("#outcome-unknown", "#interrupted"))

    asyncio.run(main())
