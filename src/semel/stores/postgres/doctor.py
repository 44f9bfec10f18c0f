"""Looks at the server in one read-only transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from semel.core.effects import Effect
from semel.store import Finding
from semel.stores import examination
from semel.stores.postgres import horizon, upkeep
from semel.stores.postgres.queries import NOW, TABLE
from semel.stores.postgres.schema import MIGRATIONS, quoted
from semel.stores.postgres.settings import PostgresSettings
from semel.stores.sql.statements import Rows, Statement

Run = Callable[[Effect[Any]], Rows]
ASKED = (
    "server_version",
    "server_encoding",
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "synchronous_standby_names",
    *upkeep.ASKED,
)
STANDBYS = """
SELECT count(*), count(sync_state), count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) FROM pg_stat_replication"""
RELOAD = "SELECT pg_reload_conf();"
RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")
PROMISE = Finding(
    "promise",
    "info",
    "at-most-once everywhere, and exactly-once where record and business rows share a transaction; "
    "a failover keeps what your database keeps: an asynchronous standby may miss the last commits",
)


def examine(settings: PostgresSettings, run: Run) -> Iterator[Finding]:
    run(Statement("SET TRANSACTION READ ONLY"))
    if settings.schema:
        run(Statement(f"SET LOCAL search_path = {quoted(settings.schema)}"))
    wanted = ", ".join(f"current_setting('{name}')" for name in ASKED)
    [row] = run(Statement(f"SELECT {wanted}, pg_is_in_recovery()"))
    server: dict[str, Any] = dict(zip((*ASKED, "standby"), row, strict=True))
    yield Finding("connection", "ok", f"{settings.shown} answers")
    yield Finding("version", "ok", f"PostgreSQL {server['server_version']}")
    yield _role(standby=server["standby"])
    yield _encoding(server["server_encoding"])
    found = _schema(run)
    yield found
    if found.level == "ok":
        yield _rights(run)
        yield examination.latency(lambda: run(Statement(f"SELECT 1 FROM {TABLE} WHERE digest = ''")))
        yield from upkeep.examine(run, server)
    yield _durable("fsync", server["fsync"], "a crash of the machine can lose or damage everything")
    yield _durable("full_page_writes", server["full_page_writes"], "a crash of the machine can damage pages")
    yield _synchronous_commit(server["synchronous_commit"])
    if not server["standby"]:
        yield _replication(server["synchronous_standby_names"], *run(Statement(STANDBYS))[0])
        yield from horizon.examine(run)
    yield examination.clock_skew(lambda: int(run(Statement(f"SELECT {NOW.format('NULL')}"))[0][0]))
    yield PROMISE


def _role(*, standby: bool) -> Finding:
    if standby:
        return Finding(
            "role",
            "problem",
            "this is a standby, which takes no writes",
            "name the primary, or add target_session_attrs=read-write and all hosts to the URL",
        )
    return Finding("role", "ok", "a primary: it takes writes")


def _encoding(name: str) -> Finding:
    if name == "UTF8":
        return Finding("encoding", "ok", "the database has the encoding UTF8")
    return Finding("encoding", "problem", f"the database has the encoding {name}", "create it with ENCODING 'UTF8'")


def _schema(run: Run) -> Finding:
    [(book,)] = run(Statement("SELECT to_regclass('semel_schema')::text"))
    newest = "SELECT number, readable_from FROM semel_schema ORDER BY number DESC LIMIT 1"
    rows = run(Statement(newest)) if book else []
    return examination.schema(rows[0] if rows else None, MIGRATIONS[-1].number)


def _rights(run: Run) -> Finding:
    asked = ", ".join(f"has_table_privilege('{TABLE}', '{right}')" for right in RIGHTS)
    [row] = run(Statement(f"SELECT {asked}"))
    missing = [right for right, granted in zip(RIGHTS, row, strict=True) if not granted]
    if missing:
        fix = f"GRANT {', '.join(missing)} ON {TABLE} TO CURRENT_USER, as the owner of the table"
        return Finding("rights", "problem", f"this user lacks {', '.join(missing)} on {TABLE}", fix)
    return Finding("rights", "ok", f"this user may {', '.join(RIGHTS)}")


def _durable(name: str, value: str, risk: str) -> Finding:
    if value == "on":
        return Finding(name, "ok", f"{name} is on")
    fix = f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();"
    return Finding(name, "problem", f"{name} is {value}: {risk}, also keys that were acknowledged", fix)


def _synchronous_commit(value: str) -> Finding:
    if value in ("on", "remote_apply"):
        return Finding("synchronous_commit", "ok", f"synchronous_commit is {value}")
    return Finding(
        "synchronous_commit",
        "ok",
        f"synchronous_commit is {value} by default; the store raises it to on in every statement that writes",
    )


def _replication(names: str, connected: int, shown: int, synchronous: int) -> Finding:
    """Whether a failover keeps what was acknowledged. Without pg_read_all_stats a user sees only how many there are."""
    hidden = connected > 0 and shown == 0
    if names and not synchronous and not hidden:
        return Finding(
            "replication",
            "problem",
            f"synchronous_standby_names is {names!r}, and no such standby is connected: no commit ends, so every claim "
            "is refused after timeout_ms",
            f"bring the standby back, or do without it: ALTER SYSTEM RESET synchronous_standby_names; {RELOAD}",
        )
    if names:
        detail = f"synchronous_standby_names is {names!r}: what is acknowledged is on a standby, too"
        return Finding("replication", "ok", f"{detail} (this user may not see which)" if hidden else detail)
    if connected:
        return Finding(
            "replication",
            "warning",
            f"{connected} asynchronous {'standby' if connected == 1 else 'standbys'}: a failover loses the last keys "
            "that were acknowledged, and their operations can run again",
            f"ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'; {RELOAD} (with two standbys, or commits wait "
            "whenever the only one is away)",
        )
    return Finding(
        "replication",
        "info",
        "no standby is connected: if one is to take over one day, make it synchronous, or the last keys are lost",
    )
