"""The Django app: migrations, the store on Django's connection under real requests, commands and checks."""

import sqlite3
import threading
import time
import unittest
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("django")
pytest.importorskip("rest_framework")

import django_site  # noqa: F401, I001
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.wsgi import WSGIHandler
from django.core.management import CommandError, call_command
from django.core.checks import run_checks
from django.db import connections, transaction
from django.test import TestCase, override_settings
from django.urls import clear_url_caches, path

from django_site import databases, urls, views
from django_site.calling import ByAsgi, ByWsgi
from django_site.views import effects
from semel import Key, Policy, Result, open_store
from semel.connections.django import atomic
from semel.django import idempotent
from semel.store import Filter
from semel.transaction import TransactionStore
from servers.postgres import Postgres, database_of


@pytest.fixture(scope="module")
def postgres_site(postgres_url: str) -> databases.Database:
    """Migrated once for all tests; each leaves it without records."""
    database = databases.postgres_at(postgres_url)
    with databases.added(database) as alias:
        call_command("migrate", "semel", database=alias, verbosity=0)
    return database


@pytest.fixture(params=["sqlite", "postgresql"])
def alias(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database with the tables that `manage.py migrate semel` makes."""
    if request.param == "sqlite":
        database = databases.sqlite_at(tmp_path / "site.db")
    else:
        database = dict(request.getfixturevalue("postgres_site"))  # a test changes its settings
    with databases.added(database) as alias:
        if request.param == "sqlite":
            call_command("migrate", "semel", database=alias, verbosity=0)
        yield alias
        with connections[alias].cursor() as cursor:
            cursor.execute("DROP TABLE IF EXISTS ledger")
            cursor.execute("DELETE FROM semel_records")
    effects.clear()


def fresh_postgres(request: pytest.FixtureRequest) -> str:
    server: Postgres = request.getfixturevalue("postgres_server")
    url = server.create_database(f"semel_{uuid4().hex[:12]}")
    request.addfinalizer(lambda: server.drop_database(database_of(url)))
    return url


@pytest.fixture(params=[ByWsgi, ByAsgi], ids=["wsgi", "asgi"])
def call(request: pytest.FixtureRequest, alias: str) -> Iterator[ByWsgi | ByAsgi]:
    effects.clear()
    views.entered.clear()
    views.go_on.clear()
    with override_settings(SEMEL=semel(alias)):
        call = request.param()
        yield call
        call.close()


def semel(alias: str, **more: Any) -> dict[str, Any]:
    return {"store": f"django://{alias}", "identify": lambda request: "tester", **more}


# Migrations


def test_django_s_migrations_make_the_store_s_sqlite_schema(tmp_path: Path) -> None:
    def schema(path: Path) -> list[tuple[str, str]]:
        with sqlite3.connect(path) as connection:
            tables = (
                "SELECT name, sql FROM sqlite_master WHERE tbl_name IN ('semel_records', 'semel_schema') ORDER BY name"
            )
            return [*connection.execute(tables), *connection.execute("SELECT * FROM semel_schema")]

    store = open_store(f"sqlite:///{tmp_path / 'own.db'}")
    store.get(Key("t", "s", "k"))
    with databases.added(databases.sqlite_at(tmp_path / "site.db")) as alias:
        call_command("migrate", "semel", database=alias, verbosity=0)
    assert schema(tmp_path / "site.db") == schema(tmp_path / "own.db")


def test_django_s_migrations_make_the_store_s_postgres_schema(request: pytest.FixtureRequest) -> None:
    import psycopg

    def schema(url: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(url) as connection:
            found = []
            for query in (
                """SELECT attrelid::regclass::text, attname, format_type(atttypid, atttypmod), attnotnull, attstorage,
                        collname
                    FROM pg_attribute LEFT JOIN pg_collation c ON c.oid = attcollation
                    WHERE attrelid IN ('semel_records'::regclass, 'semel_schema'::regclass) AND attnum > 0
                    ORDER BY 1, attnum""",
                "SELECT indexname, indexdef FROM pg_indexes WHERE tablename LIKE 'semel%' ORDER BY 1",
                "SELECT * FROM semel_schema",
            ):
                found += connection.execute(query).fetchall()
            return found

    own, ours = fresh_postgres(request), fresh_postgres(request)
    store: Any = open_store(own)
    store.migrate()
    with databases.added(databases.postgres_at(ours)) as alias:
        call_command("migrate", "semel", database=alias, verbosity=0)
    assert schema(ours) == schema(own)
    assert len(schema(ours)) > 15


def test_tables_that_the_store_made_itself_are_taken_over(tmp_path: Path) -> None:
    with databases.added(databases.sqlite_at(tmp_path / "site.db")) as alias:
        store: Any = open_store(f"django://{alias}")
        assert store.migrate() == [1, 2]
        call_command("migrate", "semel", database=alias, verbosity=0)
        assert store.migrate() == []


def test_sqlmigrate_shows_what_is_run(alias: str) -> None:
    shown = StringIO()
    call_command("sqlmigrate", "semel", "0001", database=alias, stdout=shown)
    assert "CREATE TABLE semel_records" in shown.getvalue()
    assert "INSERT INTO semel_schema VALUES (1" in shown.getvalue()


def test_there_are_no_changes_to_make_migrations_for() -> None:
    call_command("makemigrations", "semel", check=True, dry_run=True, verbosity=0)


# Requests


def test_a_request_is_protected_on_django_s_own_connection(call: ByWsgi, alias: str) -> None:
    for kind in ("sync", "async"):
        given = uuid4().hex
        first, again = (call(f"/{kind}/ok", idempotency_key=given) for _ in range(2))
        assert (first.status, again["Idempotent-Replayed"]) == (201, "true")
        assert again.body == first.body
    assert effects == ["ok", "ok"]
    store: Any = open_store(f"django://{alias}")
    assert store.counts().succeeded == 2


def test_many_at_once_have_one_effect(call: ByWsgi) -> None:
    given = uuid4().hex
    views.go_on.set()
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: call("/sync/slow", idempotency_key=given), range(24)))
    assert effects == ["slow"]
    assert {answer.status for answer in answers} <= {201, 409}
    assert call("/sync/slow", idempotency_key=given)["Idempotent-Replayed"] == "true"


def test_atomic_requests_roll_back_the_work_and_not_the_record(call: ByWsgi, alias: str) -> None:
    with transaction.atomic(alias), connections[alias].cursor() as cursor:
        cursor.execute("CREATE TABLE ledger (entry TEXT)")
    connections.settings[alias]["ATOMIC_REQUESTS"] = True
    given = uuid4().hex
    answers = [call(f"/book/{alias}", idempotency_key=given) for _ in range(2)]
    assert [answer.status for answer in answers] == [500, 500]
    assert answers[1]["Idempotent-Replayed"] == "true"
    assert effects == ["booked"]
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM ledger")
        assert cursor.fetchone() == (0,)


class Wrapping:
    """A middleware that opens a transaction around everything after it."""

    alias = ""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        with transaction.atomic(self.alias):
            return self.get_response(request)


def test_a_transaction_around_the_middleware_is_refused(alias: str, caplog: pytest.LogCaptureFixture) -> None:
    Wrapping.alias = alias
    effects.clear()
    middleware = [f"{__name__}.Wrapping", "semel.django.IdempotencyMiddleware"]
    with override_settings(SEMEL=semel(alias), MIDDLEWARE=middleware):
        answer = ByWsgi()("/sync/ok", idempotency_key=uuid4().hex)
    assert (answer.status, effects) == (503, [])
    assert "inside transaction.atomic" in caplog.text


def test_test_cases_may_use_the_store(tmp_path: Path) -> None:
    """A `TestCase` rolls everything back: Django's `durable` makes an exception for it, and so do we."""
    with databases.added(databases.sqlite_at(tmp_path / "site.db")) as alias:
        call_command("migrate", "semel", database=alias, verbosity=0)

        class Case(TestCase):
            databases = {alias}

            def test(self) -> None:
                for replayed in (None, "true"):
                    answer = self.client.post("/sync/ok", {}, headers={"Idempotency-Key": "k"})
                    assert answer.status_code == 201
                    assert answer.headers.get("Idempotent-Replayed") == replayed

        effects.clear()
        with override_settings(SEMEL=semel(alias)):
            result = unittest.TestResult()
            unittest.TestSuite([Case("test")]).run(result)
        assert result.wasSuccessful(), result.errors + result.failures
        assert effects == ["ok"]
        store: Any = open_store(f"django://{alias}")
        assert store.counts().succeeded == 0


def test_a_long_view_keeps_its_lease(call: ByWsgi, alias: str) -> None:
    """The lease is renewed from another thread, on a connection that is closed again."""
    policy = {"lease": 0.3}
    store: Any = open_store(f"django://{alias}")
    with override_settings(SEMEL=semel(alias, policy=policy)), ThreadPoolExecutor(1) as pool:
        call = type(call)()
        for kind in ("sync", "async"):
            given = uuid4().hex
            views.entered.clear()
            views.go_on.clear()
            first = pool.submit(call, f"/{kind}/slow", idempotency_key=given)
            assert views.entered.wait(10)
            [begun] = store.scan(Filter(name_prefix=given)).records
            until_s = time.monotonic() + 10
            while store.get(begun.key).lease_until_ms < begun.lease_until_ms + 2 * 100:  # two renewals later
                assert time.monotonic() < until_s, "nobody renewed the lease"
                threading.Event().wait(0.01)
            views.go_on.set()
            assert first.result(10).status == 201
        call.close()
    assert effects == ["slow", "slow"]


def test_the_app_must_be_installed_for_its_tables() -> None:
    apps = [app for app in settings.INSTALLED_APPS if app != "semel.django"]
    with (
        override_settings(INSTALLED_APPS=apps, SEMEL={"store": "django"}),
        pytest.raises(ImproperlyConfigured, match="INSTALLED_APPS"),
    ):
        WSGIHandler()


# Commands


def test_purge_deletes_what_is_past_retention_in_batches(alias: str) -> None:
    old = open_store(f"django://{alias}", clock=lambda: 1_000_000)
    for number in range(20):
        key = Key("t", "s", f"{number}")
        claimed: Any = old.claim(key, "f", owner="o", lease_ms=1000, retention_ms=1000, takeover=False)
        old.complete(claimed.lease, Result("x", b""), retention_ms=1000)
    new = open_store(f"django://{alias}")
    for number in range(5):
        new.claim(Key("t", "new", f"{number}"), "f", owner="o", lease_ms=1000, retention_ms=100_000, takeover=False)
    shown = StringIO()
    with override_settings(SEMEL=semel(alias)):
        call_command("semel_purge", batch=8, limit=10, stdout=shown)
        call_command("semel_purge", batch=8, stdout=shown)
        with pytest.raises(CommandError, match="--batch"):
            call_command("semel_purge", batch=0)
    assert shown.getvalue().splitlines() == ["purged 10 records", "purged 10 records"]


def test_check_shows_the_store(alias: str) -> None:
    shown = StringIO()
    with override_settings(SEMEL=semel(alias)):
        call_command("semel_check", stdout=shown)
    assert shown.getvalue().splitlines() == ["the store answers", "in progress 0, unknown 0, succeeded 0, failed 0"]


def test_check_says_that_the_tables_are_missing(tmp_path: Path) -> None:
    with (
        databases.added(databases.sqlite_at(tmp_path / "site.db")) as alias,
        override_settings(SEMEL=semel(alias)),
        pytest.raises(CommandError, match=r"manage\.py migrate semel"),
    ):
        call_command("semel_check")


def test_commands_of_a_project_with_exactly_once_are_told_where_the_records_are(alias: str) -> None:
    shown = StringIO()
    with override_settings(SEMEL=semel(alias) | {"store": TransactionStore(atomic)}):
        for command in ("semel_check", "semel_purge"):
            with pytest.raises(CommandError, match="--store django://default"):
                call_command(command)
            call_command(command, store=f"django://{alias}", stdout=shown)
    assert shown.getvalue().splitlines()[::2] == ["the store answers", "purged 0 records"]


# Checks


def messages() -> dict[str, str]:
    return {message.id: message.msg for message in run_checks() if message.id.startswith("semel")}


def test_a_good_configuration_has_nothing_to_say() -> None:
    with override_settings(SEMEL={"store": "memory://", "identify": lambda request: "me"}):
        assert messages() == {}


def test_exactly_once_is_a_good_configuration() -> None:
    policy = Policy(guarantee="exactly-once", required=True)
    given = {"store": TransactionStore(atomic), "identify": lambda request: "me", "policy": policy}
    with override_settings(SEMEL=given):
        assert messages() == {}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"SEMEL": {"store": "memory://"}}, {"semel.W002"}),
        ({"SEMEL": {"stor": "memory://"}}, {"semel.E001"}),
        ({"SEMEL": {"store": "redis"}}, {"semel.E001"}),
        ({"MIDDLEWARE": []}, {"semel.E002"}),
        (
            {"MIDDLEWARE": ["semel.django.IdempotencyMiddleware", "django.middleware.common.CommonMiddleware"]},
            {"semel.W001"},
        ),
        ({"DATA_UPLOAD_MAX_MEMORY_SIZE": 1000}, {"semel.W003"}),
        ({"SEMEL": {"store": "django://elsewhere", "identify": str}}, {"semel.E003"}),
    ],
)
def test_checks_find(changed: dict[str, Any], said: set[str]) -> None:
    with override_settings(**({"SEMEL": {"store": "memory://", "identify": str}} | changed)):
        assert set(messages()) == said


def test_checks_find_a_policy_on_a_view_that_cannot_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    view = idempotent(Policy(in_flight="accept"))(lambda request: None)  # which needs a secret
    monkeypatch.setattr(urls, "urlpatterns", [path("late", view)])
    clear_url_caches()
    try:
        with override_settings(SEMEL={"store": "memory://", "identify": str}):
            assert set(messages()) == {"semel.E004"}
    finally:
        clear_url_caches()
