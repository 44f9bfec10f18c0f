"""`within(…).receive(…)` in every mode: a message is handled once for each handler, in one transaction."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Mapping
from typing import Any

import psycopg
import pytest

import semel
from semel.codecs.sealed import Seal
from semel.errors import KeyReused, Misuse
from semel.transaction import within
from transaction.modes import DJANGO, MODES, Mode, effects, path_of
from transaction.outbox_rows import ids, letters
from transaction.stage import Stage
from transaction.test_publish import CASES, is_snapshot

Urls = Mapping[str, str]
each_mode = pytest.mark.parametrize("mode", [*MODES, *DJANGO], ids=lambda mode: mode.name)
each_case = pytest.mark.parametrize(
    ("mode", "level"), CASES, ids=lambda part: part if isinstance(part, str) else part.name
)
DAY_MS = 24 * 3600 * 1000


@each_mode
def test_each_handler_gets_a_message_once(mode: Mode, urls: Urls, stage: Stage) -> None:
    url, key = urls[mode.database], f"{mode.name}.once"
    for handler in ("ledger", "mailer"):
        told = [stage.play("receive", mode, "", key, handler=handler) for _ in range(3)]
        assert told == ["ran", "duplicate", "duplicate"]
    assert [effects(url, f"{handler}/{key}") for handler in ("ledger", "mailer")] == [1, 1]
    with semel.open_store(url) as store:  # type: ignore[attr-defined]
        record = store.get(semel.Key("", "ledger", key))
    assert (record.state.value, record.attempt) == ("succeeded", 1)
    assert record.expires_ms - record.completed_ms == 7 * DAY_MS


@each_mode
def test_a_rollback_lets_the_next_delivery_run(mode: Mode, urls: Urls, stage: Stage) -> None:
    url, key = urls[mode.database], f"{mode.name}.rollback"
    assert stage.play("receive", mode, "", key, handler="h", end="raise") == "ArithmeticError: on purpose"
    assert effects(url, f"h/{key}") == 0
    assert [stage.play("receive", mode, "", key, handler="h") for _ in range(2)] == ["ran", "duplicate"]
    assert effects(url, f"h/{key}") == 1


@each_mode
def test_who_does_not_look_commits_nothing(mode: Mode, urls: Urls, stage: Stage) -> None:
    url, key = urls[mode.database], f"{mode.name}.look"
    for _ in range(2):
        told = stage.play("receive", mode, "", key, handler="h", look=False)
        assert told.startswith("Misuse: the block was left without looking at message.duplicate")
    assert effects(url, f"h/{key}") == 0


@each_mode
def test_another_message_under_the_same_id_is_refused(mode: Mode, urls: Urls, stage: Stage) -> None:
    url, key = urls[mode.database], f"{mode.name}.fingerprint"
    told = [stage.play("receive", mode, "", key, handler="h", fingerprint=each) for each in ("a", "a", "b")]
    assert told[:2] == ["ran", "duplicate"]
    assert told[2].startswith("KeyReused: ")
    assert effects(url, f"h/{key}") == 1


@each_case
def test_a_second_delivery_waits_for_the_first(mode: Mode, level: str, urls: Urls, stage: Stage) -> None:
    url, key = urls[mode.database], f"{mode.name}.{level}.waits".replace(" ", "-")
    first, second = stage.play("receive_twice", mode, level, key)
    assert first == "1: ran"
    if is_snapshot(mode, level) and second != "2: duplicate":
        assert second.startswith("RetryTransaction: ")
    else:
        assert second == "2: duplicate"
    assert (effects(url, key), len(ids(url, key))) == (1, 1)


@each_case
def test_the_second_delivery_runs_when_the_first_rolls_back(mode: Mode, level: str, urls: Urls, stage: Stage) -> None:
    """It publishes the message that the first one would have published, under the same id."""
    url, key = urls[mode.database], f"{mode.name}.{level}.second-runs".replace(" ", "-")
    assert stage.play("receive_twice", mode, level, key, end="raise") == ["ArithmeticError: on purpose", "2: ran"]
    assert (effects(url, key), len(ids(url, key))) == (1, 1)


def test_it_is_the_current_operation(urls: Urls) -> None:
    with sqlite3.connect(path_of(urls["sqlite"])) as lite:
        with within(lite).receive("current", handler="h", tenant="shop") as message:
            assert semel.current_operation() is message
            assert not message.duplicate
            assert (message.key, message.attempt) == (semel.Key("shop", "h", "current"), 1)
            derived = message.derive("mail")
            made = within(lite).publish("current", "x")
        assert semel.current_operation() is None
        with within(lite).receive("current", handler="h", tenant="shop") as message:
            assert message.duplicate
            assert message.derive("mail") == derived
        with within(lite).receive("current", handler="h") as message:  # another tenant's
            assert not message.duplicate
            assert within(lite).publish("current", "x") != made
    assert len(letters(urls["sqlite"], "current")) == 2
    lite.close()


def test_tasks_are_told_the_same(urls: Urls) -> None:
    mode = next(mode for mode in MODES if mode.name == "asyncpg")

    async def deliver() -> bool:
        async with (
            mode.begin(urls["postgres"], "") as connection,
            within(connection).receive("task", handler="h") as message,
        ):
            if not message.duplicate:
                await mode.write(connection, "task")
                await within(connection).publish("task", {})
            return bool(message.duplicate)

    assert [asyncio.run(deliver()) for _ in range(2)] == [False, True]
    assert (effects(urls["postgres"], "task"), len(ids(urls["postgres"], "task"))) == (1, 1)


def test_a_bound_on_waiting(urls: Urls) -> None:
    with psycopg.connect(urls["postgres"]) as other, psycopg.connect(urls["postgres"]) as connection:
        with within(other).receive("bounded", handler="h") as message:
            assert not message.duplicate
            with pytest.raises(semel.errors.InProgress):
                within(connection).receive("bounded", handler="h", wait=0.02).__enter__()
        other.commit()
        with within(connection).receive("bounded", handler="h", wait=0.02) as message:
            assert message.duplicate


def test_past_its_retention_a_message_is_new(urls: Urls) -> None:
    with sqlite3.connect(path_of(urls["sqlite"])) as lite:
        for _ in range(2):
            with within(lite).receive("short", handler="h", retention=0.001) as message:
                assert not message.duplicate
            lite.commit()
            time.sleep(0.005)
    lite.close()


def test_a_sealed_database_knows_duplicates_too(urls: Urls) -> None:
    seal = Seal({"one": b"k" * 32})
    with sqlite3.connect(path_of(urls["sqlite"])) as lite:
        for duplicate in (False, True):
            with within(lite, seal=seal).receive("sealed", handler="h") as message:
                assert message.duplicate == duplicate
    lite.close()


def test_arguments_are_checked_before_anything_runs(urls: Urls) -> None:
    lite = sqlite3.connect(path_of(urls["sqlite"]))
    receive: Any = within(lite).receive
    for options in ({}, {"handler": ""}):
        with pytest.raises(TypeError, match=r"needs a handler: .* duplicates"):
            receive("m", **options)
    with pytest.raises(TypeError, match=r"has no option fingerprnt=: did you mean fingerprint=\?"):
        receive("m", handler="h", fingerprnt=1)
    for unfit in ("", "x" * 256, "\0"):
        with pytest.raises(ValueError, match="message_id"):
            receive(unfit, handler="h")
    with pytest.raises(TypeError, match="message_id must be text, not bytes"):
        receive(b"m", handler="h")
    with pytest.raises(TypeError, match="a sync connection: write `with within"):
        asyncio.run(receive("m", handler="h").__aenter__())
    block = receive("entered twice", handler="h")
    with block as message:
        assert not message.duplicate
        with pytest.raises(Misuse, match=r"entered once: call within\(…\)\.receive"):
            block.__enter__()
    with pytest.raises(KeyReused):
        receive("entered twice", handler="h", fingerprint=1).__enter__()
    lite.close()
