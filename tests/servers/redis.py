"""Redis (or Valkey): a server of our own, or one that is there already."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import redis

from servers import binaries
from servers.process import Server

DURABLE = ("--appendonly", "yes", "--save", "", "--maxmemory-policy", "noeviction")

EMPTY_S = 120.0
"""Five million keys take longer to delete than a reply may take by default."""


def ask_server(port: int, *words: Any) -> Any:
    """Send one command to a server here, on a connection of its own. The reply is as the server wrote it."""
    connection: Any = redis.Connection(  # type: ignore[no-untyped-call]
        host="127.0.0.1", port=port, socket_timeout=5, protocol=2
    )
    try:
        connection.send_command(*words)
        return connection.read_response()
    finally:
        connection.disconnect()


def await_replicas(port: int, replicas: int = 1) -> None:
    """Wait until so many replicas have all that the server has. WAIT counts from the last command of its connection."""
    connection: Any = redis.Connection(  # type: ignore[no-untyped-call]
        host="127.0.0.1", port=port, socket_timeout=30, protocol=2
    )
    try:
        for words in (("PING",), ("WAIT", replicas, 20_000)):
            connection.send_command(*words)
            found = connection.read_response()
        assert int(found) >= replicas, f"{found} of {replicas} replicas"
    finally:
        connection.disconnect()


class Redis:
    """A running Redis, known by its URL."""

    def __init__(self, url: str) -> None:
        self.url = url

    @contextmanager
    def empty_database(self, offset: int = 0) -> Iterator[str]:
        """The URL's database, or one further on. It must be empty before (it may be somebody's) and is so after."""
        parts = urlsplit(self.url)
        number = int(parts.path.removeprefix("/") or 0) + offset
        url = urlunsplit(parts._replace(path=f"/{number}"))
        with redis.Redis.from_url(url, socket_timeout=EMPTY_S) as client:
            assert client.dbsize() == 0, f"{url} is not empty: refusing to use it for tests"
            yield url
            client.flushdb()


class RedisServer(Server, Redis):
    """Keeps what it acknowledged, unless `arguments` (as on its command line) say otherwise: the last one counts."""

    def __init__(self, *arguments: str) -> None:
        self._program = binaries.require("redis")
        self._arguments = arguments
        Server.__init__(self)
        Redis.__init__(self, f"redis://127.0.0.1:{self.port}/0")

    def prepare(self) -> None:
        pass

    def command(self) -> Sequence[str | Path]:
        place = ("--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder))
        return [self._program, *place, *DURABLE, *self._arguments]

    def stop(self) -> None:
        """Its data goes, too. A replica that still writes its first file would refuse to end in good order."""
        self.kill()
        super().stop()

    def probe(self) -> None:
        with redis.Redis.from_url(self.url, socket_timeout=2) as client:
            client.ping()
