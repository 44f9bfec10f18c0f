"""The tiered store, both faces, against the contract: Redis in front of a file and of PostgreSQL, sound and unsteady.

Copies are made before the call that asks for them returns, so a replay of the contract is one from Redis. Three
classes take their turn here; `make tiered` runs all eight.
"""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest

from semel import open_async_store, open_store
from semel.store import AsyncStore, Clock, Store
from semel.testing import AsyncStoreContract, StoreContract
from stores.tiered_cases import UnsteadyFront, copy_at_once, counted_answers, tiered_url

SEED = int(os.environ.get("SEMEL_SEED", "20"))
pytestmark = pytest.mark.timeout(300)
ALL = "SEMEL_TIERED_ALL" in os.environ
"""Otherwise three of the classes have their turn."""
NEARLY_ALL = 180
"""Tests of one class."""


class Tiered:
    """A front that is steady, and results only: what a copy tells is exactly what the database tells."""

    parity_examples: ClassVar[int] = 10
    race_rounds: ClassVar[int] = 5
    options: ClassVar[dict[str, Any]] = {}
    is_steady: ClassVar[bool] = True
    back: ClassVar[str] = "file"
    has_processes: ClassVar[bool] = False
    url: str

    @pytest.fixture(autouse=True)
    def place(self, request: pytest.FixtureRequest, front: str, answers: Counter[str], tmp_path: Path) -> None:
        answers["tests"] += 1
        on_file = self.back == "file"
        back = f"sqlite:///{tmp_path}/records.db" if on_file else request.getfixturevalue("postgres_url")
        self.url = tiered_url(front, back, **self.options)

    @pytest.fixture(autouse=True)
    def in_one_process(self, request: pytest.FixtureRequest) -> None:
        if "process" in request.node.name and not (ALL or self.has_processes):
            pytest.skip("processes take long to start, and one class has them")

    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        copy_at_once(monkeypatch)


class Unsteady(Tiered):
    """Cut, delayed, garbled, flushed, and with old copies: answers stay exact."""

    options: ClassVar[dict[str, Any]] = {"rest_ms": 1, "front_timeout_ms": 2_000}
    is_steady: ClassVar[bool] = False


@pytest.fixture(scope="class")
def answers() -> Iterator[Counter[str]]:
    """What copies answered in the tests of one class, and how many tests that were."""
    with counted_answers() as counts:
        yield counts


@pytest.fixture(scope="class")
def front(request: pytest.FixtureRequest, redis_url: str, answers: Counter[str]) -> Iterator[str]:
    """Afterwards, unless the tests of the class were chosen or went to several workers: was it asked, and unsteady?"""
    tested: Any = request.cls
    with ExitStack() as stack:
        unsteady = None if tested.is_steady else UnsteadyFront(redis_url, SEED)
        yield redis_url if unsteady is None else stack.enter_context(unsteady.running())
        if answers["tests"] > NEARLY_ALL:
            assert answers["succeeded"] + answers["failed"] > 0, f"copies were not asked: {answers}"
            assert unsteady is None or len(unsteady.done) == 7, unsteady.done


class Sync(StoreContract):
    url: str

    def open(self, clock: Clock | None) -> Store:
        return open_store(self.url, clock=clock)


class Async(AsyncStoreContract):
    url: str

    def open(self, clock: Clock | None) -> AsyncStore:
        return open_async_store(self.url, clock=clock)


class TestTieredStore(Tiered, Sync):
    has_processes = True


class TestAsyncTieredStore(Tiered, Async):
    __test__ = ALL


class TestTieredStoreOnPostgres(Tiered, Sync):
    __test__ = ALL
    back = "postgres"


class TestAsyncTieredStoreOnPostgres(Tiered, Async):
    back = "postgres"


class TestTieredStoreUnsteady(Unsteady, Sync):
    __test__ = ALL


class TestAsyncTieredStoreUnsteady(Unsteady, Async):
    pass


class TestTieredStoreUnsteadyOnPostgres(Unsteady, Sync):
    __test__ = ALL
    back = "postgres"


class TestAsyncTieredStoreUnsteadyOnPostgres(Unsteady, Async):
    __test__ = ALL
    back = "postgres"
