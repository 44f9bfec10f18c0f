"""The three stores, each empty for every test."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from semel import open_store
from semel.store import Migratable, Store


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/records.db"
    place = request.getfixturevalue(f"{request.param}_url")
    own = f"t{uuid4().hex[:12]}"
    return f"{place}?schema={own}" if request.param == "postgres" else f"{place}?prefix={own}"


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/records.db"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """The store of `url`, with its tables."""
    opened = open_store(url)
    if isinstance(opened, Migratable):
        opened.migrate()
    yield opened
    opened.close()


@pytest.fixture
def file_store(file_url: str) -> Iterator[Store]:
    opened = open_store(file_url)
    yield opened
    opened.close()
