"""The page about all of this is complete: every test that it names exists, and every test of this folder is named."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "under-fire.md").read_text()
NAMED = sorted(set(re.findall(r"`((?:tests|src)/[\w/]+\.py)::(\w+)`", PAGE)))
OF_ITSELF = ("test_proxy.py", "test_page.py")


def names_in(path: Path) -> list[str]:
    return re.findall(r"^ *def (test_\w+)\(", path.read_text(), re.MULTILINE)


def test_every_test_on_the_page_exists() -> None:
    assert NAMED
    missing = [f"{path}::{name}" for path, name in NAMED if name not in names_in(ROOT / path)]
    assert not missing


def test_every_test_of_this_folder_is_on_the_page() -> None:
    here = [path for path in Path(__file__).parent.glob("test_*.py") if path.name not in OF_ITSELF]
    there = [(f"tests/fire/{path.name}", name) for path in here for name in names_in(path)]
    assert there
    assert sorted(set(there) - set(NAMED)) == []
