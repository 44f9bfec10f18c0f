"""A record that cannot be read stops no command: it is skipped, named on standard error and in JSON, and counted."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
import redis

from cli.calls import SCOPE, claimed, finished, run, run_json, unknown
from semel import Key
from semel.store import Store
from semel.stores.redis.layout import frame, name_of

NAMES = ("order-1", "order-2", "order-3")
SPOILED = Key("shop", SCOPE, "order-2")


@pytest.fixture
def spoil(url: str, tmp_path: Path) -> Callable[[], object]:
    """Makes the record of order-2 one of a newer version."""
    change = "UPDATE semel_records SET state = 7 WHERE name = 'order-2'"

    def in_file() -> None:
        with closing(sqlite3.connect(tmp_path / "records.db")) as connection, connection:
            connection.execute(change)

    def in_table() -> None:
        place, _, query = url.partition("?")
        with psycopg.connect(place) as connection:
            schema = parse_qs(query)["schema"][0]
            connection.execute(change.replace("semel_records", f"{schema}.semel_records").encode())

    def in_redis() -> None:
        prefix = parse_qs(urlsplit(url).query)["prefix"][0]
        with redis.Redis.from_url(url.partition("?")[0]) as driver:
            driver.set(name_of(prefix.encode(), frame(SPOILED)), b"\x02the next format")

    return {"sqlite": in_file, "postgresql": in_table, "redis": in_redis}[url.partition(":")[0]]


def test_lists_name_it_and_show_the_rest(url: str, store: Store, spoil: Callable[[], object]) -> None:
    for name in NAMES:
        finished(store, Key("shop", SCOPE, name))
    spoil()
    listed = run("keys", "list", "--names", store=url)
    assert listed.exit_code == 0
    assert {line.split()[0] for line in listed.stdout.splitlines()[1:]} == {"order-1", "order-3"}
    assert listed.stderr.count("Skipped, because it cannot be read:") == 1
    assert "order-2" not in listed.output
    document = run_json("keys", "list", "--names", store=url)
    assert sorted(each["name"] for each in document["records"]) == ["order-1", "order-3"]
    [skipped] = document["unreadable"]
    assert set(skipped) == {"place", "reason"}
    assert run_json("keys", "list", "--limit", "1", store=url)["more"] is True


def test_stats_count_it(url: str, store: Store, spoil: Callable[[], object]) -> None:
    for name in NAMES:
        finished(store, Key("shop", SCOPE, name))
    assert "unreadable" not in run("stats", store=url).output
    spoil()
    document = run_json("stats", store=url)
    assert (document["counts"]["succeeded"], document["counts"]["unreadable"], document["scanned"]) == (2, 1, 2)
    assert len(document["unreadable"]) == 1
    assert ["unreadable", "1"] in [line.split() for line in run("stats", store=url).stdout.splitlines()]


def test_stuck_finds_what_is_beside_it_and_is_not_content(url: str, store: Store, spoil: Callable[[], object]) -> None:
    unknown(store, Key("shop", SCOPE, "order-1"))
    claimed(store, SPOILED)
    spoil()
    found = run_json("stuck", "--names", store=url, status=1)
    assert [each["name"] for each in found["records"]] == ["order-1"]


def test_one_key_and_all_that_match_are_found_beside_it(url: str, store: Store, spoil: Callable[[], object]) -> None:
    for name in NAMES:
        finished(store, Key("shop", SCOPE, name))
    spoil()
    shown = run("keys", "show", "order-1", "--names", store=url)
    assert (shown.exit_code, "order-1" in shown.stdout) == (0, True)
    deleted = run("keys", "delete", "--tenant", "shop", "--yes", store=url)
    assert (deleted.exit_code, deleted.stdout.splitlines()) == (0, ["Deleted 2 records."])
    there = run("keys", "show", "order-2", "--tenant", "shop", "--scope", SCOPE, store=url)
    assert there.exit_code != 0, "it is never treated as absent"
    assert "no such record" not in there.output


def test_doctor_tells_of_it(url: str, store: Store, spoil: Callable[[], object]) -> None:
    for name in NAMES:
        finished(store, Key("shop", SCOPE, name))
    assert "records" not in [each["title"] for each in run_json("doctor", store=url)["findings"]]
    spoil()
    [finding] = [each for each in run_json("doctor", store=url)["findings"] if each["title"] == "records"]
    assert (finding["level"], finding["detail"].startswith("1 of 3 records cannot be read")) == ("warning", True)
