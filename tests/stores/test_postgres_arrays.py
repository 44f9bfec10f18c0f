"""Lists reach the server as they are, whichever of the short ways they are written in."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from semel.stores.postgres.arrays import packed
from semel.stores.postgres.driver import Link
from semel.stores.postgres.settings import Settings
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


@pytest.fixture(params=[True, False], ids=["prepared", "as behind a pooler"])
def link(postgres_url: str, request: pytest.FixtureRequest) -> Iterator[Link]:
    with Link.open(Settings.of(StoreUrl.parse(f"{postgres_url}?prepare={request.param}"))) as link:
        yield link


@pytest.mark.parametrize(
    ("kind", "lists"), [("text", TEXTS), ("bytea", BYTES), ("bigint", NUMBERS), ("boolean", FLAGS)]
)
def test_a_list_arrives_as_it_is(link: Link, kind: str, lists: list[list[Any]]) -> None:
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
