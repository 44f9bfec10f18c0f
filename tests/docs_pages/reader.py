"""A reader of a page: writes its files, runs its commands in a shell, and compares what they print.

A Python block whose first line is `# name.py` is that file; with `, at the end` it goes to the end of that file. Any
other is run. Of a console block, lines that begin with `$ ` are commands and the others what they print; `…` stands for
any text. A command below which the page shows nothing must succeed, and may print what it likes. A page uses port 8000
(Flask's 5000); the reader takes a free one.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# ([\w./-]+\.\w+)(, at the end)?\n")
PORT = re.compile(r":(?:8000|5000)\b")
SERVER = re.compile(r"^(?:uvicorn|hypercorn|flask|gunicorn|waitress-serve|python manage\.py runserver|semel demo)\b")
PORT_OPTION = {
    "uvicorn": "--port {port}",
    "flask": "--port {port}",
    "gunicorn": "--bind 127.0.0.1:{port}",
    "hypercorn": "--bind 127.0.0.1:{port}",
    "python": "--noreload {port}",  # manage.py runserver
}
ELSEWHERE = re.compile(r"^(?:pip|uv|python -m pip|make|createdb) ")
"""Commands that are not run here: their work has been done, or is the whole test suite."""
QUICK_PYTEST = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p no:cacheprovider -p semel.testing.plugin"}
"""A reader's pytest loads every plugin that is installed here, and that takes most of its time."""
VARYING = (
    (re.compile(r"^(date|server): .*$", re.IGNORECASE | re.MULTILINE), r"\1: -"),
    (re.compile(r"urn:uuid:[0-9a-f-]+"), "urn:uuid:-"),
)
"""What differs from one run to the next, and a page shows as it once was."""
START_S = 60


@dataclass(frozen=True)
class PageBlock:
    language: str
    body: str


def blocks_of(page: str) -> list[PageBlock]:
    """The blocks of a page, also those that are indented inside of tabs."""
    found = BLOCK.findall((ROOT / page).read_text())
    return [PageBlock(kind, re.sub(f"^{indent}", "", body, flags=re.MULTILINE)) for indent, kind, body in found]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class Reader:
    """One reader in one folder, with one shell."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder, self.port = folder, free_port()
        scripts = str(Path(sys.executable).parent)
        self._env = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1", "COLUMNS": "100"}
        self._env |= {**QUICK_PYTEST, **environment}
        self._servers: list[subprocess.Popen[bytes]] = []
        self.read = 0
        """How many commands were run, and their output compared."""

    def page(self, page: str) -> None:
        """Follow a page from its beginning to its end."""
        for block in blocks_of(page):
            if block.language == "python":
                self.python(block.body)
            elif block.language == "console":
                self.console(block.body)

    def python(self, body: str) -> None:
        named = FILE.match(body)
        if named is None:
            self.succeed(f"python -c {shlex.quote(body)}")
        elif named[2] is not None:
            self.write(named[1], f"{(self.folder / named[1]).read_text()}\n{body}")
        else:
            self.write(named[1], body)

    def write(self, name: str, text: str) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def console(self, transcript: str) -> None:
        """Run the commands of a block. A server that is started again takes the place of the one before."""
        for command, expected in exchanges(transcript):
            if ELSEWHERE.match(command):
                continue
            if SERVER.match(command):
                self.serve(command)
                continue
            if command.startswith("export "):
                name, _, value = command.removeprefix("export ").partition("=")
                self._env.setdefault(name, value)  # a server that the test has made goes before that of the page
                continue
            if not expected:
                self.succeed(command)
                continue
            printed = self.run(command).stdout
            shown = PORT.sub(f":{self.port}", expected)
            assert matches(printed, shown), f"$ {command}\nprinted:\n{printed}\nthe page says:\n{shown}"
            self.read += 1

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", PORT.sub(f":{self.port}", command)],
            cwd=self.folder,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )

    def succeed(self, command: str) -> None:
        done = self.run(command)
        assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{self.log()}"

    def serve(self, command: str) -> None:
        self.stop()
        words = command.removesuffix("&").strip()
        option = PORT_OPTION.get(words.split()[0], "").format(port=self.port)
        words = f"{PORT.sub(f':{self.port}', words)} {option}"
        log = (self.folder / "server.log").open("wb")
        server = subprocess.Popen(
            ["bash", "-c", f"exec {words}"],
            cwd=self.folder,
            env=self._env,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self._servers.append(server)
        self._await(server, log)

    def _await(self, server: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        deadline = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert server.poll() is None, f"the server ended: {self.log()}"
                assert time.monotonic() < deadline, f"the server did not start: {self.log()}"
                time.sleep(0.05)

    def log(self) -> str:
        log = self.folder / "server.log"
        return log.read_text() if log.exists() else ""

    def stop(self) -> None:
        for server in self._servers:
            server.terminate()
            server.wait(20)
        self._servers.clear()

    def close(self) -> None:
        self.stop()


def exchanges(transcript: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block with what it prints. A command goes on after a backslash."""
    command, printed = "", list[str]()
    lines = iter(transcript.splitlines())
    for line in lines:
        if line.startswith("$ "):
            if command:
                yield command, "\n".join(printed)
            command, printed = line[2:], []
            while command.endswith("\\"):
                command = command[:-1] + next(lines).strip()
            command = re.sub(r"\s+#\s.*$", "", command)
        else:
            printed.append(line)
    if command:
        yield command, "\n".join(printed)


def matches(printed: str, expected: str) -> bool:
    """Whether the output is what the page says; how many blanks there are does not count."""
    pattern = ".*?".join(map(re.escape, _plain(expected).split("…")))
    return re.fullmatch(pattern, _plain(printed), re.DOTALL) is not None


def _plain(text: str) -> str:
    for varying, constant in VARYING:
        text = varying.sub(constant, text)
    return "\n".join(re.sub(" {2,}", "  ", line.rstrip()) for line in text.strip().splitlines())


@contextmanager
def reading(folder: Path, **environment: str) -> Iterator[Reader]:
    reader = Reader(folder, **environment)
    try:
        yield reader
    finally:
        reader.close()
