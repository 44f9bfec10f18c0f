"""A store of each kind, by its URL."""

import uuid
from pathlib import Path

import pytest

import semel
from semel.store import Migratable

DURABLE = ("sqlite", "postgres", "redis")


@pytest.fixture(params=DURABLE)
def durable_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/semel.db"
    url: str = request.getfixturevalue(f"{request.param}_url")
    store = semel.open_store(url)
    if isinstance(store, Migratable):
        store.migrate()
    store.close()
    return url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/semel.db"


@pytest.fixture
def order() -> str:
    """A key that no other test uses: servers are shared."""
    return uuid.uuid4().hex
