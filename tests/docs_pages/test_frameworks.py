"""A reader who follows a page about a framework gets what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs_pages.reader import ROOT, reading
from servers import binaries
from servers.needing import needed

PAGES = sorted(page.stem for page in (ROOT / "docs" / "frameworks").glob("*.md"))
ON_POSTGRES = ("fastapi",)


@pytest.mark.parametrize("page", PAGES)
def test_a_reader_gets_what_the_page_shows(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    needed("curl", lambda: binaries.require("curl"))
    given = {"DATABASE_URL": request.getfixturevalue("postgres_url")} if page in ON_POSTGRES else {}
    with reading(tmp_path, **given) as reader:
        reader.page(f"docs/frameworks/{page}.md")
        assert reader.read >= 4
