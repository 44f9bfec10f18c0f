"""What every driver for MariaDB asks of its connection before the first statement."""

from __future__ import annotations

from typing import Any

from semel.connections import autocommit
from semel.errors import StoreMisconfigured
from semel.stores.mariadb.versions import OLDEST, version_of

WAY_OUT = "Leave autocommit off, or call connection.begin() first."
IN_TRANSACTION = 1
"""SERVER_STATUS_IN_TRANS of the protocol."""


def check(connection: Any, way_out: str = WAY_OUT) -> None:
    """`connection` is one of PyMySQL's or aiomysql's, which know this from the server's last reply."""
    check_server(connection.get_server_info())
    if connection.get_autocommit() and not connection.server_status & IN_TRANSACTION:
        raise autocommit(way_out)


def check_server(told: str) -> None:
    """`told` is the version that a server greets with."""
    version = version_of(told)
    if version is None:
        raise StoreMisconfigured(
            f"semel needs INSERT … RETURNING in a transaction of yours, which MySQL does not have: this server is "
            f"{told!r}. It works on MariaDB, PostgreSQL and SQLite."
        )
    if version < OLDEST:
        raise StoreMisconfigured(f"semel needs MariaDB 10.6 or later: this server is {told!r}")
