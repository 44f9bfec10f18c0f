"""MariaDB: a server of our own, or one that is there already."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import pymysql

from servers import binaries
from servers.needing import needed
from servers.postgres import with_database
from servers.process import Server

# The log file must have one size from the beginning: InnoDB would make it again otherwise.
SMALL = ("--innodb-log-file-size=16M", "--innodb-buffer-pool-size=64M", "--skip-name-resolve")
# What was committed survives a kill, and not a power cut: nobody here waits for the disk.
HASTY = ("--innodb-flush-log-at-trx-commit=2", "--innodb-flush-method=nosync", "--innodb-doublewrite=0")


class Mariadb:
    """A running MariaDB, known by the URL of a user who may create databases."""

    def __init__(self, url: str) -> None:
        self.url = url

    def create_database(self, name: str) -> str:
        self._execute(f"CREATE DATABASE `{name}`")
        return with_database(self.url, name)

    def drop_database(self, name: str) -> None:
        self._execute(f"DROP DATABASE IF EXISTS `{name}`")

    def _execute(self, statement: str) -> None:
        with closing(pymysql.connect(**arguments(self.url))) as connection, connection.cursor() as cursor:
            cursor.execute(statement)


class MariadbServer(Server, Mariadb):
    """Debian's character set and collation, open to root without a password. `settings` are on its command line."""

    refuses_root = True
    _model: ClassVar[Path | None] = None

    def __init__(self, *settings: str) -> None:
        self._program = binaries.require("mariadb")
        self._settings = settings
        Server.__init__(self)
        Mariadb.__init__(self, f"mysql://root@127.0.0.1:{self.port}")

    def prepare(self) -> None:
        """The first one of this process takes two seconds and is kept; whoever comes later begins with a copy."""
        model = MariadbServer._model
        if model is None:
            MariadbServer._model = model = Path(tempfile.mkdtemp(prefix="semel-mariadb-"))
            atexit.register(shutil.rmtree, model, ignore_errors=True)
            if user := self._user():
                os.chown(model, user.pw_uid, user.pw_gid)
            options = ("--auth-root-authentication-method=normal", "--skip-test-db", tmpdir(model), *SMALL, *HASTY)
            install = binaries.require("mariadb-install-db")
            self.run([install, "--no-defaults", f"--datadir={model / 'data'}", *options])
        self.run(["cp", "-R", "-p", model / "data", self.folder / "data"])

    def command(self) -> Sequence[str | Path]:
        place = ("--bind-address=127.0.0.1", f"--port={self.port}", f"--socket={self.folder / 'socket'}")
        letters = ("--character-set-server=utf8mb4", "--collation-server=utf8mb4_general_ci")
        data = (f"--datadir={self.folder / 'data'}", tmpdir(self.folder))
        return [self._program, "--no-defaults", *data, *place, *letters, *SMALL, *HASTY, *self._settings]

    def probe(self) -> None:
        pymysql.connect(**arguments(self.url), connect_timeout=2).close()


def tmpdir(folder: Path) -> str:
    """Not the one of all: whoever starts there removes the temporary tables of the others, in use or not."""
    return f"--tmpdir={folder}"


def arguments(url: str) -> dict[str, Any]:
    """What `connect` of PyMySQL's and aiomysql's takes, from a URL."""
    parts = urlsplit(url)
    return {
        "host": parts.hostname,
        "port": parts.port or 3306,
        "user": parts.username,
        "password": unquote(parts.password or ""),
        "database": parts.path.removeprefix("/") or None,
    }


@contextmanager
def running_mariadb() -> Iterator[Mariadb]:
    """The server that `SEMEL_TEST_MARIADB_URL` names, or one of our own."""
    if url := os.environ.get("SEMEL_TEST_MARIADB_URL"):
        yield Mariadb(url)
    else:
        with needed("mariadb", MariadbServer) as server:
            yield server
