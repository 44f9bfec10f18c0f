"""Where the stores of a run are: private servers, or those that the tests' environment variables name."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from semel import open_store
from semel.store import Migratable
from servers.postgres import Postgres, PostgresServer, database_of
from servers.process import Server
from servers.redis import Redis, RedisServer

STORES = ("memory", "sqlite", "postgres", "redis")
DURABLE = STORES[1:]
TITLES = {"memory": "memory", "sqlite": "SQLite", "postgres": "PostgreSQL", "redis": "Redis", "": ""}


@dataclass(slots=True)
class Places:
    """Makes URLs: of a new file, of a new database, and of the one Redis."""

    folder: Path
    postgres: Postgres
    redis_url: str
    databases: list[str] = field(default_factory=list)
    stoppable: dict[str, Server | None] = field(default_factory=lambda: {"sqlite": None})
    """Which of them are ours, so that they can be stopped; a file has no server."""

    def url(self, store: str, *, fresh: str = "") -> str:
        """A place of the store's own; the same one for the same `fresh`."""
        match store:
            case "memory":
                return "memory://"
            case "sqlite":
                return f"sqlite:///{self.folder}/{fresh or 'bench'}.db"
            case "redis":
                return self.redis_url
            case _:
                return self.postgres.url

    def fresh_database(self) -> str:
        """A PostgreSQL database with the tables of semel, and nothing in them."""
        url = self.postgres.create_database(f"bench_{uuid.uuid4().hex[:12]}")
        self.databases.append(url)
        migrate(url)
        return url

    def forget(self) -> None:
        for url in self.databases:
            self.postgres.drop_database(database_of(url))

    def fresh_file(self) -> Path:
        return self.folder / f"{uuid.uuid4().hex}.db"


@contextmanager
def places() -> Iterator[Places]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="semel-bench-")))
        given = os.environ.get("SEMEL_TEST_POSTGRES_URL")
        postgres = Postgres(given) if given else stack.enter_context(PostgresServer("max_connections=400"))
        migrate(postgres.url)
        given = os.environ.get("SEMEL_TEST_REDIS_URL")
        redis = Redis(given) if given else stack.enter_context(RedisServer())
        where = Places(folder, postgres, stack.enter_context(redis.empty_database()))
        ours = {"postgres": postgres, "redis": redis}
        where.stoppable |= {name: server for name, server in ours.items() if isinstance(server, Server)}
        stack.callback(where.forget)
        yield where


def migrate(url: str) -> None:
    store = open_store(url)
    assert isinstance(store, Migratable)
    store.migrate()
    store.close()


def path_of(url: str) -> Path:
    """The file that SQLite's URL names."""
    return Path(url.removeprefix("sqlite:///"))
