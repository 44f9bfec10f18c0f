"""PostgreSQL: a server of our own, or one that is there already."""

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from servers import binaries
from servers.process import Server


class Postgres:
    """A running PostgreSQL, known by the URL of a database whose user may create others."""

    def __init__(self, url: str) -> None:
        self.url = url

    def create_database(self, name: str) -> str:
        self._execute("CREATE DATABASE {}", name)
        return with_database(self.url, name)

    def drop_database(self, name: str) -> None:
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def _execute(self, statement: str, name: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(sql.Identifier(name)))


class PostgresServer(Server, Postgres):
    """Durable as in production (fsync is on), open to everybody on this machine. `settings` are `name=value`."""

    stop_signal = signal.SIGINT  # "fast": does not wait for clients to leave
    refuses_root = True
    _model: ClassVar[Path | None] = None

    def __init__(self, *settings: str) -> None:
        self._program = binaries.reachable(binaries.require("postgres"))
        self.settings = settings
        Server.__init__(self)
        Postgres.__init__(self, f"postgresql://postgres@127.0.0.1:{self.port}/postgres")

    def prepare(self) -> None:
        """The first one of this process takes a second and is kept; whoever comes later begins with a copy."""
        model = PostgresServer._model
        if model is None:
            PostgresServer._model = model = Path(tempfile.mkdtemp(prefix="semel-postgres-"))
            atexit.register(shutil.rmtree, model, ignore_errors=True)
            if user := self._user():
                os.chown(model, user.pw_uid, user.pw_gid)
            options = ("--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale", "--no-sync")
            self.run([self._program.with_name("initdb"), *options, f"--pgdata={model / 'data'}"])
        self.run(["cp", "-R", "-p", model / "data", self.folder / "data"])

    def command(self) -> Sequence[str | Path]:
        settings = (
            "listen_addresses=127.0.0.1",
            f"port={self.port}",
            f"unix_socket_directories={self.folder}",
            "max_connections=200",
            *self.settings,
        )
        return [self._program, "-D", self.folder / "data", *(f"--{setting}" for setting in settings)]

    def probe(self) -> None:
        psycopg.connect(self.url, connect_timeout=2).close()


class PostgresStandby(PostgresServer):
    """A copy of `primary` that follows it. Whether commits wait for it is up to the primary's settings."""

    def __init__(self, primary: PostgresServer, name: str = "standby") -> None:
        super().__init__(*primary.settings)
        self._primary = primary
        self._name = name

    def prepare(self) -> None:
        follow = f"host=127.0.0.1 port={self._primary.port} user=postgres application_name={self._name}"
        copy = ("--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf", "--no-sync")
        place = f"--pgdata={self.folder / 'data'}"
        self.run([self._program.with_name("pg_basebackup"), f"--dbname={follow}", place, *copy])


def with_database(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def database_of(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")
