"""`run`: final errors are remembered although their writes are rolled back, and a lost COMMIT is not a guess."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
import pytest

import semel
from semel.testing.proxy import Fault, FaultProxy, ProxyExchange
from semel.transaction import RetryTransaction, arun, run, within
from transaction.modes import MODES, Mode, effects, psycopg_connection

each_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)


class Declined(Exception):
    """A final error."""


def call(mode: Mode, url: str, key: str, error: Exception | None) -> Any:
    def work(connection: Any) -> str:
        mode.write(connection, key)
        if error is not None:
            raise error
        return "done"

    async def awork(connection: Any) -> str:
        await mode.write(connection, key)
        if error is not None:
            raise error
        return "done"

    if mode.is_async:
        return asyncio.run(arun(mode.opener(url), key, awork, scope="operation", final_errors=[Declined]))
    return run(mode.opener(url), key, work, scope="operation", final_errors=[Declined])


@each_mode
def test_a_final_error_is_remembered_and_its_writes_are_not(mode: Mode, urls: Mapping[str, str]) -> None:
    url, key = urls[mode.database], f"{mode.name}.declined"
    with pytest.raises(Declined, match="no money"):
        call(mode, url, key, Declined("no money"))
    with pytest.raises(Declined, match="no money"):
        call(mode, url, key, None)
    assert effects(url, key) == 0


@pytest.mark.parametrize("mode", [MODES[0], MODES[3], MODES[8]], ids=lambda mode: mode.name)
def test_any_other_error_leaves_nothing(mode: Mode, urls: Mapping[str, str]) -> None:
    url, key = urls[mode.database], f"{mode.name}.raised"
    with pytest.raises(ArithmeticError):
        call(mode, url, key, ArithmeticError())
    assert call(mode, url, key, None) == "done"
    assert effects(url, key) == 1


def test_a_twin_that_runs_before_the_error_is_stored_is_the_answer(urls: Mapping[str, str]) -> None:
    """The race between the rollback and the second transaction: there is one answer, and both get it."""
    url = urls["postgres"]
    plain = MODES[0]
    begun: list[int] = []

    def begin() -> Any:
        begun.append(1)
        if len(begun) == 2:  # the second transaction of the one that failed
            assert call(plain, url, "raced", None) == "done"
        return plain.begin(url, "")

    def work(connection: Any) -> str:
        raise Declined

    assert run(begin, "raced", work, scope="operation", final_errors=[Declined]) == "done"
    assert effects(url, "raced") == 1


def test_a_transaction_that_was_given_up_runs_again_at_most_so_often(urls: Mapping[str, str]) -> None:
    tried: list[int] = []

    def work(connection: Any) -> None:
        tried.append(1)
        raise RetryTransaction("on purpose")

    with pytest.raises(RetryTransaction):
        run(MODES[0].opener(urls["postgres"]), "hopeless", work, scope="operation", tries_max=3)
    assert len(tried) == 3
    with pytest.raises(ValueError, match="tries_max"):
        run(MODES[0].opener(urls["postgres"]), "hopeless", work, scope="operation", tries_max=0)


def commits(exchange: ProxyExchange) -> bool:
    return b"COMMIT" in exchange.request


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER], ids=["not committed", "committed"])
def test_a_connection_lost_around_commit(fault: Fault, urls: Mapping[str, str]) -> None:
    """The driver's error is the same. The retry with the same key tells which it was."""
    url, key = urls["postgres"], f"lost.{fault.name}"
    ran: list[int] = []

    def work(connection: Any) -> str:
        ran.append(1)
        connection.execute("INSERT INTO effects (name) VALUES (%s)", [key])
        return "done"

    with FaultProxy(url) as proxy:
        lost = proxy.inject(fault, when=commits)
        with pytest.raises(psycopg.OperationalError):
            run(partial(psycopg_connection, proxy.url, ""), key, work, scope="operation")
        assert lost.hits == 1
        assert run(partial(psycopg_connection, proxy.url, ""), key, work, scope="operation") == "done"
    assert effects(url, key) == 1
    assert len(ran) == (2 if fault is Fault.CUT_BEFORE else 1)


def test_a_backend_that_is_terminated_during_commit(urls: Mapping[str, str]) -> None:
    url, key = urls["postgres"], "terminated"
    stopped = threading.Event()

    def work(connection: Any) -> str:
        connection.execute("INSERT INTO effects (name) VALUES (%s)", [key])
        return "done"

    with FaultProxy(url) as proxy:
        held = proxy.inject(Fault.HOLD_REQUEST, when=commits)

        def attempt() -> None:
            with suppress(psycopg.Error):
                run(partial(psycopg_connection, proxy.url, ""), key, work, scope="operation")
            stopped.set()

        thread = threading.Thread(target=attempt)
        thread.start()
        assert held.wait()
        with psycopg.connect(url, autocommit=True) as operator:
            operator.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND state = 'idle in transaction'"
            )
        proxy.let_go()
        assert stopped.wait(30)
        thread.join()
    with semel.open_store(url) as store:  # type: ignore[attr-defined]
        assert (store.get(semel.Key("", "operation", key)) is not None) == (effects(url, key) == 1)
    assert run(MODES[0].opener(url), key, work, scope="operation") == "done"
    assert effects(url, key) == 1


def test_fail_stores_an_error_with_the_writes_of_its_block(urls: Mapping[str, str]) -> None:
    url = urls["postgres"]
    with psycopg.connect(url) as connection:
        with within(connection).operation("failed", scope="operation", final_errors=[Declined]) as op:
            assert not op.replayed
            connection.execute("INSERT INTO effects (name) VALUES ('failed')")
            op.fail(Declined("kept"))
        connection.commit()
        with pytest.raises(Declined, match="kept"):
            within(connection).operation("failed", scope="operation", final_errors=[Declined]).__enter__()
    assert effects(url, "failed") == 1
