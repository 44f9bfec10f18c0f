"""dynalite, an independent implementation of DynamoDB for Node, which is stricter than moto's.

It keeps its tables in memory, returns no item when a condition fails, and does not know TTL and backups.
"""

from collections.abc import Sequence
from pathlib import Path

from servers import binaries
from servers.moto import AwsServer

SURVIVE = "survive.js"
"""Without it, dynalite ends when a client resets a connection in the middle of a request."""


class DynaliteServer(AwsServer):
    """A restart finds what was acknowledged only with `path`, a folder of LevelDB files."""

    def __init__(self, path: Path | None = None) -> None:
        self._program = binaries.require("dynalite")
        self._node = binaries.require("node")
        self._path = path
        super().__init__()

    def prepare(self) -> None:
        (self.folder / SURVIVE).write_text("process.on('uncaughtException', error => console.error(error))\n")

    def command(self) -> Sequence[str | Path]:
        place = ["--host", "127.0.0.1", "--port", str(self.port)]
        at_once = [word for name in ("create", "delete", "update") for word in (f"--{name}TableMs", "0")]
        kept = [] if self._path is None else ["--path", str(self._path)]
        return [self._node, "--require", self.folder / SURVIVE, self._program.resolve(), *place, *at_once, *kept]

    def probe(self) -> None:
        self.client("dynamodb").list_tables()
