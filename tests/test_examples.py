"""The examples in the docs run, block by block. `tests/docs_pages` follows whole pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
PAGES = ["docs/stores.md", "docs/policy.md"]
PRETENDED = re.compile(r'(open_store\("(?:postgresql|mariadb)://[^"]+"\))\.migrate\(\)')
"""Stores that the docs name and that this machine does not have: opening them is fine, using them is not tried."""


def blocks(page: str, language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall((ROOT / page).read_text()) if kind == language]


@pytest.mark.parametrize("page", PAGES)
def test_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"app": lambda scope, receive, send: None}
    found = blocks(page, "python")
    assert found
    for number, block in enumerate(found):
        exec(compile(PRETENDED.sub(r"\1", block), f"{page}, example {number + 1}", "exec"), names)
