"""The examples in the docs run: the README's against a real server, the others block by block."""

from __future__ import annotations

import http.client
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
PAGES = ["docs/stores.md", "docs/policy.md", "docs/http.md"]
PRETENDED = re.compile(r'(open_store\("(?:postgresql|mariadb)://[^"]+"\))\.migrate\(\)')
"""Stores that the docs name and that this machine does not have: opening them is fine, using them is not tried."""


def blocks(page: str, language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall((ROOT / page).read_text()) if kind == language]


@contextmanager
def served(folder: Path) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "app:app", "--port", str(port), "--log-level", "warning"]
    server = subprocess.Popen(command, cwd=folder)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "the README's application did not start"
                time.sleep(0.05)
        yield port
    finally:
        server.terminate()
        server.wait(20)


def ask(port: int, curl: str) -> tuple[str, dict[str, str], str]:
    """What a `curl -i` of the README says."""
    words = shlex.split(curl)
    header = words[words.index("-H") + 1].partition(": ")
    body = words[words.index("-d") + 1]
    path = "/" + next(word for word in words if word.startswith("localhost")).partition("/")[2]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", path, body, {header[0]: header[2]})
    answer = connection.getresponse()
    return (
        f"HTTP/1.1 {answer.status} {answer.reason}",
        {k.lower(): v for k, v in answer.getheaders()},
        answer.read().decode(),
    )


def test_the_readme_s_first_screen_is_true(tmp_path: Path) -> None:
    [application] = blocks("README.md", "python")
    [transcript] = [block for block in blocks("README.md", "console") if "curl" in block]
    (tmp_path / "app.py").write_text(application)
    calls = re.findall(r"^\$ (curl .*)\n(HTTP.*)\n((?:.+\n)+)\n(.*)\n", transcript, re.MULTILINE)
    assert len(calls) == 2
    with served(tmp_path) as port:
        for curl, status, headers, body in calls:
            shown = dict(line.split(": ", 1) for line in headers.splitlines())
            got_status, got_headers, got_body = ask(port, curl)
            assert (got_status, got_body) == (status, body)
            assert {name: got_headers.get(name) for name in shown} == shown
    assert (tmp_path / "semel.db").exists()


@pytest.mark.parametrize("page", PAGES)
def test_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"app": lambda scope, receive, send: None}
    found = blocks(page, "python")
    assert found
    for number, block in enumerate(found):
        exec(compile(PRETENDED.sub(r"\1", block), f"{page}, example {number + 1}", "exec"), names)
