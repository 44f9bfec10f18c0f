"""Fixtures of the tests under fire: each store behind the proxy, in both faces."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from fire.cases import FACES, STORES, Ledger, Opened, Place, opened, placed, url_of
from semel import Key
from servers.dynalite import DynaliteServer
from stores.dynamodb_cases import ALL, credentials, url_on

SHORT_MS = 500
"""The time-out of stores that are kept waiting on purpose."""


@pytest.fixture(scope="module")
def dynamodb_url(dynalite_server: DynaliteServer) -> Iterator[str]:
    with credentials():
        yield url_on(dynalite_server.url)


@pytest.fixture(scope="module", params=(*STORES, "dynamodb") if ALL else STORES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with placed(url_of(request.param, request)) as place:
        yield place


@pytest.fixture(scope="module", params=FACES)
def one(place: Place, request: pytest.FixtureRequest) -> Iterator[Opened]:
    """With the time-out that is the default."""
    with opened(request.param, place.proxy.url) as one:
        yield one


@pytest.fixture(scope="module", params=FACES)
def hasty(place: Place, request: pytest.FixtureRequest) -> Iterator[Opened]:
    with opened(request.param, place.proxy.url, timeout_ms=SHORT_MS) as one:
        yield one


@pytest.fixture
def key(place: Place) -> Iterator[Key]:
    yield Key("fire", "POST /payments", uuid.uuid4().hex)
    place.proxy.clear()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)
