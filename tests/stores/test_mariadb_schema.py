"""The MariaDB store's tables, sessions, URL options, and what `examine` says of a server."""

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pymysql
import pytest

from semel import Acquired, Key, Occupied, open_async_store, open_store
from semel.errors import StoreMisconfigured
from semel.store import Examinable, Migratable, Store
from semel.stores.mariadb import driver, queries
from semel.stores.mariadb.packets import packet
from semel.stores.mariadb.settings import MariadbSettings
from semel.stores.mariadb.store import MariadbStore
from semel.stores.mariadb.versions import refuse_server
from semel.stores.sql.digests import digest_of
from semel.stores.url import StoreUrl
from semel.testing import BlockingStore
from servers.mariadb import Mariadb, MariadbServer, arguments
from servers.needing import needed
from servers.postgres import database_of

pytestmark = pytest.mark.timeout(60)
KEY = Key("tenant", "POST /payments", "key")
Open = Callable[[str], Store]


@pytest.fixture
def database(mariadb_server: Mariadb) -> Iterator[str]:
    """A database without any tables, with the server's default collation."""
    url = mariadb_server.create_database(f"semel_{uuid.uuid4().hex[:12]}")
    yield url
    mariadb_server.drop_database(database_of(url))


@pytest.fixture(params=["sync", "async"])
def opened(request: pytest.FixtureRequest) -> Iterator[Open]:
    stores: list[Store] = []

    def open_one(url: str) -> Store:
        stores.append(open_store(url) if request.param == "sync" else BlockingStore(open_async_store(url)))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


def run(url: str, sql: str) -> Any:
    with closing(pymysql.connect(**arguments(url), autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


def claim(store: Store, key: Key = KEY) -> object:
    return store.claim(key, "1.same", owner="a", lease_ms=1_000, retention_ms=1_000, takeover=False)


def test_without_tables_the_error_says_what_to_run(database: str, opened: Open) -> None:
    with pytest.raises(StoreMisconfigured, match=r"no tables of semel; run .*migrate"):
        claim(opened(database))


def test_tables_are_made_on_first_use_if_wanted(database: str, opened: Open) -> None:
    assert isinstance(claim(opened(f"{database}?migrate=auto")), Acquired)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("DELETE FROM semel_schema", "there are no tables of semel"),
        ("INSERT INTO semel_schema VALUES (99, 'future', 98)", "needs a semel that knows version 98"),
    ],
)
def test_tables_of_another_version_are_refused(database: str, opened: Open, change: str, message: str) -> None:
    claim(opened(f"{database}?migrate=auto"))
    run(database, change)
    with pytest.raises(StoreMisconfigured, match=message):
        claim(opened(database))


def test_the_next_version_s_tables_are_fine_if_they_say_so(database: str, opened: Open) -> None:
    claim(opened(f"{database}?migrate=auto"))
    run(database, "INSERT INTO semel_schema VALUES (3, 'next', 1)")
    assert isinstance(claim(opened(database)), Acquired)


def test_many_migrators_at_once(database: str) -> None:
    stores = [MariadbStore(MariadbSettings.of(StoreUrl.parse(database))) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        applied = list(threads.map(lambda store: store.migrate(), stores))
    assert sorted(map(len, applied)) == [0] * 7 + [2]
    for store in stores:
        store.close()


def test_a_migration_that_broke_off_is_finished(database: str) -> None:
    """MariaDB commits each CREATE TABLE by itself."""
    store = open_store(database)
    assert isinstance(store, Migratable)
    for sql in store.migrations()[0].statements[:3]:
        run(database, sql)
    assert store.migrate() == [1, 2]
    assert isinstance(claim(store), Acquired)
    store.close()


def test_what_is_printed_is_what_creates_the_tables(database: str) -> None:
    store = open_store(database)
    assert isinstance(store, Migratable)
    for migration in store.migrations():
        for sql in migration.statements:
            run(database, sql)
    assert store.migrate() == []
    assert isinstance(claim(store), Acquired)
    store.close()


def test_what_a_collation_calls_equal_is_another_key(database: str, opened: Open) -> None:
    """Case, accents, blanks at the end: also for the columns themselves, whatever finds their rows."""
    alike = ("key", "KEY", "key ", "kéy", "ke\u0301y", "key\t", "ｋｅｙ")
    store = opened(f"{database}?migrate=auto")
    for name in alike:
        assert isinstance(claim(store, Key(KEY.tenant, KEY.scope, name)), Acquired)
    for name in alike:
        record = store.get(Key(KEY.tenant, KEY.scope, name))
        assert record is not None
        assert record.key.name == name
    for column in ("tenant", "scope", "name", "fingerprint", "owner", "format"):
        run(database, f"UPDATE semel_records SET {column} = 'key'")
        others = ", ".join(f"'{other}'" for other in alike[1:])
        assert run(database, f"SELECT COUNT(*) FROM semel_records WHERE {column} IN ({others})") == ((0,),), column


def test_what_is_too_long_for_a_column_is_refused_and_not_cut(database: str) -> None:
    """The longest texts fit. Our sessions are strict, so anything longer is an error."""
    run(database, "SET GLOBAL sql_mode = ''")
    try:
        store = open_store(f"{database}?migrate=auto")
        longest = Key("é" * 127 + "t", "é" * 512, "é" * 127 + "n")
        assert isinstance(claim(store, longest), Acquired)
        record = store.get(longest)
        assert record is not None
        assert record.key == longest
        assert isinstance(store, MariadbStore)
        with pytest.raises(Exception, match="too long"):
            store._connections.get().with_link(
                lambda ask: ask(packet(f"UPDATE semel_records SET owner = x'{'61' * 65}'"))
            )
        store.close()
    finally:
        run(database, "SET GLOBAL sql_mode = DEFAULT")


@pytest.mark.parametrize("zone", ["+00:00", "-11:30", "+13:00"])
def test_the_time_is_utc_whatever_the_zone(database: str, opened: Open, zone: str) -> None:
    run(database, f"SET GLOBAL time_zone = '{zone}'")
    try:
        store = opened(f"{database}?migrate=auto")
        claim(store)
        record = store.get(KEY)
        assert record is not None
        assert abs(record.created_ms - datetime.now(UTC).timestamp() * 1000) < 5_000
        run(database, f"UPDATE semel_records SET created_ms = {queries.CLOCK} WHERE name = 'key'")
        changed = store.get(KEY)
        assert changed is not None
        assert 0 <= changed.created_ms - record.created_ms < 5_000
    finally:
        run(database, "SET GLOBAL time_zone = DEFAULT")


def test_a_session_whose_settings_do_not_hold_is_refused(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a proxy that keeps SET for itself."""
    monkeypatch.setattr(driver, "STRICT", "")
    monkeypatch.setattr(driver, "ISOLATION", "SERIALIZABLE")
    with pytest.raises(StoreMisconfigured, match="must keep a session's settings"):
        open_store(database).get(KEY)


def test_a_replay_neither_waits_for_a_lock_nor_writes(database: str, opened: Open) -> None:
    store = opened(f"{database}?migrate=auto&timeout_ms=1000")
    claim(store)
    with closing(pymysql.connect(**arguments(database))) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT * FROM semel_records FOR UPDATE")
        assert isinstance(
            store.claim(KEY, "1.same", owner="b", lease_ms=1_000, retention_ms=1_000, takeover=False), Occupied
        )
        assert store.get(KEY) is not None
        assert store.purge(limit=10) == 0


def test_rows_are_found_by_their_keys_also_in_a_table_that_was_empty_when_it_began(database: str) -> None:
    """A statement that locks must reach its own rows only, however small the table is."""
    store = open_store(f"{database}?migrate=auto")
    assert isinstance(store, MariadbStore)
    store.get(KEY)
    digest = digest_of(KEY)
    statements = [
        queries.renew([(digest, "a", 1)], None),
        queries.complete([(digest, "a", 1, "f", b"", 1, 0)], None),
        *queries.release([(digest, "a")], None),
        queries.holders([digest], lock=True),
        queries.select([digest], None),
    ]
    for sql in statements:
        plans = store._connections.get().with_link(
            lambda ask, sql=sql: ask(packet(f"EXPLAIN {sql}"))  # type: ignore[misc]
        )
        kinds = {row[2]: row[3] for row in plans[0]}
        assert kinds.get("r", "const") in ("eq_ref", "const", "range"), (sql, plans)
    store.close()


def test_mysql_and_old_servers_are_refused_by_name() -> None:
    with needed("mariadb", lambda: MariadbServer("--version=8.0.40")) as server:  # what it tells its clients
        for opener in (open_store, lambda url: BlockingStore(open_async_store(url))):
            store = opener(f"{server.url}/mysql")
            with pytest.raises(StoreMisconfigured, match=r"never tested on MySQL.*use MariaDB 10\.6 or later"):
                store.get(KEY)
            store.close()
    with pytest.raises(StoreMisconfigured, match=r"10\.6 or later"):
        refuse_server("5.5.5-10.5.9-MariaDB", "here")
    refuse_server("11.4.2-MariaDB", "here")


def test_options() -> None:
    url = StoreUrl.parse("mariadb://me:se%2Fcret@h:4000/a%20b?timeout_ms=1500&pool_max=3&unix_socket=/run/a&tls=true")
    settings = MariadbSettings.of(url)
    url.finish()
    place = settings.place
    assert (place["host"], place["port"], place["user"], place["password"]) == ("h", 4000, "me", "se/cret")
    assert (place["unix_socket"], place["ssl"] is not None) == ("/run/a", True)
    assert (settings.database, settings.timeout_ms, settings.pool_max) == ("a b", 1_500, 3)
    assert "se/cret" not in repr(settings)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mariadb://h/d?pool_maxx=3", "did you mean pool_max"),
        ("mariadb://h/d?migrate=yes", "must be auto or off"),
        ("mariadb://h/d?timeout_ms=1", "from 50 to 600000"),
        ("mariadb://h", "must name the database"),
        ("mysql://h:x/d", "Port"),
        ("mysql://h/d?tls_ca=/nowhere", "No such file"),
        ("mysql://h/d?tls_ca=/nowhere&tls=no", "tls=false contradicts tls_ca"),
    ],
)
def test_bad_options_are_refused(url: str, message: str) -> None:
    with pytest.raises(StoreMisconfigured, match=message):
        open_store(url)


@pytest.mark.parametrize("user", ["plain", "wröng:pässword"])
def test_a_user_without_rights_is_told_what_is_missing(database: str, opened: Open, user: str) -> None:
    claim(opened(f"{database}?migrate=auto"))
    run(database, "CREATE OR REPLACE USER plain")
    run(database, "GRANT SELECT ON *.* TO plain")
    told = "needs SELECT, INSERT, UPDATE, DELETE on semel_records" if user == "plain" else "the user or the password"
    with pytest.raises(StoreMisconfigured, match=told):
        claim(opened(database.replace("root@", f"{user}@")))


def test_a_password_outside_of_latin_1(database: str, opened: Open) -> None:
    claim(opened(f"{database}?migrate=auto"))
    run(database, "CREATE OR REPLACE USER coder IDENTIFIED BY 'pä€s'")
    run(database, "GRANT ALL ON *.* TO coder")
    assert opened(database.replace("root@", "coder:p%C3%A4%E2%82%ACs@")).get(KEY) is not None


def test_what_the_doctor_finds(database: str) -> None:
    store = open_store(database)
    assert isinstance(store, Examinable)
    assert isinstance(store, Migratable)
    assert {finding.title: finding.level for finding in store.examine()}["schema"] == "problem"
    store.migrate()
    for variable, value in (("sync_binlog", "0"), ("max_allowed_packet", "1048576"), ("read_only", "ON")):
        run(database, f"SET GLOBAL {variable} = {value}")
    try:
        found = {finding.title: finding for finding in store.examine()}
    finally:
        for variable in ("sync_binlog", "max_allowed_packet", "read_only"):
            run(database, f"SET GLOBAL {variable} = DEFAULT")
    levels = {title: finding.level for title, finding in found.items()}
    problems = ("role", "max_allowed_packet", "innodb_flush_log_at_trx_commit", "innodb_doublewrite")  # the tests' own
    assert {title for title, level in levels.items() if level == "problem"} == set(problems), found
    assert "the last second" in found["innodb_flush_log_at_trx_commit"].detail
    assert all(finding.fix for finding in found.values() if finding.level in ("problem", "warning"))
    assert (levels["schema"], levels["rights"], levels["clock"], levels["latency"]) == ("ok",) * 4
    run(database, "CREATE OR REPLACE USER plain")
    run(database, "GRANT SELECT ON *.* TO plain")
    limited = open_store(database.replace("root@", "plain@"))
    assert isinstance(limited, Examinable)
    assert {finding.title: finding.level for finding in limited.examine()}["rights"] == "problem"
    limited.close()
    store.close()
