"""The examples of the pages about transactions and messages run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("pages", ["exactly-once.md", "database.md", "outbox.md relay.md", "inbox.md"])
def test_examples_run(pages: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for page in pages.split():
        for number, block in enumerate(BLOCK.findall((DOCS / page).read_text()), 1):
            exec(compile(block, f"{page}, example {number}", "exec"), names)
    names["connection"].close()
