"""One prepared database of each kind for a module, and a way to play a scenario in any mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from transaction.modes import prepare
from transaction.stage import Stage
from transaction.urls import Urls


@pytest.fixture(scope="module")
def urls(postgres_url: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Urls:
    folder: Path = tmp_path_factory.mktemp("shop")
    return Urls(request, postgres=prepare(postgres_url), sqlite=prepare(f"sqlite:///{folder}/shop.db"))


@pytest.fixture(scope="module")
def stage(urls: Mapping[str, str]) -> Iterator[Stage]:
    made = Stage(urls)
    yield made
    made.close()
