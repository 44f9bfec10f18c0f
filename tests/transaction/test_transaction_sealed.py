"""Sealed results inside of transactions: what the rows hold, and who reads what another way has written."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import psycopg
import pytest
from werkzeug.test import Client

import semel
from semel.codecs.sealed import AsyncSealed, Seal, Sealed
from semel.errors import KeyReused, RecordUnreadable, StoreMisconfigured
from semel.transaction import AsyncTransactionStore, TransactionStore, arun, run, within
from semel.wsgi import IdempotencyMiddleware
from transaction.modes import MODES, Mode, effects, is_mariadb, mariadb_rows, path_of
from transaction.test_transaction_blocks import operate

each_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
each_database = pytest.mark.parametrize("mode", [MODES[0], MODES[8]], ids=["postgres", "sqlite"])
KEYS = {"2026-11": b"k" * 32}
SEAL = Seal(KEYS)
SECRET = "the card number 4929"


class Declined(Exception):
    """Final."""


def row(url: str, name: str) -> tuple[str | int, bytes]:
    """Format and payload as the database holds them."""
    sql = "SELECT format, payload FROM semel_records WHERE name = "
    if url.startswith("sqlite"):
        lite = sqlite3.connect(path_of(url))
        [(format, payload)] = lite.execute(f"{sql}?", [name]).fetchall()
        lite.close()
        return format, payload
    if is_mariadb(url):
        [(format, payload)] = mariadb_rows(url, f"{sql}'{name}'")
        return format.decode(), payload
    with psycopg.connect(url) as connection:
        [(format, payload)] = connection.execute(f"{sql}%s".encode(), [name]).fetchall()
        return format, bytes(payload)


def is_sealed(url: str, name: str) -> bool:
    format, payload = row(url, name)
    return format in ("sealed.2", 5) and b"card" not in payload and b"4929" not in payload


@pytest.fixture
def url(mode: Mode, urls: Mapping[str, str]) -> str:
    return urls[mode.database]


@each_mode
def test_a_block_seals_its_result_and_opens_it_for_the_repeat(mode: Mode, url: str) -> None:
    key = f"{mode.name}.sealed"
    assert operate(mode, url, key, seal=SEAL, result=SECRET) == (SECRET, "ran")
    assert is_sealed(url, key)
    assert operate(mode, url, key, seal=SEAL) == (SECRET, "replayed")
    with pytest.raises(KeyReused):
        operate(mode, url, key, seal=SEAL, fingerprint="another")
    with pytest.raises(RecordUnreadable, match=r"sealed\.2"):
        operate(mode, url, key)
    assert effects(url, key) == 1


@each_mode
def test_an_ordinary_sealed_store_reads_what_a_block_wrote_and_the_other_way_round(mode: Mode, url: str) -> None:
    first, second = f"{mode.name}.block", f"{mode.name}.store"
    store = Sealed(semel.open_store(url), keys=KEYS)
    operate(mode, url, first, seal=store.seal, result=SECRET)
    with semel.operation(first, scope="operation", store=store) as op:
        assert (op.replayed, op.replayed and op.result) == (True, SECRET)
    with semel.operation(second, scope="operation", store=store) as op:
        assert not op.replayed
        op.result = SECRET
    assert is_sealed(url, second)
    assert operate(mode, url, second, seal=store.seal) == (SECRET, "replayed")
    assert effects(url, second) == 0
    store.close()


@each_mode
def test_run_seals_results_and_final_errors(mode: Mode, url: str) -> None:
    def call(key: str, *, decline: bool) -> Any:
        options: dict[str, Any] = {"seal": SEAL, "final_errors": [Declined]}

        def work(connection: Any) -> str:
            if decline:
                raise Declined(SECRET)
            mode.write(connection, key)
            return SECRET

        async def awork(connection: Any) -> str:
            if decline:
                raise Declined(SECRET)
            await mode.write(connection, key)
            return SECRET

        if mode.is_async:
            return asyncio.run(arun(mode.opener(url), key, awork, scope="operation", **options))
        return run(mode.opener(url), key, work, scope="operation", **options)

    done, declined = f"{mode.name}.run", f"{mode.name}.declined"
    assert [call(done, decline=False) for _ in range(2)] == [SECRET] * 2
    for _ in range(2):
        with pytest.raises(Declined, match=SECRET):
            call(declined, decline=True)
    assert is_sealed(url, done)
    assert is_sealed(url, declined)
    assert effects(url, done) == 1


@each_database
def test_a_plain_result_is_refused_unless_it_is_allowed(mode: Mode, url: str) -> None:
    key = f"{mode.name}.plain"
    operate(mode, url, key, result=SECRET)
    with pytest.raises(RecordUnreadable, match="allow_plain=True"):
        operate(mode, url, key, seal=SEAL)
    assert operate(mode, url, key, seal=Seal(KEYS, allow_plain=True)) == (SECRET, "replayed")


@each_database
def test_rotation_a_block_opens_with_old_keys_and_seals_with_the_first(mode: Mode, url: str) -> None:
    old, new = f"{mode.name}.old", f"{mode.name}.new"
    operate(mode, url, old, seal=SEAL, result=SECRET)
    both = Seal({"next": b"n" * 32, **KEYS})
    assert operate(mode, url, old, seal=both) == (SECRET, "replayed")
    operate(mode, url, new, seal=both, result=SECRET)
    assert row(url, new)[1].startswith(b"\4next")
    with pytest.raises(RecordUnreadable, match=r"'next'.*not among those that were given"):
        operate(mode, url, new, seal=SEAL)


def test_what_is_not_a_seal_is_refused_by_name(urls: Mapping[str, str]) -> None:
    with sqlite3.connect(path_of(urls["sqlite"])) as connection:
        store = Sealed(semel.open_store("memory://"), keys=KEYS)
        for wrong in (KEYS, store, b"k" * 32):
            with pytest.raises(TypeError, match=r"seal= takes a Seal.*not (dict|Sealed|bytes)"):
                within(connection, seal=wrong)  # type: ignore[call-overload]
    connection.close()


def test_a_store_with_transactions_of_its_own_is_not_wrapped() -> None:
    with pytest.raises(StoreMisconfigured, match=r"give it the seal, TransactionStore\(…, seal=Seal\(keys\)\)"):
        Sealed(TransactionStore(lambda: nullcontext(None)), keys=KEYS)  # type: ignore[arg-type]
    with pytest.raises(StoreMisconfigured, match=r"AsyncTransactionStore\(…, seal="):
        AsyncSealed(AsyncTransactionStore(lambda: nullcontext(None)), keys=KEYS)  # type: ignore[arg-type]


@each_database
def test_answers_of_requests_are_sealed(mode: Mode, url: str) -> None:
    """A second store with the same seal replays what the first has stored."""
    key = f"{mode.name}.request"

    def pay(environ: Any, start_response: Any) -> list[bytes]:
        mode.write(store.current(), key)
        start_response("201 Created", [])
        return [SECRET.encode()]

    for _ in range(2):
        store: TransactionStore[Any] = TransactionStore(mode.opener(url), seal=SEAL)
        app = IdempotencyMiddleware(
            pay, store=store, policy=semel.Policy(guarantee="exactly-once"), identify=lambda _: ""
        )
        answer = Client(app).post("/pay", headers={"Idempotency-Key": key})
        assert (answer.status_code, answer.text) == (201, SECRET)
        assert is_sealed(url, key)
    assert effects(url, key) == 1
