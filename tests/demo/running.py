"""The demo as a user has it: the command, in a process of its own, and what it says on the wire."""

import http.client
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import psutil

from servers.process import Server

T = TypeVar("T")
PATIENCE_S = 60
COMMAND = [sys.executable, "-m", "semel", "demo"]


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def replayed(self) -> bool:
        return self.headers.get("idempotent-replayed") == "true"

    @property
    def problem(self) -> str:
        return str(self.json["type"]).rpartition("#")[2]


class Demo(Server):
    """`semel demo`, stopped by Ctrl-C. Each test has an account of its own."""

    stop_signal = signal.SIGINT

    def __init__(self, *options: str, data: Path | None = None) -> None:
        super().__init__()
        self.address = f"http://127.0.0.1:{self.port}"
        self._options = [*options, *(["--data", str(data)] if data else [])]

    def prepare(self) -> None:
        """Nothing is needed."""

    def command(self) -> Sequence[str | Path]:
        return [*COMMAND, "--port", str(self.port), "--no-open", *self._options]

    def probe(self) -> None:
        assert self.get("/bank").status == 200

    @property
    def process(self) -> psutil.Process:
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def worker(self) -> psutil.Process:
        """The worker, which may be starting just now."""
        return wait_for(lambda: next(iter(self.process.children()), None))

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, b"", headers)

    def pay(
        self, account: str, key: str | None, amount: int = 2500, *, path: str = "/payments", fault: str = ""
    ) -> Answer:
        headers = {"Account": account}
        if key is not None:
            headers["Idempotency-Key"] = key
        if fault:
            headers["Demo-Fault"] = fault
        return self.send("POST", path, json.dumps({"amount": amount}).encode(), headers)

    def resolve(self, account: str, key: str) -> Answer:
        return self.send("POST", "/operator/resolve", json.dumps({"key": key}).encode(), {"Account": account})

    def send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        with closing(self.connect()) as connection:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=PATIENCE_S)

    def paid(self, account: str, key: str) -> list[int]:
        """The amounts that left the account for a key: the bank's own file, through its window."""
        return [
            entry["amount"]
            for entry in self.get(f"/bank?account={account}").json["entries"]
            if entry["reference"] == key
        ]


class Watcher:
    """A browser's connection to the timeline."""

    def __init__(self, demo: Demo, account: str, last_id: str = "") -> None:
        self._connection = demo.connect()
        self._connection.request(
            "GET", f"/timeline?account={account}", headers={"Last-Event-ID": last_id} if last_id else {}
        )
        self._lines = self._connection.getresponse()
        self.last_id = last_id

    def until(self, kind: str) -> list[str]:
        """The kinds of what happens, up to the first `kind`."""
        seen: list[str] = []
        while kind not in seen:
            line = self._lines.readline().decode().rstrip("\n")
            assert line or not self._lines.isclosed(), f"the timeline ended after {seen}"
            name, _, value = line.partition(": ")
            if name == "id":
                self.last_id = value
            elif name == "event":
                seen.append(value)
            elif name == "data" and value != "{}":
                seen.append(json.loads(value)["kind"])
        return seen

    def close(self) -> None:
        self._connection.close()


def wait_for(ask: Callable[[], T | None]) -> T:
    until_s = time.monotonic() + PATIENCE_S
    while (found := ask()) is None:
        assert time.monotonic() < until_s, "nothing came"
        time.sleep(0.02)
    return found
