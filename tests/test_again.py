"""A run is red if anything fails twice, or too much at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

AGAIN = Path(__file__).with_name("again.py")
CASES = """
from pathlib import Path

def test_sound(): pass
def test_broken(): assert False
def test_unsteady():
    before = Path("seen").exists()
    Path("seen").touch()
    assert before
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_cases.py").write_text(CASES + "".join(f"def test_red_{n}(): assert False\n" for n in range(4)))
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # none of them is needed, and all take a second
    words = ("-m", "pytest", "-q", "test_cases.py", *words)
    tests = subprocess.run([sys.executable, *words], cwd=folder, env=environment, check=False)
    again = [sys.executable, str(AGAIN), str(tests.returncode)]
    return subprocess.run(again, cwd=folder, env=environment, check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("chosen", "code", "named"),
    [
        ("sound", 0, False),
        ("unsteady", 0, True),
        ("broken", 1, False),
        ("unsteady or broken", 1, False),
        ("red", 1, False),
        ("nothing", 5, False),
    ],
)
def test_what_a_red_run_ends_with(tmp_path: Path, chosen: str, code: int, named: bool) -> None:
    done = run(tmp_path, "-k", chosen)
    assert done.returncode == code, done.stdout
    assert ("UNSTEADY" in done.stdout and "test_unsteady" in done.stdout) is named
    assert ("once more" in done.stdout) is (chosen in ("unsteady", "broken", "unsteady or broken"))
