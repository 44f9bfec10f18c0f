"""Looks at the server. Only its words are read: nothing is written, and a right is asked for by `EXPLAIN`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from semel.core.effects import Effect
from semel.errors import StoreMisconfigured
from semel.store import Finding
from semel.stores import examination
from semel.stores.mariadb.packets import Packet, packet
from semel.stores.mariadb.queries import CLOCK, TABLE
from semel.stores.mariadb.schema import MIGRATIONS
from semel.stores.mariadb.settings import MariadbSettings
from semel.stores.sql.migrations import NEWEST

Run = Callable[[Effect[Any]], Any]
ASKED = (
    "version",
    "read_only",
    "innodb_flush_log_at_trx_commit",
    "innodb_doublewrite",
    "log_bin",
    "sync_binlog",
    "max_allowed_packet",
    "rpl_semi_sync_master_enabled",
    "wsrep_on",
)
COUNTED = ("Slaves_connected", "Rpl_semi_sync_master_clients")
PACKET_MIN = 4 * 1024 * 1024
"""An answer of 1 MiB, the most that is stored by default, takes a packet of twice its size."""
FOUND_TABLE = "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'semel_schema'"
RIGHTS = (
    f"EXPLAIN SELECT digest FROM {TABLE} WHERE digest = ''",
    f"EXPLAIN INSERT INTO {TABLE} SELECT * FROM {TABLE} WHERE digest = ''",
    f"EXPLAIN UPDATE {TABLE} SET state = 0 WHERE digest = ''",
    f"EXPLAIN DELETE FROM {TABLE} WHERE digest = ''",
)
PROMISE = Finding(
    "promise",
    "info",
    "at-most-once everywhere; a failover keeps what your database keeps: an asynchronous replica may miss the last "
    "commits",
)


def examine(settings: MariadbSettings, run: Run) -> Iterator[Finding]:
    server = _told(run, "VARIABLES", ASKED)
    yield Finding("connection", "ok", f"{settings.shown} answers")
    yield Finding("version", "ok", f"MariaDB {server['version']}")
    yield _role(server["read_only"])
    found = _schema(run)
    yield found
    yield _log(server["innodb_flush_log_at_trx_commit"])
    yield _doublewrite(server["innodb_doublewrite"])
    yield _packet(int(server["max_allowed_packet"]))
    if server.get("wsrep_on", "OFF") == "ON":
        yield GALERA
    yield _replication(server, _told(run, "STATUS", COUNTED))
    yield examination.clock_skew(lambda: int(_first(run, f"SELECT {CLOCK}")[0][0]))
    yield PROMISE
    if found.level == "ok":
        yield examination.latency(lambda: _first(run, f"SELECT 1 FROM {TABLE} WHERE digest = ''"))
        yield _rights(run)  # last: a right that is missing ends the connection


def _told(run: Run, what: str, names: tuple[str, ...]) -> Mapping[str, str]:
    listed = ", ".join(f"'{name}'" for name in names)
    return dict(_first(run, f"SHOW GLOBAL {what} WHERE Variable_name IN ({listed})"))


def _first(run: Run, sql: str) -> Any:
    question: Packet = packet(sql)
    return run(question)[0]


def _role(read_only: str) -> Finding:
    if read_only == "OFF":
        return Finding("role", "ok", "a primary: it takes writes")
    return Finding("role", "problem", "this server is read-only: a replica takes no claims", "name the primary")


def _schema(run: Run) -> Finding:
    rows = _first(run, NEWEST) if _first(run, FOUND_TABLE) else ()
    return examination.schema(rows[0] if rows else None, MIGRATIONS[-1].number)


def _rights(run: Run) -> Finding:
    try:
        run(packet(*RIGHTS))
    except StoreMisconfigured as error:
        fix = f"GRANT SELECT, INSERT, UPDATE, DELETE ON {TABLE} TO this user"
        return Finding("rights", "problem", str(error), fix)
    return Finding("rights", "ok", "this user may SELECT, INSERT, UPDATE, DELETE")


def _log(value: str) -> Finding:
    name = "innodb_flush_log_at_trx_commit"
    if value in ("1", "3"):
        return Finding(name, "ok", f"{name} is {value}: what is acknowledged is on disk")
    risk = "a crash of the server or" if value == "0" else "a crash"
    return Finding(
        name,
        "problem",
        f"{name} is {value}: {risk} of the machine loses the keys of about the last second, which were acknowledged, "
        "and their operations can run again",
        f"SET GLOBAL {name} = 1, and the same in the server's configuration file",
    )


def _doublewrite(value: str) -> Finding:
    if value != "OFF":
        return Finding("innodb_doublewrite", "ok", f"innodb_doublewrite is {value}")
    return Finding(
        "innodb_doublewrite",
        "problem",
        "innodb_doublewrite is OFF: a crash of the machine can damage pages, unless the disk writes them whole",
        "innodb_doublewrite = ON in the server's configuration file",
    )


def _packet(size: int) -> Finding:
    if size >= PACKET_MIN:
        return Finding("max_allowed_packet", "ok", f"max_allowed_packet is {size:,}")
    return Finding(
        "max_allowed_packet",
        "problem",
        f"max_allowed_packet is {size:,}: an answer of more than {size // 2 - 1024:,} bytes cannot be stored, although "
        "its operation has run",
        "SET GLOBAL max_allowed_packet = 16777216, and the same in the server's configuration file",
    )


GALERA = Finding(
    "cluster",
    "warning",
    "this server is a node of a Galera cluster, on which the store was not tested",
    "let all processes name the same node",
)


def _replication(server: Mapping[str, str], status: Mapping[str, str]) -> Finding:
    """Whether a failover keeps what was acknowledged."""
    replicas, synchronous = (int(status.get(name, "0")) for name in COUNTED)
    if server.get("rpl_semi_sync_master_enabled") == "ON" and synchronous:
        return Finding(
            "replication",
            "warning",
            f"semi-synchronous, {synchronous} connected: what is acknowledged is on a replica, too, until none answers "
            "for rpl_semi_sync_master_timeout; then the server goes on without",
            "set rpl_semi_sync_master_timeout so high that it means for ever, and rpl_semi_sync_master_wait_point = "
            "AFTER_SYNC",
        )
    if replicas:
        return Finding(
            "replication",
            "warning",
            f"{replicas} asynchronous {'replica' if replicas == 1 else 'replicas'}: a failover loses the last keys "
            "that were acknowledged, and their operations can run again",
            "use semi-synchronous replication (rpl_semi_sync_master_enabled)",
        )
    if server["log_bin"] == "ON" and server["sync_binlog"] != "1":
        return Finding(
            "replication",
            "warning",
            f"sync_binlog is {server['sync_binlog']}: after a crash of the machine, a replica may lack keys that were "
            "acknowledged",
            "SET GLOBAL sync_binlog = 1, and the same in the server's configuration file",
        )
    return Finding(
        "replication",
        "info",
        "no replica is connected: if one is to take over one day, make it semi-synchronous, or the last keys are lost",
    )
