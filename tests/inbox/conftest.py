"""Prepared databases, each with the table of effects and that of the records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from transaction.modes import prepare


@pytest.fixture(scope="module")
def urls(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    folder: Path = tmp_path_factory.mktemp("shop")
    return {"postgres": prepare(postgres_url), "sqlite": prepare(f"sqlite:///{folder}/shop.db")}
