"""No connection to the database outlives what it was opened for, without the help of the garbage collector."""

import asyncio
import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from uuid import uuid4

import psycopg
import pytest

pytest.importorskip("django")
pytest.importorskip("rest_framework")

import django_site  # noqa: F401, I001
from django.core.management import call_command
from django.db import connections
from django.test import override_settings

from django_site import databases, views
from django_site.calling import Answer, ByAsgi, ByWsgi
from django_site.views import effects
from semel import Key, open_async_store
from semel.core.records import Lease
from servers.postgres import Postgres, database_of
from waiting import until

LEASE_S = 0.15
UNTIL = "SELECT lease_until_ms FROM semel_records"
OPEN = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


class Site:
    """A database of its own, and how many connections to it are open."""

    def __init__(self, alias: str, url: str) -> None:
        self.alias = alias
        self._watch = psycopg.connect(url, autocommit=True)

    def ask(self, sql: str) -> list[tuple[int]]:
        return self._watch.execute(sql.encode()).fetchall()

    def open(self) -> int:
        return self.ask(OPEN)[0][0]

    def settings(self) -> override_settings:
        given = {
            "store": f"django://{self.alias}",
            "identify": lambda request: "tester",
            "policy": {"lease": LEASE_S, "required": True},
            "secret": b"a secret of the tests" * 32,
        }
        return override_settings(SEMEL=given)

    def close(self) -> None:
        self._watch.close()


@pytest.fixture
def site(postgres_server: Postgres) -> Iterator[Site]:
    url = postgres_server.create_database(f"semel_{uuid4().hex[:12]}")
    with databases.added(databases.postgres_at(url)) as alias:
        call_command("migrate", "semel", database=alias, verbosity=0)
        connections[alias].close()
        site = Site(alias, url)
        gc.collect()
        gc.disable()
        try:
            with site.settings():
                yield site
        finally:
            gc.enable()
            site.close()
    postgres_server.drop_database(database_of(url))


@pytest.fixture(autouse=True)
def nothing_yet() -> None:
    effects.clear()
    views.entered.clear()
    views.go_on.clear()


@pytest.mark.parametrize("way", [ByWsgi, ByAsgi], ids=["wsgi", "asgi"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_renewals_leave_no_connection(site: Site, way: type[ByWsgi] | type[ByAsgi], kind: str) -> None:
    call = way()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(call, f"/{kind}/slow", idempotency_key=uuid4().hex)
        assert views.entered.wait(20)
        [(begun,)] = site.ask(UNTIL)
        until(lambda: site.ask(UNTIL)[0][0] >= begun + LEASE_S * 1000)  # renewed more than once
        views.go_on.set()
        answer: Answer = first.result(20)
    assert answer.status == 201
    connections[site.alias].close()
    until(lambda: site.open() == 0)
    call.close()


@pytest.mark.parametrize(
    ("kind", "leaves"), [("sync", True), ("async", True), ("async", False)], ids=["left sync", "left", "accepted"]
)
def test_work_that_outlives_its_request_leaves_no_connection(site: Site, kind: str, leaves: bool) -> None:
    call = ByAsgi()

    async def ask(given: str) -> None:
        if leaves:
            asking = call.communicator(f"/{kind}/slow", idempotency_key=given)
            await asking.send_input({"type": "http.request", "body": b"{}", "more_body": False})
            await asyncio.to_thread(views.entered.wait, 20)
            await asking.send_input({"type": "http.disconnect"})
            await asyncio.sleep(0.03)
            views.go_on.set()
            await asking.wait(20)
        else:
            answer = await call.call(f"/{kind}/slow", idempotency_key=given, prefer="respond-async, wait=0")
            assert answer.status == 202
            await asyncio.to_thread(views.entered.wait, 20)
            views.go_on.set()

    def is_done(given: str) -> bool:
        return call(f"/{kind}/slow", idempotency_key=given).status == 201

    for number in range(1, 4):
        given = uuid4().hex
        views.entered.clear()
        views.go_on.clear()
        call.loop.run(ask(given))
        until(partial(is_done, given))
        assert len(effects) == number
    until(lambda: site.open() == 0)
    call.close()


def test_a_store_outside_of_requests_keeps_the_one_connection_of_its_thread(site: Site) -> None:
    async def work() -> None:
        store = open_async_store(f"django://{site.alias}")
        for number in range(5):
            key = Key("t", "s", f"{number}")
            claimed = await store.claim(key, "f", owner="o", lease_ms=60_000, retention_ms=60_000, takeover=False)
            assert await store.renew(Lease(key, "o", 1, 0), lease_ms=60_000) is not None, claimed
        await store.close()

    for _ in range(3):
        asyncio.run(work())
    until(lambda: site.open() <= 1)  # the server takes a moment to see that one was closed
    databases.close_everywhere(site.alias)
    until(lambda: site.open() == 0)
