"""NATS with JetStream: a server of our own, or one that is there already."""

import socket
from collections.abc import Sequence
from pathlib import Path

from servers import binaries
from servers.process import Server


class Nats:
    """A running NATS with JetStream, known by its URL."""

    def __init__(self, url: str) -> None:
        self.url = url


class NatsServer(Server, Nats):
    """Its streams are files in its folder: a restart finds them. `arguments` are on its command line."""

    def __init__(self, *arguments: str) -> None:
        self._program = binaries.require("nats")
        self._arguments = arguments
        Server.__init__(self)
        Nats.__init__(self, f"nats://127.0.0.1:{self.port}")

    def prepare(self) -> None:
        pass

    def command(self) -> Sequence[str | Path]:
        place = ("--addr", "127.0.0.1", "--port", str(self.port))
        return [self._program, *place, "--jetstream", "--store_dir", self.folder / "data", *self._arguments]

    def probe(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
            greeting = connection.recv(65_536)
            assert greeting.startswith(b"INFO"), f"not the greeting of NATS: {greeting!r}"
            assert b'"jetstream":true' in greeting, "JetStream is not ready"
