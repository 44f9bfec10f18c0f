"""The how-to is true: its files are written down as they stand in the docs, and pytest is run on them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "test-your-service.md"
FILE = re.compile(r"```python\n# (\w+\.py)\n(.*?)```", re.DOTALL)
PLUGIN = ["-p", "no:semel", "-p", "semel.testing.plugin"]
"""By its module, so that it is this one, whether or not the installed package registers it."""


def run_pytest(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *PLUGIN, *words]
    (folder / "pytest.ini").write_text("[pytest]\n")  # so that no settings of ours are found further up
    return subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=100
    )


def test_the_how_to_passes_as_it_stands(tmp_path: Path, redis_url: str) -> None:
    files = FILE.findall(PAGE.read_text())
    assert len(files) == 7
    for name, source in files:
        (tmp_path / name).write_text(source)
    (tmp_path / "billing.py").write_text((HERE / "billing.py").read_text())
    done = run_pytest(tmp_path, SHOP_REDIS_URL=redis_url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^6 passed", done.stdout, re.MULTILINE), done.stdout


def test_every_message_of_the_table_is_one_that_exists() -> None:
    source = (HERE.parents[1] / "src" / "semel" / "testing" / "repeats.py").read_text()
    said = re.sub(r'"\s*\n\s*f?"', "", source).replace("{request.header}", "Idempotency-Key")
    rows = re.findall(
        r"^\| [^|]+ \| ((?:a repeat|another|somebody|8 requests)[^|]+) \|$", PAGE.read_text(), re.MULTILINE
    )
    assert len(rows) == 6
    for row in rows:
        shape = (
            re.escape(row).replace(r"was\ not\ refused", ".*").replace("8", ".*").replace("3", ".*").replace("1", ".*")
        )
        assert re.search(shape, said), row
