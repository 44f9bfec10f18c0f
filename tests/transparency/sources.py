"""The frameworks' source archives, of the locked versions and with the locked hashes, by pip from the user's index."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

from transparency.suites import Suite

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "dev.txt"
BUILD = ROOT / "build" / "transparency"


def locked(package: str) -> str:
    """The package's lines in the lock. There are several if its version depends on Python's."""
    entries = re.findall(rf"^{re.escape(package)}==(?:.*\\\n)*.*", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    if not entries:
        raise LookupError(f"{package} is not in {LOCK.relative_to(ROOT)}")
    return "\n".join(entries) + "\n"


def fetch(suite: Suite) -> Path:
    """The unpacked source archive. It is downloaded once for each version."""
    entry = locked(suite.package)
    archives = BUILD / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    wanted = BUILD / f"{suite.package}.txt"
    unpacked = BUILD / suite.package
    if unpacked.exists() and wanted.exists() and wanted.read_text(encoding="utf-8") == entry:
        return next(unpacked.iterdir())
    wanted.write_text(entry, encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-qq", "--no-deps"]
    # Nothing is built: pip only asks the build backend, which is in the lock of this environment, for the metadata.
    pip += ["--no-binary", ":all:", "--no-build-isolation", "--require-hashes", "-d", str(archives), "-r", str(wanted)]
    for old in archives.glob(f"{suite.package}-*.tar.gz"):
        old.unlink()
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # not for the build backend
    subprocess.run(pip, check=True, timeout=300, env=clean)
    (archive,) = archives.glob(f"{suite.package}-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(unpacked, filter="data")
    return next(each for each in unpacked.iterdir() if archive.name.startswith(each.name))
