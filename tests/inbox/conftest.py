"""Prepared databases, each with the table of effects and that of the records."""

from __future__ import annotations

from pathlib import Path

import pytest

from transaction.modes import prepare
from transaction.urls import Urls


@pytest.fixture(scope="module")
def urls(postgres_url: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Urls:
    folder: Path = tmp_path_factory.mktemp("shop")
    return Urls(request, postgres=prepare(postgres_url), sqlite=prepare(f"sqlite:///{folder}/shop.db"))
