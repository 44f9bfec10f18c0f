"""Applications on real servers, in processes of their own, and a client that sends exact bytes."""

import contextlib
import json
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path

import pytest

from semel import open_store
from semel.store import Migratable
from servers.process import Server

HERE = Path(__file__).parent
SERVERS: dict[str, list[str]] = {
    "uvicorn-h11": ["uvicorn", "--http", "h11", "--log-level", "warning", "--port", "{port}", "{app}"],
    "uvicorn-httptools": ["uvicorn", "--http", "httptools", "--log-level", "warning", "--port", "{port}", "{app}"],
    "uvicorn-root": ["uvicorn", "--root-path", "/api", "--log-level", "warning", "--port", "{port}", "{app}"],
    "uvicorn-impatient": [
        *("uvicorn", "--timeout-graceful-shutdown", "1", "--log-level", "warning", "--port", "{port}", "{app}"),
    ],
    "uvicorn-workers": [
        *("uvicorn", "--workers", "2", "--lifespan", "off", "--log-level", "warning", "--port", "{port}", "{app}"),
    ],
    "hypercorn": ["hypercorn", "--bind", "127.0.0.1:{port}", "{app}"],
    "granian": [
        "granian",
        "--interface",
        "asgi",
        "--host",
        "127.0.0.1",
        "--port",
        "{port}",
        "--log-level",
        "warning",
        "{app}",
    ],
    "wsgiref": ["apps.on_wsgiref", "{port}", "{app}"],
    "gateway": ["apps.on_gateway", "{port}", "{app}"],
    "waitress": ["waitress", "--host", "127.0.0.1", "--port", "{port}", "--threads", "16", "{app}"],
    "gunicorn": [
        "gunicorn",
        "--bind",
        "127.0.0.1:{port}",
        "--worker-class",
        "gthread",
        "--threads",
        "16",
        "--no-control-socket",
        "{app}",
    ],
}
OF_THE_MOMENT = ("date", "server", "connection", "keep-alive", "transfer-encoding", "idempotent-replayed")


@dataclass
class Reply:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for header, value in self.headers if header.lower() == name), None)

    @property
    def replayed(self) -> bool:
        return self.header("idempotent-replayed") == "true"

    @property
    def problem(self) -> str:
        kind: str = json.loads(self.body)["type"].rpartition("#")[2]
        return kind

    @property
    def lasting(self) -> tuple[int, list[tuple[str, str]], bytes]:
        """What must be the same in every answer for a key."""
        kept = [
            (name.lower(), value) for name, value in self.headers if name.lower() not in (*OF_THE_MOMENT, "set-cookie")
        ]
        return self.status, kept, self.body


class AppServer(Server):
    """One server process with one application."""

    def __init__(self, app: str, server: str, settings: dict[str, str]) -> None:
        super().__init__()
        self._app = f"apps.{app}:app"
        self._server = server
        self._settings = settings | {"PYTHONPATH": f"{HERE}:{HERE.parent}", "PYTHONUNBUFFERED": "1"}

    def prepare(self) -> None:
        """Nothing is needed."""

    def command(self) -> Sequence[str | Path]:
        words = [word.format(port=self.port, app=self._app) for word in SERVERS[self._server]]
        return ["env", *(f"{name}={value}" for name, value in self._settings.items()), sys.executable, "-m", *words]

    def stop(self) -> None:
        if self._server == "granian" and self._process is not None:
            self.kill()  # its supervisor at times misses the signal to stop, with any application
        super().stop()

    def ask_to_stop(self) -> None:
        """SIGTERM to the process that was started, as supervisors send it; it tells its own children."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def probe(self) -> None:
        assert self.get("/nothing-here").status

    def get(self, path: str, *lines: str) -> Reply:
        return self.send(request("GET", path, b"", lines))

    def post(self, path: str, key: str | None, body: bytes = b"{}", *lines: str) -> Reply:
        named = [] if key is None else [f"Idempotency-Key: {key}"]
        return self.send(request("POST", path, body, [*named, *lines]))

    def send(self, data: bytes) -> Reply:
        with self.open() as connection:
            connection.sendall(data)
            return read(connection)

    def wait_for_log(self, text: str) -> None:
        """Some frameworks log from a thread of their own, a moment after the answer."""
        until_s = time.monotonic() + 30
        while text not in (said := self.log.read_text(errors="replace")):
            assert time.monotonic() < until_s, f"{text!r} is not in the log: {said}"
            time.sleep(0.02)

    @contextlib.contextmanager
    def open(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            yield connection


class Deployment:
    """Some server processes on one store, one ledger and one clock."""

    def __init__(self, app: str, server: str, store: str | None = None, *, processes: int = 1, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="semel-wire-"))
        named = {f"SEMEL_TEST_{name.upper()}": value for name, value in settings.items()}
        named |= {
            "SEMEL_TEST_FOLDER": str(self.folder),
            "SEMEL_TEST_STORE": store or f"sqlite:///{self.folder}/semel.db",
        }
        self.servers = [AppServer(app, server, named) for _ in range(processes)]

    def __enter__(self) -> "Deployment":
        try:
            with ThreadPoolExecutor() as threads:
                list(threads.map(lambda server: server.start(), self.servers))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda server: server.stop(), self.servers))
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def server(self) -> AppServer:
        return self.servers[0]

    def effects(self, key: str) -> int:
        ledger = self.folder / "ledger"
        return sum(line.split()[0] == key for line in ledger.read_text().splitlines()) if ledger.exists() else 0

    def wait_for_effect(self, key: str, count: int = 1) -> None:
        deadline = time.monotonic() + 20
        while self.effects(key) < count:
            assert time.monotonic() < deadline, f"no effect for {key}"
            time.sleep(0.005)

    def let_go(self) -> None:
        (self.folder / "go").touch()

    def hold(self) -> None:
        (self.folder / "go").unlink(missing_ok=True)

    def move_clock(self, by_ms: int) -> None:
        place = self.folder / "clock"
        moved_ms = int(place.read_text()) if place.exists() else 0
        (self.folder / "clock.new").write_text(str(moved_ms + by_ms))
        (self.folder / "clock.new").rename(place)


def request(method: str, path: str, body: bytes, lines: Sequence[str] = ()) -> bytes:
    head = [f"{method} {path} HTTP/1.1", "Host: test", "Connection: close", *lines]
    if method == "POST" and not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in lines):
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body


def read(connection: socket.socket) -> Reply:
    answer = HTTPResponse(connection)
    answer.begin()
    return Reply(answer.status, answer.getheaders(), answer.read())


def store_url(name: str, fixtures: pytest.FixtureRequest) -> str | None:
    """The URL of a store, ready to be used; None is a SQLite file in the deployment's folder."""
    if name == "sqlite":
        return None
    url: str = "memory://" if name == "memory" else fixtures.getfixturevalue(f"{name}_url")
    with contextlib.closing(open_store(url)) as store:
        if isinstance(store, Migratable):
            store.migrate()
    return url
