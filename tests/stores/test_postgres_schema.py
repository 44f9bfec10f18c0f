"""The PostgreSQL store's tables, URL options and start-up checks."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from semel import Acquired, Key, Lease, Result, open_async_store, open_store
from semel.core.effects import Claim, Complete, Release, Renew
from semel.errors import StoreMisconfigured
from semel.runtime.drive import drive
from semel.store import Migratable, Store
from semel.stores.postgres import schema
from semel.stores.postgres.settings import PostgresSettings
from semel.stores.postgres.store import PostgresStore
from semel.stores.url import StoreUrl
from semel.testing import BlockingStore
from servers.postgres import Postgres, database_of

KEY = Key("tenant", "POST /payments", "key")
Open = Callable[[str], Store]


@pytest.fixture
def database(postgres_server: Postgres, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database without any tables."""
    url = postgres_server.create_database(f"semel_empty_{abs(hash(request.node.nodeid)) % 10**12}")
    yield url
    postgres_server.drop_database(database_of(url))


@pytest.fixture(params=["sync", "async"])
def opened(request: pytest.FixtureRequest) -> Iterator[Open]:
    stores: list[Store] = []

    def open_one(url: str) -> Store:
        stores.append(open_store(url) if request.param == "sync" else BlockingStore(open_async_store(url)))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


def claim(store: Store) -> object:
    return store.claim(KEY, "1.same", owner="a", lease_ms=1_000, retention_ms=1_000, takeover=False)


def test_without_tables_the_error_says_what_to_run(database: str, opened: Open) -> None:
    with pytest.raises(StoreMisconfigured, match=r"no tables of semel; run .*migrate"):
        claim(opened(database))


def test_tables_are_made_on_first_use_if_wanted(database: str, opened: Open) -> None:
    assert isinstance(claim(opened(f"{database}?migrate=auto")), Acquired)


def test_a_schema_of_its_own(database: str, opened: Open) -> None:
    url = f'{database}?schema=own "tables"'
    with pytest.raises(StoreMisconfigured, match="in schema own"):
        claim(opened(url))
    store = opened(url)
    assert isinstance(store, Migratable)
    assert store.migrate() == [1, 2]
    assert isinstance(claim(store), Acquired)
    with psycopg.connect(database) as connection:
        row = connection.execute(
            'SELECT count(*), to_regclass(\'semel_records\') FROM "own ""tables""".semel_records'
        ).fetchone()
    assert row == (1, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("DELETE FROM semel_schema", "there are no tables of semel"),
        ("DELETE FROM semel_schema WHERE number = 2", "has version 1, this semel needs 2; run"),
        ("INSERT INTO semel_schema VALUES (99, 'future', 98)", "needs a semel that knows version 98"),
    ],
)
def test_tables_of_another_version_are_refused(database: str, opened: Open, change: str, message: str) -> None:
    claim(opened(f"{database}?migrate=auto"))
    with psycopg.connect(database) as connection:
        connection.execute(change)
    with pytest.raises(StoreMisconfigured, match=message):
        claim(opened(database))


def test_the_next_version_s_tables_are_fine_if_they_say_so(database: str, opened: Open) -> None:
    claim(opened(f"{database}?migrate=auto"))
    with psycopg.connect(database) as connection:
        connection.execute("INSERT INTO semel_schema VALUES (3, 'next', 1)")
    assert isinstance(claim(opened(database)), Acquired)


def test_many_migrators_at_once(database: str) -> None:
    stores = [PostgresStore(PostgresSettings.of(StoreUrl.parse(database))) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        applied = list(threads.map(lambda store: store.migrate(), stores))
    assert sorted(map(len, applied)) == [0] * 7 + [2]
    for store in stores:
        store.close()


def test_what_is_printed_is_what_creates_the_tables(database: str) -> None:
    with psycopg.connect(database) as connection:
        for sql in schema.MIGRATIONS[0].statements:
            connection.execute(sql)


def test_a_user_without_rights_is_told_which(database: str, opened: Open) -> None:
    claim(opened(f"{database}?migrate=auto"))
    with psycopg.connect(database) as connection:
        connection.execute("DROP ROLE IF EXISTS semel_reader")
        connection.execute("CREATE ROLE semel_reader LOGIN")
        connection.execute("GRANT SELECT ON semel_schema, semel_records TO semel_reader")
    with pytest.raises(StoreMisconfigured, match="needs SELECT, INSERT, UPDATE, DELETE on semel_records"):
        claim(opened(database.replace("postgres@", "semel_reader@")))


def test_acknowledged_means_on_disk_whatever_the_default(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {database_of(database)} SET synchronous_commit = off")
    other = Key("tenant", "POST /payments", "other")
    writes = [
        Claim(KEY, "1.same", "a", 1_000, 1_000, False),
        Claim(other, "1.same", "a", 1_000, 1_000, False),
        Renew(Lease(KEY, "a", 1, 0), 1_000),
        Complete(Lease(KEY, "a", 1, 0), Result("text", b""), 1_000),
        Release(Lease(other, "a", 1, 0)),
    ]
    for extra in ("", "&prepare=false"):
        store = PostgresStore(PostgresSettings.of(StoreUrl.parse(f"{database}?migrate=auto{extra}")))
        assert store.get(KEY) is None
        with store._connections.get()._borrowed() as link, link.transaction(force_rollback=True):
            for call in writes:
                link.execute("SET LOCAL synchronous_commit = off")
                assert drive(store._scripts.answer([call], None), link.perform)[0]
                assert link.execute("SHOW synchronous_commit").fetchone() == ("on",), call
        store.close()


def test_options_of_libpq_are_passed_on_and_others_refused() -> None:
    url = StoreUrl.parse(
        "postgresql://h/d?sslmode=require&application_name=my%20app&schema=s&timeout_ms=1500&pool_max=3&prepare=no"
    )
    settings = PostgresSettings.of(url)
    url.finish()
    assert "sslmode=require" in settings.conninfo
    assert "application_name=my%20app" in settings.conninfo
    assert "connect_timeout=2" in settings.conninfo
    assert "schema" not in settings.conninfo
    assert (settings.schema, settings.timeout_ms, settings.pool_max, settings.prepare) == ("s", 1_500, 3, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("pool_maxx=3", "did you mean pool_max"),
        ("sslmod=require", "did you mean sslmode"),
        ("migrate=yes", "must be auto or off"),
        ("timeout_ms=1", "from 50 to 600000"),
    ],
)
def test_bad_options_are_refused(options: str, message: str) -> None:
    with pytest.raises(StoreMisconfigured, match=message):
        open_store(f"postgresql://127.0.0.1:1/d?{options}")
