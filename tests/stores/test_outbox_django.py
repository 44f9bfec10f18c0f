"""The outbox on Django's own connections, against the model, on SQLite, PostgreSQL and MariaDB."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("django")
pytest.importorskip("rest_framework")

from django.db import transaction
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import django_site  # noqa: F401
from django_site import databases
from semel import StoreMisconfigured
from semel.core.outbox import CountMessages
from semel.store import AsyncOutboxed, Outboxed
from semel.stores.django.aio import AsyncDjangoStore
from semel.stores.django.store import DjangoStore
from semel.testing.clock import ManualClock
from stores.outboxes import (
    Ask,
    MariadbPlace,
    Place,
    SqlitePlace,
    message,
    names,
    open_asking,
    place_of,
    publish_all,
    take,
)
from stores.test_outbox import History

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(request.param, request, tmp_path)


@pytest.fixture
def alias(place: Place) -> Iterator[str]:
    name = databases.new_alias()
    match place:
        case SqlitePlace():
            database = databases.sqlite_at(place.path)
        case MariadbPlace():
            database = databases.mariadb_at(place.url)
        case _:
            database = databases.postgres_at(place.url)
    databases.add(name, database)
    yield name
    databases.close_everywhere(name)


def test_every_history_reads_as_the_model_s(place: Place, alias: str) -> None:
    clock = ManualClock(1_000_000)
    store = DjangoStore(alias, clock=clock)
    assert isinstance(store, Outboxed)

    class HistoryHere(History):
        def __init__(self) -> None:
            super().__init__(place, store.outbox, clock)

    run_state_machine_as_test(
        HistoryHere,
        settings=settings(
            max_examples=10,
            stateful_step_count=30,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_its_messages_are_those_of_the_store_with_a_connection_of_its_own(place: Place, alias: str) -> None:
    place.add(message("m1"), message("m2"))
    own, close = open_asking(place.url)
    ask: Ask = DjangoStore(alias).outbox
    assert names(take(ask, "django", 1)) == ["m1"]
    taken = take(own, "own")
    assert names(taken) == ["m2"]
    assert publish_all(ask, "own", taken) == 1
    close()


def test_inside_of_atomic_every_call_is_refused(alias: str) -> None:
    with transaction.atomic(using=alias), pytest.raises(StoreMisconfigured, match=r"inside transaction\.atomic"):
        DjangoStore(alias).outbox(CountMessages())


def test_the_async_face(place: Place, alias: str) -> None:
    place.add(message("m1"))
    store = AsyncDjangoStore(alias)
    assert isinstance(store, AsyncOutboxed)

    async def ask() -> int:
        await store.wait_for_messages(50)
        return (await store.outbox(CountMessages())).waiting

    assert asyncio.run(ask()) == 1
