"""Examples in the docs run, block by block, but for files of a project. `tests/docs_pages` follows whole pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
PAGES = [f"docs/{name}.md" for name in ("stores", "policy", "dialects", "telemetry", "write-a-store", "deployment")]
OF_STORES = ("Acquired", "Occupied", "Lease", "Record")
"""What the signatures of a store name."""
PRETENDED = re.compile(r'(open_store\("(?:postgresql|mariadb|dynamodb)://[^"]+"\))\.migrate\(\)')
"""Stores that the docs name and that this machine does not have: opening them is fine, using them is not tried."""


def blocks(page: str, language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall((ROOT / page).read_text()) if kind == language]


@pytest.mark.parametrize("page", PAGES)
def test_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"app": lambda scope, receive, send: None, **dict.fromkeys(OF_STORES, object)}
    found = [block for block in blocks(page, "python") if not block.startswith("# ")]
    assert found or page == "docs/deployment.md"
    for number, block in enumerate(found):
        exec(compile(PRETENDED.sub(r"\1", block), f"{page}, example {number + 1}", "exec"), names)
