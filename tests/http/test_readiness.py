"""A store without tables is told when the server starts, not when the first keyed request is refused."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from asgi_calls import Wire, Work
from django.core.checks import run_checks
from django.core.management import call_command
from django.test import override_settings
from litestar import Litestar
from wsgi_calls import Work as WsgiWork
from wsgi_calls import call

import django_site  # noqa: F401
from django_site import databases
from django_site.calling import ByAsgi, ByWsgi
from semel import asgi, open_async_store, wsgi
from semel.errors import StoreMisconfigured
from semel.litestar import IdempotencyPlugin
from semel.runtime.readiness import async_trouble_with, trouble_with
from semel.stores.memory import AsyncMemoryStore, MemoryStore
from semel.transaction import AsyncTransactionStore, TransactionStore
from servers.postgres import Postgres, database_of

NO_TABLES = "there are no tables of semel"
UNREACHABLE = "postgresql://127.0.0.1:1/none?timeout_ms=500"
Told = Callable[[], list[logging.LogRecord]]


@pytest.fixture
def bare(postgres_server: Postgres, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database without any tables."""
    url = postgres_server.create_database(f"semel_bare_{abs(hash(request.node.nodeid)) % 10**12}")
    yield url
    postgres_server.drop_database(database_of(url))


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[Told]:
    """What is logged about the store."""
    with caplog.at_level(logging.WARNING, "semel"):
        yield lambda: [record for record in caplog.records if record.message.startswith("The store ")]


async def lifespan(app: Any, then: Callable[[], Any] | None = None) -> list[str]:
    """Start and stop an application, as a server does."""
    asked = iter(["lifespan.startup", "lifespan.shutdown"])
    said: list[str] = []

    async def receive() -> dict[str, Any]:
        return {"type": next(asked)}

    async def send(message: Any) -> None:
        said.append(message["type"])
        if message["type"] == "lifespan.startup.complete" and then is not None:
            await then()

    await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    return said


class Application(Work):
    """One that may do something when it starts."""

    def __init__(self, starting: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.starting = starting

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await super().__call__(scope, receive, send)
            return
        await receive()
        if self.starting is not None:
            await self.starting()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})


STARTED = ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def protected(app: Any, store: Any) -> Any:
    return asgi.IdempotencyMiddleware(app, store=store, identify=lambda scope: "me")


def test_asgi_says_at_start_up_what_to_run(bare: str, told: Told) -> None:
    async def before_any_request() -> None:
        [record] = told()
        assert record.levelname == "ERROR"
        assert NO_TABLES in record.message
        assert "run `semel migrate --store URL`" in record.message
        assert "every request with a key gets 503" in record.message

    said = asyncio.run(lifespan(protected(Application(), bare), before_any_request))
    assert said == STARTED, "the start-up does not fail"
    assert len(told()) == 1


def test_tables_that_the_application_creates_when_it_starts_are_there(bare: str, told: Told) -> None:
    async def migrate() -> None:
        store: Any = open_async_store(bare)
        await store.migrate()
        await store.close()

    assert asyncio.run(lifespan(protected(Application(migrate), bare))) == STARTED
    assert told() == []


def test_tables_of_a_newer_version_are_told(bare: str, told: Told) -> None:
    subprocess.run([sys.executable, "-m", "semel", "migrate", "--store", bare], check=True, capture_output=True)
    with psycopg.connect(bare) as connection:
        connection.execute("INSERT INTO semel_schema VALUES (99, 'of the future', 98)")
    asyncio.run(lifespan(protected(Application(), bare)))
    [record] = told()
    assert "needs a semel that knows version 98" in record.message
    assert "upgrade semel" in record.message


def test_a_store_that_is_away_is_a_warning_and_no_failure(told: Told) -> None:
    assert asyncio.run(lifespan(protected(Application(), UNREACHABLE))) == STARTED
    [record] = told()
    assert record.levelname == "WARNING"


def test_a_store_that_hangs_does_not_hold_the_start_up_for_long(
    told: Told, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("semel.asgi.middleware.START_S", 0.01)
    monkeypatch.setattr("semel.runtime.tasks.DRAIN_S", 0.01)

    class Hanging(AsyncMemoryStore):
        async def _call(self, call: Any) -> Any:
            await asyncio.Event().wait()

    began = time.monotonic()
    assert asyncio.run(lifespan(protected(Application(), Hanging()))) == STARTED
    assert time.monotonic() - began < 5


def test_a_look_that_fails_in_another_way_fails_no_start_up(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(AsyncMemoryStore):
        async def _call(self, call: Any) -> Any:
            raise RuntimeError("a bug of the store's")

    assert asyncio.run(lifespan(protected(Application(), Broken()))) == STARTED
    assert "the store could not be looked at" in caplog.text


def test_litestar_says_it_at_start_up(bare: str, told: Told) -> None:
    app = Litestar(plugins=[IdempotencyPlugin(store=bare, identify=lambda scope: "me")], logging_config=None)
    asyncio.run(lifespan(app))
    [record] = told()
    assert NO_TABLES in record.message


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until, "nothing was logged"
        time.sleep(0.01)


def test_wsgi_says_it_with_the_first_request_which_needs_no_key(bare: str, told: Told) -> None:
    app = wsgi.IdempotencyMiddleware(work := WsgiWork(), store=bare, identify=lambda environ: "me")
    assert told() == [], "nothing connects while modules are imported"
    assert call(app, key=None, method="GET", validate=False).status == 200
    wait_for(told)
    assert NO_TABLES in told()[0].message
    assert call(app, key=None, method="GET", validate=False).status == 200
    assert work.effects == 2
    assert len(told()) == 1
    app.close()


def test_a_request_with_a_key_is_refused_as_before(bare: str) -> None:
    front = protected(work := Application(), bare)
    wire = Wire()

    async def asked() -> None:
        await front(wire.scope, wire.receive, wire.send)
        await front.close()

    asyncio.run(asked())
    assert wire.status == 503
    assert work.effects == 0


def test_transactions_are_looked_at_and_ended(bare: str) -> None:
    ended: list[str] = []

    @contextmanager
    def begin() -> Iterator[Any]:
        with psycopg.connect(bare) as connection:
            try:
                yield connection
            finally:
                ended.append("sync")

    @asynccontextmanager
    async def abegin() -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(bare) as connection:
            try:
                yield connection
            finally:
                ended.append("async")

    assert isinstance(trouble_with(TransactionStore(begin)), StoreMisconfigured)
    assert isinstance(asyncio.run(async_trouble_with(AsyncTransactionStore(abegin))), StoreMisconfigured)
    assert ended == ["sync", "async"]


def test_a_store_that_can_be_used_is_no_news(told: Told) -> None:
    assert trouble_with(MemoryStore()) is None
    assert asyncio.run(lifespan(protected(Application(), "memory://"))) == STARTED
    assert told() == []


@pytest.mark.parametrize("served", [ByWsgi, ByAsgi])
def test_django_says_it_with_the_first_request(served: Callable[[], Any], bare: str, told: Told) -> None:
    semel = {"store": bare, "identify": lambda request: "me"}
    with override_settings(SEMEL=semel, MIDDLEWARE=["semel.django.IdempotencyMiddleware"]):
        calls = served()
        assert told() == []
        calls("/count", method="GET")
        wait_for(told)
        calls.close()
    assert NO_TABLES in told()[0].message


def test_djangos_database_checks_say_what_to_run(bare: str, tmp_path: Path) -> None:
    def found(**options: Any) -> list[str]:
        return [message.msg for message in run_checks(**options) if message.id == "semel.W004"]

    with override_settings(SEMEL={"store": bare, "identify": lambda request: "me"}):
        assert found() == [], "nothing connects unless databases are asked for"
        [said] = found(databases=["default"])
        assert NO_TABLES in said
        assert "semel migrate" in said
    with (
        databases.added(databases.sqlite_at(tmp_path / "site.db")) as alias,
        override_settings(SEMEL={"store": f"django://{alias}", "identify": lambda request: "me"}),
    ):
        assert found(databases=["default"]) == [], "another database is asked for"
        [said] = found(databases=[alias])
        assert "run manage.py migrate semel" in said
        call_command("migrate", "semel", database=alias, verbosity=0)
        assert found(databases=[alias]) == []


def test_doctor_says_it(bare: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "semel", "doctor", "--store", bare], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert NO_TABLES in done.stdout
    assert "run semel migrate once" in done.stdout
