"""One prepared database of each kind for a module, and a way to run a step in any mode."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from transaction.modes import prepare


@pytest.fixture(scope="module")
def urls(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    folder: Path = tmp_path_factory.mktemp("shop")
    return {"postgres": prepare(postgres_url), "sqlite": prepare(f"sqlite:///{folder}/shop.db")}
