"""The databases of a module of tests, by their kinds. MariaDB is started when a test first asks for it."""

from __future__ import annotations

import pytest

from transaction.modes import prepare


class Urls(dict[str, str]):
    """Where there is no MariaDB, the tests on the other databases run all the same."""

    def __init__(self, request: pytest.FixtureRequest, **urls: str) -> None:
        super().__init__(urls)
        self._request = request

    def __missing__(self, database: str) -> str:
        url: str = self._request.getfixturevalue(f"{database}_url")
        return self.setdefault(database, prepare(url))
