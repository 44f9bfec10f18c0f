"""The example on the security page runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from semel.codecs.sealed import AsyncSealed

PAGE = Path(__file__).parents[2] / "docs" / "security.md"


def test_the_example_runs() -> None:
    [example] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {"app": lambda scope, receive, send: None}
    exec(compile(example, PAGE.name, "exec"), names)
    assert isinstance(names["app"].store, AsyncSealed)
