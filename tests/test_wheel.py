"""The wheel as a user gets it: with the base dependencies and nothing else."""

import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def locked(name: str) -> str:
    """The entry of the lock, with its hashes."""
    (entry,) = re.findall(rf"^{name}==(?:.*\\\n)*.*\n", (ROOT / "requirements" / "run.txt").read_text(), re.MULTILINE)
    assert isinstance(entry, str)
    return entry


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has the wheel and the locked base dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-qq", "--disable-pip-version-check")
    (folder / "base.txt").write_text(locked("msgspec"))
    run(*pip, "--require-hashes", "-r", folder / "base.txt")
    run(*pip, "--no-deps", *folder.glob("*.whl"))
    return python


def in_base_install(python: Path, script: str) -> str:
    return run(python, "-I", "-W", "error", "-c", script).strip()


def test_imports_with_no_extra_present(python: Path) -> None:
    script = "import sys, semel; print(sorted({'psycopg', 'asyncpg', 'redis', 'pytest'} & set(sys.modules)))"
    assert in_base_install(python, script) == "[]"


def test_the_command_says_what_it_needs(python: Path) -> None:
    done = subprocess.run([python, "-m", "semel", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert 'pip install "semel[cli]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_carries_its_types(python: Path) -> None:
    script = "import importlib.resources as r; print(r.files('semel').joinpath('py.typed').is_file())"
    assert in_base_install(python, script) == "True"


def test_runs_on_what_needs_no_driver(python: Path) -> None:
    in_base_install(python, "import semel; semel.open_store('memory://').close()")


@pytest.mark.parametrize(("url", "extra"), [("postgresql://h/d", "postgres"), ("redis://h/0", "redis")])
@pytest.mark.parametrize("opener", ["open_store", "open_async_store"])
def test_a_missing_extra_is_named(python: Path, opener: str, url: str, extra: str) -> None:
    script = f"""
import semel
try:
    semel.{opener}({url!r})
except semel.StoreMisconfigured as error:
    print(error)
"""
    assert f"semel[{extra}]" in in_base_install(python, script)
