"""A caller that is killed with -9 at any point of its call, and run again: one effect, and the answer is obtained."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from client.api import serving
from client.killed import POINTS


def run(journal: str, url: str, point: str) -> tuple[int, bytes]:
    done = subprocess.run(
        [sys.executable, "-m", "client.killed", journal, url, point], cwd="tests", capture_output=True, timeout=60
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("point", POINTS)
def test_a_caller_that_was_killed_is_simply_run_again(tmp_path: Path, point: str) -> None:
    journal = f"sqlite:///{tmp_path}/journal.db"
    with serving() as api:
        assert run(journal, api.url, point) == (-signal.SIGKILL, b"")
        assert run(journal, api.url, "") == (0, b"paid")
        assert list(api.effects.values()) == [1]
        assert run(journal, api.url, "before send") == (0, b"paid"), "its answer is kept: nothing is sent"


def test_without_a_durable_journal_it_takes_effect_twice() -> None:
    with serving() as api:
        assert run("memory://", api.url, "after send") == (-signal.SIGKILL, b"")
        assert run("memory://", api.url, "") == (0, b"paid")
        assert list(api.effects.values()) == [1, 1]
