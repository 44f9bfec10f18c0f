"""What the server may still carry out: processes whose connections were lost, and transactions that have not ended."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from semel import Key, StoreUnavailable, open_async_store, open_store
from semel.codecs.sealed import AsyncSealed, Sealed
from semel.core.effects import Doubts
from semel.runtime.drive import drive
from semel.store import AsyncDoubting, Doubting, Store
from semel.stores.postgres.doubts import doubts
from semel.stores.sql.lost import LOST_MAX, LostBackends
from semel.stores.sql.statements import Script
from semel.testing import BlockingStore

KEY = Key("doubts", "s", "key")
NONE: frozenset[str] = frozenset()
FACES = ("sync", "async")


@contextmanager
def opened(face: str, url: str, timeout_ms: int = 200) -> Iterator[Store]:
    with open_store(url) as store:  # type: ignore[attr-defined]
        store.migrate()
    place = f"{url}?timeout_ms={timeout_ms}"
    store = open_store(place) if face == "sync" else BlockingStore(open_async_store(place))
    yield store
    store.close()


def claim(store: Store) -> object:
    return store.claim(KEY, "1.same", owner="a", lease_ms=60_000, retention_ms=60_000, takeover=False)


@contextmanager
def uncommitted(url: str) -> Iterator[None]:
    """A transaction has the key and has not ended: every other claim of it waits, and nobody can see why."""
    columns = "digest, tenant, scope, name, fingerprint, state, owner, attempt, created_ms, lease_until_ms, expires_ms"
    with open_store(url) as store:  # type: ignore[attr-defined]
        claim(store)
    with psycopg.connect(url) as other:
        [row] = other.execute(f"SELECT {columns} FROM semel_records WHERE name = %s".encode(), [KEY.name]).fetchall()
        other.execute("DELETE FROM semel_records WHERE name = %s", [KEY.name])
        other.commit()
        marks = ", ".join(["%s"] * len(row))
        other.execute(f"INSERT INTO semel_records ({columns}) VALUES ({marks})".encode(), row)
        yield
        other.rollback()


def until_none(store: Doubting, before: frozenset[str]) -> None:
    deadline = time.monotonic() + 30
    while before := store.doubts(before):
        assert time.monotonic() < deadline, before
        time.sleep(0.01)


@pytest.mark.parametrize("face", FACES)
def test_a_claim_that_was_given_up_is_in_doubt_until_its_process_ends(postgres_url: str, face: str) -> None:
    with opened(face, postgres_url) as store:
        assert isinstance(store, Doubting)
        assert store.doubts(None) == NONE, "no connection was lost"
        with uncommitted(postgres_url):
            with ThreadPoolExecutor(3) as threads:
                errors = [asked.exception() for asked in [threads.submit(claim, store) for _ in range(3)]]
            assert all(isinstance(error, StoreUnavailable) for error in errors)
        until_none(store, store.doubts(None))
        assert store.doubts(None) == NONE, "what has ended is forgotten"


@pytest.mark.parametrize("face", FACES)
def test_behind_a_pooler_every_open_transaction_may_be_meant(postgres_url: str, pgbouncer_url: str, face: str) -> None:
    with opened(face, pgbouncer_url) as store:
        assert isinstance(store, Doubting)
        with uncommitted(postgres_url):
            with pytest.raises(StoreUnavailable):
                claim(store)
            before = store.doubts(None)
            assert before
            assert store.doubts(before), "one of them has not ended"
        until_none(store, before)


def test_a_sealed_store_has_the_doubts_of_the_store_within(postgres_url: str) -> None:
    keys = {"k": b"k" * 32}
    assert isinstance(Sealed(open_store(postgres_url), keys=keys), Doubting)
    assert isinstance(AsyncSealed(open_async_store(postgres_url), keys=keys), AsyncDoubting)


def test_who_asks_for_what_it_saw_before_is_told_of_nothing_else() -> None:
    lost = LostBackends()
    lost.add("1@9")
    lost.add("")
    script: Script[list[frozenset[str]]] = doubts("t", [Doubts(None), Doubts(frozenset({"2@9", "7/1"}))], lost)
    asked: list[tuple[object, ...]] = []

    def perform(statement: object) -> list[tuple[str]]:
        names, everything = statement.params  # type: ignore[attr-defined]
        asked.append((set(names), everything))
        return [("2@9",), ("8/1",)]

    assert drive(script, perform) == [frozenset({"2@9", "8/1"}), frozenset({"2@9"})]
    assert asked == [({"1@9", "2@9", "7/1"}, True)]
    assert lost.names() == NONE


def test_lost_processes_are_bounded() -> None:
    lost = LostBackends()
    for number in range(LOST_MAX + 5):
        lost.add(f"{number}@1")
    assert len(lost.names()) == LOST_MAX
    assert "0@1" not in lost.names()
