"""psycopg's internals and its public interface are asked the same, and answer the same."""

import asyncio
import importlib.metadata
import re
import tomllib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.array import ListBinaryDumper

from semel import Acquired, Key, Occupied, Result, StoreUnavailable
from semel.core.effects import Claim, Complete, Read, Release, Renew
from semel.stores.postgres.aio import AsyncPostgresStore
from semel.stores.postgres.driver import find_internals, packed
from semel.stores.postgres.sessions import AsyncPostgresLink, PostgresLink
from semel.stores.postgres.settings import PostgresSettings
from semel.stores.postgres.store import PostgresStore
from semel.stores.sql.statements import Statement
from semel.stores.url import StoreUrl

TEXTS = [
    ["one"],
    [""],
    ["", ""],
    ["", "x"],
    ["same"] * 300,
    ["abc", "def", "ghi"],
    ["abc", "de", "f"],
    ["ab", "abcd", "abc"],
    ["äbc", "def"],
    ["abc", "déf"],
    ["日本", "本日", "ab"],
    ["😀" * 31, "x" * 31],
    ["x" * 127, "y" * 127],
    ["x" * 128, "y" * 128],
    ["x" * 5_000, "y" * 5_000, "z"],
    ["{a,b}", '"\\",', "NULL "],
]
BYTES = [[b""], [b"", b"\0\xff"], [b"x" * 200, b"y" * 200], [b"\0"] * 300, [b"a", b"bc" * 70_000]]
NUMBERS = [[0], [1, 2, 3], [-1, 2**63 - 1, -(2**63)], [30_000] * 300]
FLAGS = [[True], [True, False, True], [False] * 300]


EXECUTE = "psycopg.generators.execute"
"""psycopg itself needs it for transactions only."""
ERROR = "psycopg.errors.error_from_result"
"""psycopg itself needs it for failures only."""


def settings(url: str, **options: object) -> PostgresSettings:
    return PostgresSettings.of(
        StoreUrl.parse(f"{url}?" + "&".join(f"{name}={value}" for name, value in options.items()))
    )


@pytest.fixture(params=["exchange", "cursors", "cursors and arrays of psycopg"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    way: str = request.param
    if way != "exchange":
        monkeypatch.delattr(EXECUTE)
    return way


@pytest.fixture(params=[True, False], ids=["prepared", "as behind a pooler"])
def link(postgres_url: str, way: str, request: pytest.FixtureRequest) -> Iterator[PostgresLink]:
    with PostgresLink.open(settings(postgres_url, prepare=request.param)) as link:
        assert (link.exchange is not None) == (way == "exchange")
        if way == "cursors and arrays of psycopg":
            link.adapters.register_dumper(list, ListBinaryDumper)
        yield link


@pytest.mark.parametrize(
    ("kind", "lists"), [("text", TEXTS), ("bytea", BYTES), ("bigint", NUMBERS), ("boolean", FLAGS)]
)
def test_a_list_arrives_as_it_is(link: PostgresLink, kind: str, lists: list[list[Any]]) -> None:
    for items in lists:
        for time in (None, 17):
            sql = (
                f"SELECT item, $2::bigint FROM unnest($1::{kind}[]) WITH ORDINALITY AS c (item, number) ORDER BY number"
            )
            assert link.perform(Statement(sql, [items, time])) == [(item, time) for item in items]


def test_what_is_no_part_of_a_batch_is_refused() -> None:
    with pytest.raises(TypeError, match="no timedelta is a parameter"):
        packed(timedelta(seconds=1))
    with pytest.raises(TypeError, match="no array of float"):
        packed([1.5])


def test_tasks_wait_alike_for_an_exchange_and_for_a_cursor(postgres_url: str, way: str) -> None:
    """Also for an answer that comes late, in many pieces, or not in time, and for a question as long as that."""
    sql = "SELECT item, pg_sleep($2::bigint / 1000.0)::text FROM unnest($1::bytea[]) AS c (item)"
    long = bytes(range(256)) * 8_192

    async def main() -> None:
        async with await AsyncPostgresLink.open(settings(postgres_url)) as link:
            assert (link.exchange is not None) == (way == "exchange")
            for items, ms in (([b"a"], 0), ([b"a"], 20), ([long, b"b", long[1:]], 0)):
                assert await link.perform(Statement(sql, [items, ms])) == [(item, "") for item in items]
            with pytest.raises(StoreUnavailable, match="division by zero"):
                await link.perform(Statement("SELECT 1 / (item - item) FROM unnest($1::bigint[]) AS c (item)", [[1]]))
        async with await AsyncPostgresLink.open(settings(postgres_url, timeout_ms=50, prepare=False)) as link:
            with pytest.raises(StoreUnavailable, match=r"no answer within 0.05 s"):
                await link.perform(Statement(sql, [[b"a"], 5_000]))
            assert link.closed

    asyncio.run(main())


def test_a_store_without_internals_answers_as_one_with_them(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _replies(settings(postgres_url, schema="with_internals", migrate="auto"))
    assert [type(reply) for reply in expected[0]] == [Acquired, Acquired, Occupied, Acquired]
    monkeypatch.delattr(ERROR)
    assert find_internals() is None
    assert _replies(settings(postgres_url, schema="without_internals", migrate="auto")) == expected


def test_a_driver_that_lacks_one_is_a_driver_without_internals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_internals() is not None
    for name in (EXECUTE, ERROR, "psycopg.waiting.wait_async"):
        with monkeypatch.context() as patch:
            patch.delattr(name)
            assert find_internals() is None
    with monkeypatch.context() as patch:
        patch.setattr("psycopg.adapt.Transformer", type("Transformer", (), {"load_rows": None}))
        assert find_internals() is None
    with monkeypatch.context() as patch:
        patch.delattr(psycopg.Connection, "wait")
        assert find_internals() is None


def test_the_version_that_is_tried_here_is_the_last_that_may_be_installed() -> None:
    """Its internals may change with the next one: raise the bound when that was tried."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    (wanted,) = project["project"]["optional-dependencies"]["postgres"]
    bound = re.fullmatch(r"psycopg\[binary\]>=3\.2,<3\.(\d+)", wanted)
    assert bound is not None
    assert importlib.metadata.version("psycopg").split(".")[:2] == ["3", str(int(bound[1]) - 1)]


def _replies(settings: PostgresSettings) -> list[Any]:
    """What both faces say to the same calls at the same times."""
    now_ms = 1_700_000_000_000
    key, other = Key("t", "s", "one"), Key("t", "s", "other")
    batches: list[list[Any]] = [
        [
            Claim(key, "f", "a", 1_000, 9_000, False),
            Claim(other, "f", "a", 1_000, 9_000, False),
            Claim(key, "f", "b", 1_000, 9_000, False),
            *[Claim(Key("t", "s", "ä" * 40), "f", "c", 1_000, 9_000, True)],
        ],
        [Read(key), Read(Key("t", "s", "nothing"))],
    ]
    with PostgresStore(settings, clock=lambda: now_ms) as store:
        replies = [store._run(store._scripts.answer(batch, now_ms)) for batch in batches]
    leases = [reply.lease for reply in replies[0] if isinstance(reply, Acquired)]

    async def rest() -> list[Any]:
        async with AsyncPostgresStore(settings, clock=lambda: now_ms + 10) as store:
            return [
                await store._send([Renew(leases[0], 5_000), Renew(leases[0], 5_000)]),
                await store._send([Complete(leases[0], Result("raw", b"\0\xff" * 70_000), 9_000, 0)]),
                await store._send([Release(leases[1])]),
                await store._send([Read(key), Read(other)]),
                await store.scan(),
                await store.counts(),
            ]

    return replies + asyncio.run(rest())
