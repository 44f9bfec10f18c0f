"""The wheel as a user gets it: made from the sdist, on each Python, with the base dependencies and nothing else."""

import email.message
import email.parser
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.[0-9]+$", each)]
THIS = f"{sys.version_info.major}.{sys.version_info.minor}"
FRAMEWORKS = "django drf fastapi flask litestar quart starlette".split()


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
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist, and with the wheel that was made from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    (path,) = built.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> email.message.Message:
    """What the package index shows."""
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return email.parser.Parser().parsestr(wheel.read(name).decode())


@pytest.fixture(scope="module")
def python(built: Path) -> Path:
    """An interpreter that has the wheel and the locked base dependencies."""
    return installed(built, sys.executable)


def installed(built: Path, interpreter: str | Path) -> Path:
    folder = built / f"venv-{Path(interpreter).name}"
    run(interpreter, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    ours = f"semel @ {wheel.as_uri()} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}"
    (folder / "base.txt").write_text(f"{locked('msgspec')}{ours}\n")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-qq", "--disable-pip-version-check")
    run(*pip, "--no-deps", "--no-compile", "--require-hashes", "-r", folder / "base.txt")
    return python


def interpreters(version: str) -> Iterator[str]:
    """Where a Python of this version may be: on the path, or among those of pyenv."""
    yield f"python{version}"
    pyenv = shutil.which("pyenv")
    if pyenv:
        yield from map(str, Path(run(pyenv, "root").strip()).glob(f"versions/*/bin/python{version}"))


def find_interpreter(version: str) -> str | None:
    if version == THIS:
        return sys.executable
    for each in interpreters(version):
        path = shutil.which(each)  # pyenv puts a command on the path for each version, also for those that are off
        if path and subprocess.run([path, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
            return path
    return None


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


EFFECTS = """
import asyncio, importlib.metadata, semel

calls = []
for url in ("memory://", "sqlite:///semel.db"):
    store = semel.open_store(url)
    for _ in range(2):
        assert semel.run("order-1", calls.append, url, store=store) is None
    store.close()

async def main(store):
    async def pay():
        calls.append("async")
    for _ in range(2):
        await semel.arun("order-1", pay, store=store)
    await store.close()

asyncio.run(main(semel.open_async_store("sqlite:///async.db")))
assert semel.__version__ == importlib.metadata.version("semel")
print(len(calls))
"""


@pytest.mark.parametrize("version", [each for each in PYTHONS if each != THIS])
def test_works_on_each_python(version: str, built: Path, tmp_path: Path) -> None:
    interpreter = find_interpreter(version)
    if interpreter is None:
        pytest.skip(f"there is no Python {version} here")
    python = installed(built, interpreter)
    assert run(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip() == version
    done = subprocess.run([python, "-I", "-W", "error", "-c", EFFECTS], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("3\n", "")


def test_works_on_this_python(python: Path, tmp_path: Path) -> None:
    done = subprocess.run([python, "-I", "-W", "error", "-c", EFFECTS], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("3\n", "")


def test_the_version_is_read_when_it_is_asked_for(python: Path) -> None:
    script = "import semel; print('__version__' in vars(semel), semel.__version__, hasattr(semel, '__versoin__'))"
    assert in_base_install(python, script) == f"False {PROJECT['version']} False"


def test_nothing_is_lost_on_the_way_through_the_sdist(wheel: zipfile.ZipFile) -> None:
    source = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "semel").rglob("*") if path.is_file()}
    expected = {name for name in source if "__pycache__" not in name}
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected


def test_the_sdist_has_what_a_packager_asks_for(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    for name in ("CHANGELOG.md", "CITATION.cff", "LICENSE", "README.md", "SECURITY.md", "tests/test_wheel.py"):
        assert name in names


def test_the_index_shows_no_link_that_leads_nowhere(metadata: email.message.Message) -> None:
    text = metadata.get_payload()
    assert isinstance(text, str)
    assert text.startswith("# semel")
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


def test_there_is_an_extra_for_each_framework(metadata: email.message.Message) -> None:
    extras = metadata.get_all("Provides-Extra") or []
    needs = metadata.get_all("Requires-Dist") or []
    for name in FRAMEWORKS:
        assert name in extras
        assert [need for need in needs if need.endswith(f"extra == '{name}'")], f"semel[{name}] installs nothing"


def test_the_citation_names_this_version() -> None:
    assert f"\nversion: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text()
