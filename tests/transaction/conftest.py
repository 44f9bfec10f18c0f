"""One prepared database of each kind for a module, and a way to play a scenario in any mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from transaction.modes import prepare
from transaction.stage import Stage


class Urls(dict[str, str]):
    """The databases by their kinds. MariaDB is started when it is first asked for."""

    def __init__(self, request: pytest.FixtureRequest, **urls: str) -> None:
        super().__init__(urls)
        self._request = request

    def __missing__(self, database: str) -> str:
        url: str = self._request.getfixturevalue(f"{database}_url")
        return self.setdefault(database, prepare(url))


@pytest.fixture(scope="module")
def urls(postgres_url: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Urls:
    folder: Path = tmp_path_factory.mktemp("shop")
    return Urls(request, postgres=prepare(postgres_url), sqlite=prepare(f"sqlite:///{folder}/shop.db"))


@pytest.fixture(scope="module")
def stage(urls: Mapping[str, str]) -> Iterator[Stage]:
    made = Stage(urls)
    yield made
    made.close()
