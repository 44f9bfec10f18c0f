"""The README and the first ten minutes: every file, every command, every output."""

from pathlib import Path

from docs_pages.reader import reading


def test_the_first_ten_minutes(tmp_path: Path) -> None:
    with reading(tmp_path) as reader:
        reader.page("docs/getting-started.md")
        assert reader.read >= 14


def test_the_readme(tmp_path: Path) -> None:
    with reading(tmp_path) as reader:
        reader.page("README.md")
        assert reader.read == 3
    assert (tmp_path / "semel.db").exists()
