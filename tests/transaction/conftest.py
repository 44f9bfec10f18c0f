"""One prepared database of each kind for a module, and a way to play a scenario in any mode."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from servers.mariadb import Mariadb, running_mariadb
from transaction.modes import prepare
from transaction.stage import Stage


@pytest.fixture(scope="module")
def urls(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    folder: Path = tmp_path_factory.mktemp("shop")
    return {"postgres": prepare(postgres_url), "sqlite": prepare(f"sqlite:///{folder}/shop.db")}


@pytest.fixture(scope="module")
def stage(urls: Mapping[str, str]) -> Iterator[Stage]:
    made = Stage(urls)
    yield made
    made.close()


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[Mariadb]:
    with running_mariadb() as server:
        yield server


@pytest.fixture(scope="module")
def mariadb_url(mariadb_server: Mariadb) -> Iterator[str]:
    """A fresh database for each module."""
    name = f"semel_{uuid.uuid4().hex[:12]}"
    yield mariadb_server.create_database(name)
    mariadb_server.drop_database(name)
