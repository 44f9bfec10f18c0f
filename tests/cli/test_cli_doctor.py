"""`semel doctor` and `semel migrate`: what is well, what is not, and that looking changes nothing."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest

from cli.calls import claimed, run, run_json
from semel import Key, open_store
from semel.store import Store
from semel.stores import examination
from semel.stores.postgres import upkeep
from semel.stores.sqlite import doctor as sqlite_doctor
from servers.needing import needed
from servers.postgres import PostgresServer, PostgresStandby
from servers.redis import RedisServer
from waiting import until

KEY = Key("shop", "POST /payments", "order-1")


def by_title(report: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {finding["title"]: finding for finding in report["findings"]}


def test_all_is_well(url: str, store: Store) -> None:
    claimed(store, KEY)
    report = run_json("doctor", store=url)
    assert report["ok"] is True
    found = by_title(report)
    assert {"version", "schema", "latency", "clock", "promise"} <= found.keys()
    assert found["schema"]["level"] == found["clock"]["level"] == "ok"
    if url.startswith("redis"):
        assert "failover" in found["promise"]["detail"]
    shown = run("doctor", store=url)
    assert shown.exit_code == 0
    assert "✔" in shown.output
    assert "✘" not in shown.output


def test_every_problem_comes_with_a_fix(postgres_url: str) -> None:
    """Tables that are not there are told, and not made, also where the URL would make them on first use."""
    empty = f"{postgres_url}?schema=nothing&migrate=auto"
    report = run_json("doctor", store=empty, status=1)
    assert report["ok"] is False
    problems = [finding for finding in report["findings"] if finding["level"] == "problem"]
    assert [finding["title"] for finding in problems] == ["schema"]
    assert "semel migrate" in problems[0]["fix"]
    assert "✘ schema" in run("doctor", store=empty).output
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'nothing'").fetchone() == (0,)


def test_a_user_without_rights(postgres_url: str) -> None:
    assert run("migrate", store=postgres_url).exit_code == 0
    reader = f"reader_{uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {reader} LOGIN PASSWORD 'reads'".encode())
        try:
            connection.execute(f"GRANT SELECT ON semel_records, semel_schema TO {reader}".encode())
            place = urlsplit(postgres_url)
            other = place._replace(netloc=f"{reader}:reads@{place.netloc.rpartition('@')[2]}").geturl()
            found = by_title(run_json("doctor", store=other, status=1))
            assert found["rights"]["level"] == "problem"
            assert found["rights"]["fix"].startswith("GRANT INSERT, UPDATE, DELETE ON semel_records")
        finally:
            connection.execute(f"DROP OWNED BY {reader}; DROP ROLE {reader}".encode())


def test_a_postgres_that_does_not_keep_its_word() -> None:
    with needed(
        "postgres", lambda: PostgresServer("fsync=off", "full_page_writes=off", "synchronous_commit=off")
    ) as server:
        assert run("migrate", store=server.url).exit_code == 0
        found = by_title(run_json("doctor", store=server.url, status=1))
    assert [found[name]["level"] for name in ("fsync", "full_page_writes")] == ["problem", "problem"]
    assert "fsync = on" in found["fsync"]["fix"]
    assert found["synchronous_commit"]["level"] == "ok", "the store raises it where it writes"


def replication(server: PostgresServer, names: str | None, *, status: int = 0, url: str = "") -> dict[str, str]:
    """The finding with these `synchronous_standby_names`."""
    with psycopg.connect(server.url, autocommit=True) as admin:
        setting = "RESET synchronous_standby_names" if names is None else f"SET synchronous_standby_names = '{names}'"
        admin.execute(f"ALTER SYSTEM {setting}".encode())
        admin.execute("SELECT pg_reload_conf()")
        deadline = time.monotonic() + 10
        wanted = "sync" if names == "*" else "async"  # each process of the server reads its settings in its own time
        unlike = "SELECT count(*) FROM pg_stat_replication WHERE sync_state IS DISTINCT FROM %s"
        while admin.execute("SHOW synchronous_standby_names").fetchall() != [(names or "",)] or admin.execute(
            unlike, [wanted]
        ).fetchall() != [(0,)]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    return by_title(run_json("doctor", store=url or server.url, status=status))["replication"]


def test_a_failover_is_as_good_as_the_standby_is(private_postgres: PostgresServer) -> None:
    primary = private_postgres
    assert run("migrate", store=primary.url).exit_code == 0
    assert replication(primary, None)["level"] == "info", "there is nobody to fail over to"
    with PostgresStandby(primary):
        found = replication(primary, None)
        assert found["level"] == "warning"
        assert "a failover loses the last keys that were acknowledged" in found["detail"]
        assert "synchronous_standby_names" in found["fix"]
        found = replication(primary, "*")
        assert (found["level"], "on a standby, too" in found["detail"]) == ("ok", True)
        with psycopg.connect(primary.url, autocommit=True) as admin:
            admin.execute("CREATE ROLE plain LOGIN; GRANT ALL ON semel_records, semel_schema TO plain")
        found = replication(primary, "*", url=primary.url.replace("postgres@", "plain@"))
        assert (found["level"], "may not see which" in found["detail"]) == ("ok", True)
        found = replication(primary, "another", status=1)
        assert found["level"] == "problem"
        assert "every claim is refused after timeout_ms" in found["detail"]
        assert "RESET synchronous_standby_names" in found["fix"]


def test_nothing_cleans_up(private_postgres: PostgresServer) -> None:
    """Autovacuum may be off for the server, for the table, or for the answers that are kept beside it."""
    url = private_postgres.url
    assert run("migrate", store=url).exit_code == 0
    found = by_title(run_json("doctor", store=url))
    assert (found["autovacuum"]["level"], found["dead rows"]["level"]) == ("ok", "ok")
    assert "slots" not in found
    with psycopg.connect(url, autocommit=True) as admin:
        for option in ("autovacuum_enabled", "toast.autovacuum_enabled"):
            admin.execute(f"ALTER TABLE semel_records SET ({option} = off)".encode())
            off = by_title(run_json("doctor", store=url))["autovacuum"]
            assert (off["level"], f"{option} is off for semel_records" in off["detail"]) == ("warning", True)
            admin.execute(off["fix"].encode())
            assert by_title(run_json("doctor", store=url))["autovacuum"]["level"] == "ok"
        for name in ("autovacuum", "track_counts"):
            admin.execute(f"ALTER SYSTEM SET {name} = off".encode())
            admin.execute("SELECT pg_reload_conf()")
            off = until(lambda: _off(url) or {})
            assert f"{name} is off" in off["detail"]
            for statement in off["fix"].strip(";").split("; "):
                admin.execute(statement.encode())
            until(lambda: _off(url) is None)
    assert "! autovacuum" not in run("doctor", store=url).output


def _off(url: str) -> dict[str, str] | None:
    found = by_title(run_json("doctor", store=url))["autovacuum"]
    return found if found["level"] == "warning" else None


def test_dead_rows_and_unused_slots(private_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    url = private_postgres.url
    assert run("migrate", store=url).exit_code == 0
    monkeypatch.setattr(upkeep, "DEAD_MIN", 100)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("ALTER TABLE semel_records SET (autovacuum_enabled = off)")
        admin.execute(
            "INSERT INTO semel_records SELECT sha256(n::text::bytea), 1, 1, 1, 0, 1, 0, false, '', '', n::text, '', '' "
            "FROM generate_series(1, 200) n"
        )
        admin.execute("DELETE FROM semel_records")
        admin.execute("SELECT pg_stat_force_next_flush()")
        admin.execute("SELECT pg_create_physical_replication_slot('left', true)")
        found = until(lambda: _dead(url) or {})
        assert "200 dead rows beside 0 live ones; last vacuumed: never" in found["dead rows"]["detail"]
        assert "VACUUM semel_records" in found["dead rows"]["fix"]
        assert found["slots"]["level"] == "warning"
        assert "1 replication slot is not in use" in found["slots"]["detail"]
        admin.execute("VACUUM semel_records")
        admin.execute("SELECT pg_drop_replication_slot('left')")
    until(lambda: _dead(url) is None)
    assert "slots" not in by_title(run_json("doctor", store=url))


def _dead(url: str) -> dict[str, dict[str, str]] | None:
    found = by_title(run_json("doctor", store=url))
    return found if found["dead rows"]["level"] == "warning" else None


@pytest.mark.parametrize("skew_ms", [-0.4, 0.0, 0.4])
def test_there_is_no_negative_nothing(monkeypatch: pytest.MonkeyPatch, skew_ms: float) -> None:
    monkeypatch.setattr(examination, "wall_ms", lambda: 0)
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    assert "is +0 ms from" in examination.clock_skew(lambda: skew_ms).detail  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("words", [("stuck",), ("doctor",), ("keys", "list"), ("migrate",)])
def test_a_server_s_words_are_one_line(words: tuple[str, ...]) -> None:
    done = run(*words, store="postgresql://127.0.0.1:1/x")
    assert done.exit_code == 3
    assert "\\n" not in done.output
    assert "\t" not in done.output
    [line] = [line for line in done.output.splitlines() if "refused" in line]
    assert "Is the server running" in line


def test_a_redis_that_evicts_and_forgets() -> None:
    arguments = ("--appendonly", "no", "--maxmemory-policy", "allkeys-lru")
    with needed("redis", lambda: RedisServer(*arguments)) as server:
        found = by_title(run_json("doctor", store=server.url, status=1))
        assert [found[name]["level"] for name in ("eviction", "persistence")] == ["problem", "problem"]
        assert "noeviction" in found["eviction"]["fix"]
        assert "appendonly yes" in found["persistence"]["fix"]
        accepted = f"{server.url}?accept_eviction=true&accept_no_persistence=true"
        found = by_title(run_json("doctor", store=accepted))
        assert [found[name]["level"] for name in ("eviction", "persistence")] == ["warning", "warning"]


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "postgresql://127.0.0.1:1/x"])
def test_a_server_that_is_not_there(url: str) -> None:
    found = by_title(run_json("doctor", store=url, status=3))
    assert found["connection"]["level"] == "problem"
    assert found["connection"]["fix"]


def test_a_file_is_only_looked_at(file_url: str, tmp_path: Path) -> None:
    found = by_title(run_json("doctor", store=file_url))
    assert "does not exist yet" in found["file"]["detail"]
    assert list(tmp_path.iterdir()) == []
    with closing(open_store(file_url)) as store:
        claimed(store, KEY)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert run_json("doctor", store=file_url)["ok"]
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_that_others_may_read(file_url: str, tmp_path: Path) -> None:
    with closing(open_store(file_url)) as store:
        claimed(store, KEY)
    (tmp_path / "records.db").chmod(0o644)
    found = by_title(run_json("doctor", store=f"{file_url}?synchronous=full"))
    assert found["file"]["level"] == "warning"
    assert found["file"]["fix"].startswith("chmod 600")
    assert found["synchronous"]["level"] == "ok"


def test_a_file_on_a_network_file_system(file_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nserver:/share {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(sqlite_doctor, "MOUNTS", str(mounts))
    found = by_title(run_json("doctor", store=file_url, status=1))
    assert "network file system (nfs4)" in found["place"]["detail"]
    assert "local disk" in found["place"]["fix"]


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ((3, 40, 1), "info"),
        ((3, 44, 5), "info"),
        ((3, 44, 6), "ok"),
        ((3, 45, 0), "info"),
        ((3, 50, 6), "info"),
        ((3, 50, 7), "ok"),
        ((3, 51, 2), "info"),
        ((3, 51, 3), "ok"),
        ((3, 53, 0), "ok"),
    ],
)
def test_an_sqlite_that_can_lose_writes(
    file_url: str, version: tuple[int, int, int], level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    found = by_title(run_json("doctor", store=file_url))["version"]
    assert found["level"] == level
    assert ("nothing else" in found["fix"]) == (level == "info")


def test_migrate_makes_the_tables_once(postgres_url: str) -> None:
    url = f"{postgres_url}?schema=made"
    first, second = run("migrate", store=url), run("migrate", store=url)
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert "Applied migration 1" in first.output
    assert "up to date" in second.output
    assert run_json("doctor", store=url)["ok"]


def test_the_printed_sql_is_all_that_is_needed(postgres_url: str, tmp_path: Path) -> None:
    url = f"{postgres_url}?schema=printed"
    printed = run("migrate", "--sql", store=url)
    assert printed.exit_code == 0
    with psycopg.connect(postgres_url) as connection:
        connection.execute(printed.stdout.encode())
    assert run_json("doctor", store=url)["ok"]
    file_url = f"sqlite:///{tmp_path}/by-hand.db"
    assert not (tmp_path / "by-hand.db").exists()
    connection_ = sqlite3.connect(tmp_path / "by-hand.db")
    connection_.executescript(run("migrate", "--sql", store=file_url).stdout)
    connection_.close()
    with closing(open_store(file_url)) as store:
        claimed(store, KEY)


def test_redis_has_nothing_to_migrate(redis_url: str) -> None:
    done = run("migrate", store=redis_url)
    assert (done.exit_code, "nothing to migrate" in done.output) == (0, True)
