"""Calls of one key that share a batch on MariaDB."""

import subprocess
import sys
from contextlib import closing

from semel import Key, Result
from semel.core.effects import Complete, Release
from semel.stores.mariadb import scripts
from semel.stores.mariadb.settings import MariadbSettings
from semel.stores.mariadb.store import MariadbStore
from semel.stores.url import StoreUrl
from semel.testing.calls import claim, granted, held


class TestMariadbStoreBatches:
    def test_a_repeated_release_finds_nothing_to_give_back(self, mariadb_url: str) -> None:
        with closing(MariadbStore(MariadbSettings.of(StoreUrl.parse(mariadb_url)))) as store:
            store.migrate()
            lease = granted(claim(store, Key("t", "s", "k"), "owner"))
            assert store._run(scripts.release([Release(lease)] * 2, None)) == [True, False]

    def test_the_first_of_two_results_is_kept(self, mariadb_url: str) -> None:
        with closing(MariadbStore(MariadbSettings.of(StoreUrl.parse(mariadb_url)))) as store:
            store.migrate()
            key = Key("t", "s", "completed twice")
            lease = granted(claim(store, key, "owner"))
            results = [Result("value.1", payload, ok=True) for payload in (b"first", b"last")]
            calls = [Complete(lease, result, 60_000, 0) for result in results]
            assert store._run(scripts.complete(calls, None)) == [True, True]
            assert held(store, key).result == results[0]


def test_failures_are_known_beside_django_on_pymysql() -> None:
    """`install_as_MySQLdb()` makes Django import a second copy of PyMySQL's modules, which hides the first."""
    program = """
import sys, pymysql
pymysql.install_as_MySQLdb()
import MySQLdb.converters
from semel.stores.mariadb.failures import number_of_failure
errors = sys.modules["pymysql.err"]
assert pymysql.err is not errors
print(number_of_failure(errors.OperationalError(1213, "deadlock")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "1213\n", done.stderr
