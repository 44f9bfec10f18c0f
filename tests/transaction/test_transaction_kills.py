"""kill -9 before and after every statement, in every mode: an effect, its records and its message, or none of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import psycopg
import pytest

import semel
from transaction.modes import DJANGO, MODES, ON_MARIADB, is_mariadb, ledger, mariadb_rows
from transaction.outbox_rows import ids
from waiting import until

TESTS = Path(__file__).parents[1]
ALL = ("postgres", "sqlite", "mariadb")
GROUPS = {
    f"{kind} on {database}": [
        mode
        for mode in MODES
        if mode.database == database and mode.name.startswith("sqlalchemy") == (kind == "sqlalchemy")
    ]
    for kind in ("drivers", "sqlalchemy")
    for database in ("postgres", "sqlite")
} | {
    "mariadb": [mode for mode in ON_MARIADB if mode.name in ("pymysql", "aiomysql", "sqlalchemy-pymysql-session")],
    "django": DJANGO,
}
LEAST = {"postgres": 13, "sqlite": 25, "mariadb": 25}
"""Before and after each statement: two claims, effect, message, two results and commit; on the others some more."""


OTHERS = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"


def settled_ledger(url: str) -> Counter[str]:
    """The effects when the server has ended the sessions of the dead: what they sent last may still be at work."""
    deadline = time.monotonic() + 30
    sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    sql += " AND backend_type = 'client backend'"
    while url.startswith("postgresql"):
        with psycopg.connect(url) as connection:
            row = connection.execute(sql).fetchone()
        if row == (0,):
            break
        assert time.monotonic() < deadline, "a session outlives its process"
        time.sleep(0.02)
    if is_mariadb(url):
        until(lambda: mariadb_rows(url, OTHERS) == ((0,),), "a session outlives its process")
    return ledger(url)


@pytest.mark.parametrize("group", GROUPS)
def test_killed_before_and_after_every_statement(group: str, urls: Mapping[str, str]) -> None:
    names = [mode.name for mode in GROUPS[group]]
    command = [sys.executable, "-m", "transaction.victims", *(urls[each] for each in ALL), *names]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    victims = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, cwd=TESTS
    )
    assert victims.stdin is not None
    assert victims.stdout is not None
    killed: list[tuple[str, str, str]] = []
    try:
        while (line := victims.stdout.readline()) != "pass 2\n":
            word, *found = line.split()
            assert word == "killed", line
            mode, database, _, key = found
            killed.append((mode, database, key))
        stores = {name: semel.open_store(url) for name, url in urls.items()}
        took = {name: settled_ledger(url) for name, url in urls.items()}
        for _, database, key in killed:
            record = stores[database].get(semel.Key("", "operation", key))
            assert took[database][key] == (0 if record is None else 1), key
            received = stores[database].get(semel.Key("", "victim", key))
            assert (received is None) == (record is None), key
            assert len(ids(urls[database], key)) == took[database][key], key
            assert record is None or not record.in_progress(), key
        victims.stdin.write("go on\n")
        victims.stdin.flush()
        assert victims.stdout.readline() == "done\n"
        assert victims.wait(30) == 0
    finally:
        victims.kill()
        victims.wait(30)
    took = {name: ledger(url) for name, url in urls.items()}
    for _, database, key in killed:
        assert (took[database][key], len(ids(urls[database], key))) == (1, 1), key
    points = Counter((mode, database) for mode, database, _ in killed)
    assert {mode for mode, _ in points} == set(names)
    assert all(count >= LEAST[database] for (_, database), count in points.items()), points
    for store in stores.values():
        store.close()
