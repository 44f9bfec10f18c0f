"""A world for each kind of store."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import semel
from flow.trips import Boundaries, Clock, Killed, World

KINDS = ("memory", "sqlite", "postgres")


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/semel.db"}
    world = World(urls.get(request.param) or request.getfixturevalue(f"{request.param}_url"), tmp_path / "ledger")
    world.set_up()
    yield world
    world.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> Iterator[semel.Store]:
    """A memory store, where the kind does not matter."""
    store = semel.open_store("memory://", clock=clock)
    yield store
    store.close()


@pytest.fixture
def boundaries(monkeypatch: pytest.MonkeyPatch) -> Boundaries:
    def die() -> None:
        raise Killed

    return Boundaries(monkeypatch, die)


@pytest.fixture
def key() -> str:
    """One that no other test uses: servers are shared."""
    return uuid.uuid4().hex
