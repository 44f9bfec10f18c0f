"""The page about flows is true: its examples run."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs/flow.md"


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "docs_flow"}
    found = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(found) == 3
    for number, block in enumerate(found, 1):
        exec(compile(block, f"docs/flow.md, example {number}", "exec"), names)
    assert [names[way]("trip-17") for way in ("found_out", "not_done", "refused")] == [False] * 3  # it is finished
