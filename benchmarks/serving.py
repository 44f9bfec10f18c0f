"""Applications on uvicorn (one worker, httptools and uvloop), each in a process of its own, and what it did there.

Those on Django are on waitress: one process, too, with threads.
"""

from __future__ import annotations

import http.client
import json
import socket
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from benchmarks.on_django import ON_DJANGO
from servers.process import Server

FACTORY, THREADS = "benchmarks.apps:from_environment", 16
ROOT = Path(__file__).parent.parent
BODY = b'{"amount": 10}'
HELD = b'{"amount": 10, "hold": true}'


class AppServer(Server):
    """One contender, on a port of its own."""

    def __init__(self, who: str, store: str, url: str, *, workers: int = 1) -> None:
        super().__init__()
        self.who, self.store = who, store
        self._workers = workers
        self._settings = {
            "BENCH_WHO": who,
            "BENCH_STORE": store,
            "BENCH_URL": url,
            "PYTHONPATH": f"{ROOT}:{ROOT}/tests",
        }

    def prepare(self) -> None:
        """Nothing is needed."""

    def command(self) -> Sequence[str | Path]:
        settings = [f"{name}={value}" for name, value in self._settings.items()]
        words = self._waitress() if self.who in ON_DJANGO else self._uvicorn()
        return ["env", *settings, sys.executable, "-m", *words, FACTORY]

    def _uvicorn(self) -> list[str]:
        quiet = ("--log-level", "error", "--no-access-log", "--lifespan", "off")
        fast = ("--http", "httptools", "--loop", "uvloop", "--backlog", "2048", "--workers", str(self._workers))
        return ["uvicorn", *quiet, *fast, "--port", str(self.port), "--factory"]

    def _waitress(self) -> list[str]:
        room = ("--connection-limit=1000", "--backlog=2048", f"--threads={THREADS}")
        return ["waitress", *room, f"--listen=127.0.0.1:{self.port}", "--call"]

    def probe(self) -> None:
        socket.create_connection(("127.0.0.1", self.port), timeout=1).close()

    def effects(self) -> int:
        """How often the handler ran (in one worker)."""
        count: int = json.loads(self._ask("GET", "/effects")[1])["effects"]
        return count

    def held(self) -> bool:
        answer: bool = json.loads(self._ask("GET", "/effects")[1])["held"]
        return answer

    def let_go(self) -> None:
        self._ask("GET", "/let-go")

    def pay(self, keys: Iterable[str]) -> list[tuple[int, bytes]]:
        """One request for each key, one after the other."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        answers = []
        for key in keys:
            headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
            connection.request("POST", "/pay", body=BODY, headers=headers)
            answer = connection.getresponse()
            answers.append((answer.status, answer.read()))
        connection.close()
        return answers

    def megabytes(self) -> float:
        """The memory that is the process's own."""
        assert self._process is not None
        return float(psutil.Process(self._process.pid).memory_info().rss) / 1e6

    def _ask(self, method: str, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(method, path)
        answer = connection.getresponse()
        told = answer.status, answer.read()
        connection.close()
        return told
