"""A reader who follows the pages about HTTP and its frameworks gets what the pages show."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from docs_pages.reader import ROOT, reading
from servers import binaries
from servers.needing import needed

FOLDER = ROOT / "docs" / "frameworks"
PAGES = ["docs/http.md", *(str(page.relative_to(ROOT)) for page in sorted(FOLDER.glob("*.md")))]
ON_POSTGRES = "docs/frameworks/fastapi.md"


@pytest.mark.parametrize("page", PAGES)
def test_a_reader_gets_what_the_page_shows(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    needed("curl", lambda: binaries.require("curl"))
    given = {"DATABASE_URL": request.getfixturevalue("postgres_url")} if page == ON_POSTGRES else {}
    with reading(tmp_path, **given) as reader:
        reader.page(page)
        assert reader.read >= 4


def test_the_asgi_application_of_the_django_page_is_served(tmp_path: Path) -> None:
    """The page's file, in the project of the page on Django."""
    with reading(tmp_path) as reader:
        reader.succeed("django-admin startproject shop .")
        reader.page("docs/django.md")
        reader.serve("uvicorn shop.asgi:application")
        reader.succeed("curl -sf localhost:8000/ -o /dev/null")
        reader.stop()
        assert "Application shutdown complete" in reader.log()


@pytest.mark.parametrize("page", PAGES)
def test_what_a_reader_installs_is_there(page: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for named in re.findall(r"pip install 'semel\[([\w,]+)\]'", (ROOT / page).read_text()):
        assert set(named.split(",")) <= extras.keys()
