"""A caller that is killed with -9 at any point of its call, and run again: one effect, and the answer is obtained."""

import signal
import subprocess
import sys
from pathlib import Path

from client.api import serving
from client.killed import POINTS


def run_once(journal: str, url: str, point: str) -> tuple[int, bytes]:
    done = subprocess.run(
        [sys.executable, "-m", "client.killed", journal, url, point], cwd="tests", capture_output=True, timeout=60
    )
    return done.returncode, done.stdout


def test_a_caller_that_was_killed_is_simply_run_again(tmp_path: Path) -> None:
    journal = f"sqlite:///{tmp_path}/journal.db"
    with serving() as api:
        assert run_once(journal, api.url, "after send") == (-signal.SIGKILL, b"")
        assert run_once(journal, api.url, "") == (0, b"paid")
        assert list(api.effects.values()) == [1]
        assert run_once(journal, api.url, "before send") == (0, b"paid"), "its answer is kept: nothing is sent"


def kill(*arguments: str) -> str:
    """In a process of its own: the server that callers are forked from finds its modules in the current folder."""
    command = [sys.executable, "-m", "client.kills", "--seed", "1", *arguments]
    done = subprocess.run(command, cwd="tests", capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kills_at_every_point_of_every_adapter_leave_one_effect_and_its_answer() -> None:
    told = kill("--kills", "40")
    assert "took effect twice: 0; other answers: 0" in told
    assert not [point for point in POINTS if point not in told], "each point was reached"


def test_without_a_durable_journal_kills_double_effects() -> None:
    assert "took effect twice: 0" not in kill("--kills", "10", "--control")
