"""PgBouncer in transaction mode in front of a PostgreSQL: the pooler that breaks whoever keeps session state."""

import signal
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from servers import binaries
from servers.postgres import Postgres, database_of, with_database
from servers.process import Server


class Bouncer:
    """A running PgBouncer, known by the URL of any database behind it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def url_for(self, database_url: str) -> str:
        """The way to a database of the PostgreSQL behind it."""
        return with_database(self.url, database_of(database_url))


class PgBouncer(Server, Bouncer):
    """Default settings but for the pool mode. It connects as the upstream's user and lets everybody in."""

    stop_signal = signal.SIGTERM  # at once, without waiting for clients
    refuses_root = True

    def __init__(self, upstream: Postgres, pool_mode: str = "transaction") -> None:
        self._pool_mode = pool_mode
        self._program = binaries.require("pgbouncer")
        self._upstream = urlsplit(upstream.url)
        Server.__init__(self)
        Bouncer.__init__(self, with_database(f"postgresql://postgres@127.0.0.1:{self.port}", database_of(upstream.url)))

    def prepare(self) -> None:
        behind = {
            "host": self._upstream.hostname,
            "port": self._upstream.port,
            "user": self._upstream.username,
            "password": self._upstream.password,
        }
        target = " ".join(f"{name}={value}" for name, value in behind.items() if value)
        lines = (
            "[databases]",
            f"* = {target}",
            "[pgbouncer]",
            "listen_addr = 127.0.0.1",
            f"listen_port = {self.port}",
            "unix_socket_dir =",
            "auth_type = any",
            f"pool_mode = {self._pool_mode}",
        )
        (self.folder / "pgbouncer.ini").write_text("\n".join(lines) + "\n")

    def command(self) -> Sequence[str | Path]:
        return [self._program, self.folder / "pgbouncer.ini"]

    def probe(self) -> None:
        psycopg.connect(self.url, connect_timeout=2).close()
