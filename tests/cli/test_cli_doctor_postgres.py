"""`semel doctor` on a PostgreSQL whose settings, transactions or slots let the table of records grow."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from cli.calls import ANSWER, SCOPE, claimed, run, run_json
from semel import Key, open_store
from semel.stores.postgres import horizon, upkeep
from servers.needing import needed
from servers.postgres import PostgresServer
from waiting import until

KEY = Key("shop", SCOPE, "order-1")
ROWS = """
INSERT INTO semel_records SELECT sha256(n::text::bytea), 1, 1, 1, 0, 1, 1, false, '', '', n::text, '', ''
FROM generate_series(1, 2000) n"""
AS_BEFORE = "ALTER TABLE semel_records RESET (autovacuum_vacuum_scale_factor)"
"""As a table that was made before semel set it."""
BURN = """
DO $$ BEGIN FOR n IN 1..160000 LOOP PERFORM txid_current(); COMMIT; END LOOP; END $$"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    settings = ("max_prepared_transactions=2", "wal_level=logical", "autovacuum_freeze_max_age=100000")
    with needed("postgres", lambda: PostgresServer(*settings)) as server:
        yield server


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    made = server.create_database("doctor")
    assert run("migrate", store=made).exit_code == 0
    yield made
    server.drop_database("doctor")


@pytest.fixture
def admin(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as admin:
        yield admin


def finding(url: str, title: str, *, status: int = 0) -> dict[str, str]:
    """The finding with this title; with the level "none" if there is none."""
    found = run_json("doctor", store=url, status=status)["findings"]
    return next((each for each in found if each["title"] == title), {"level": "none", "detail": "", "fix": ""})


def test_settings_that_do_not_suit_a_large_table(
    url: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.execute(ROWS)
    admin.execute("ANALYZE semel_records")
    monkeypatch.setattr(upkeep, "LARGE", 2001)
    admin.execute(AS_BEFORE)
    assert finding(url, "autovacuum")["level"] == "ok", "fewer rows need no care"
    monkeypatch.setattr(upkeep, "LARGE", 2000)
    found = finding(url, "autovacuum")
    assert found["level"] == "warning"
    assert "begins when 450 of about 2,000 rows are dead (autovacuum_vacuum_scale_factor is 0.2)" in found["detail"]
    admin.execute(found["fix"].encode())
    assert finding(url, "autovacuum")["level"] == "ok"


def test_the_way_out_stops_no_claim(url: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even while it waits for its end, as behind a vacuum against the wraparound."""
    admin.execute(ROWS)
    admin.execute("ANALYZE semel_records")
    monkeypatch.setattr(upkeep, "LARGE", 2000)
    admin.execute(AS_BEFORE)
    fix = finding(url, "autovacuum")["fix"]
    with closing(open_store(f"{url}?timeout_ms=20000")) as store, admin.transaction():
        admin.execute(fix.encode())
        lease = claimed(store, KEY)
        assert store.complete(lease, ANSWER, retention_ms=1)
        until(lambda: store.purge(limit=10_000))


def test_an_autovacuum_that_pauses_too_much(
    url: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.execute(ROWS)
    admin.execute("ANALYZE semel_records")
    monkeypatch.setattr(upkeep, "LARGE", 2000)
    monkeypatch.setattr(upkeep, "PASS_MAX_S", 60)
    assert finding(url, "autovacuum")["level"] == "ok", "as migrate has made it"
    admin.execute("ALTER TABLE semel_records SET (autovacuum_vacuum_cost_limit = 1, autovacuum_vacuum_cost_delay = 99)")
    found = finding(url, "autovacuum")
    assert (found["level"], "one pass over semel_records can take" in found["detail"]) == ("warning", True)
    admin.execute(found["fix"].encode())
    assert finding(url, "autovacuum")["level"] == "ok"


def test_an_autovacuum_that_hardly_looks(url: str, admin: psycopg.Connection[Any]) -> None:
    admin.execute("ALTER SYSTEM SET autovacuum_naptime = '10min'")
    admin.execute("SELECT pg_reload_conf()")
    found = until(lambda: finding(url, "autovacuum") if finding(url, "autovacuum")["level"] == "warning" else {})
    assert "autovacuum_naptime is 600 s" in found["detail"]
    for statement in found["fix"].strip(";").split("; "):
        admin.execute(statement.encode())
    until(lambda: finding(url, "autovacuum")["level"] == "ok")


def test_pages_that_are_left_half_empty(url: str, admin: psycopg.Connection[Any]) -> None:
    assert finding(url, "fillfactor")["level"] == "none"
    admin.execute("ALTER TABLE semel_records SET (fillfactor = 50)")
    found = finding(url, "fillfactor")
    assert (found["level"], "fillfactor is 50" in found["detail"]) == ("warning", True)
    admin.execute(found["fix"].partition(";")[0].encode())
    assert finding(url, "fillfactor")["level"] == "none"


def test_dead_rows_that_autovacuum_should_have_removed(
    url: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer than half of the rows, but twice as many as it waits for."""
    monkeypatch.setattr(upkeep, "DEAD_MIN", 100)
    admin.execute("ALTER TABLE semel_records SET (autovacuum_enabled = off)")
    admin.execute(ROWS)
    admin.execute("SELECT pg_stat_force_next_flush()")
    admin.execute("ANALYZE semel_records")
    admin.execute("DELETE FROM semel_records WHERE name::int <= 400")
    admin.execute("SELECT pg_stat_force_next_flush()")
    found = until(lambda: finding(url, "dead rows") if finding(url, "dead rows")["level"] == "warning" else {})
    assert "400 dead rows beside 1600 live ones" in found["detail"]
    admin.execute(AS_BEFORE)
    assert finding(url, "dead rows")["level"] == "ok", "autovacuum waits for 450 by default"


def test_dead_rows_of_a_table_whose_live_ones_were_counted_long_ago(
    url: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash or a restore the statistics begin anew, with as few live rows as were added since."""
    monkeypatch.setattr(upkeep, "DEAD_MIN", 20)
    admin.execute("ALTER TABLE semel_records SET (autovacuum_enabled = off)")
    admin.execute(ROWS)
    admin.execute("SELECT pg_stat_force_next_flush()")
    admin.execute("ANALYZE semel_records")
    admin.execute("SELECT pg_stat_reset_single_table_counters('semel_records'::regclass)")
    admin.execute("DELETE FROM semel_records WHERE name::int <= 50")
    admin.execute("SELECT pg_stat_force_next_flush()")
    found = until(lambda: finding(url, "dead rows") if "50 dead" in finding(url, "dead rows")["detail"] else {})
    assert found["level"] == "ok", found["detail"]


def test_a_transaction_that_stays_open(
    url: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(f"{url}?application_name=report") as report:
        report.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        report.execute("SELECT 1")
        pid = report.info.backend_pid
        assert finding(url, "open transactions")["level"] == "ok", "it has only just begun"
        monkeypatch.setattr(horizon, "OPEN_MAX_S", 0.0)
        found = finding(url, "open transactions")
        assert found["level"] == "warning"
        assert f"process {pid} (report, idle in transaction) is open for" in found["detail"]
        admin.execute(found["fix"].partition(";")[0].encode())
        until(lambda: finding(url, "open transactions")["level"] == "ok")
        report.close()


def test_a_prepared_transaction_without_an_end(
    url: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.execute("BEGIN")
    admin.execute(ROWS)
    admin.execute("PREPARE TRANSACTION 'forgotten'")
    try:
        assert finding(url, "prepared transactions")["level"] == "none", "it has only just begun"
        monkeypatch.setattr(horizon, "OPEN_MAX_S", 0.0)
        found = finding(url, "prepared transactions")
        assert (found["level"], "'forgotten' was prepared" in found["detail"]) == ("warning", True)
    finally:
        admin.execute("ROLLBACK PREPARED 'forgotten'")
    assert finding(url, "prepared transactions")["level"] == "none"


def test_a_slot_that_holds_back_vacuum(
    url: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.execute("SELECT pg_create_logical_replication_slot('behind', 'pgoutput')")
    try:
        assert finding(url, "vacuum")["level"] == "none"
        monkeypatch.setattr(horizon, "HELD_MAX", 10)
        admin.execute(BURN.replace("160000", "20").encode())
        found = finding(url, "vacuum")
        assert (found["level"], "the replication slot behind holds back" in found["detail"]) == ("warning", True)
    finally:
        admin.execute("SELECT pg_drop_replication_slot('behind')")
    assert finding(url, "vacuum")["level"] == "none"


def test_transaction_numbers_that_run_out(
    url: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server would free them by itself at autovacuum_freeze_max_age, but for the open transaction."""
    assert finding(url, "transaction numbers")["level"] == "ok"
    with psycopg.connect(url) as report:
        report.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        report.execute("SELECT 1")
        admin.execute("SET synchronous_commit = off")
        admin.execute(BURN.encode())
        found = finding(url, "transaction numbers")
        assert (found["level"], "does not get there" in found["detail"]) == ("warning", True)
        monkeypatch.setattr(upkeep, "STOP_AT", 200_000)
        found = finding(url, "transaction numbers", status=1)
        assert (found["level"], "the server stops all writes" in found["detail"]) == ("problem", True)
