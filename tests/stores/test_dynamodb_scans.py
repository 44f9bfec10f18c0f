"""Operators' lists on a DynamoDB table that is larger than one page of its Scan (1 MB)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from semel import Key, Result, open_store
from semel.store import Filter
from semel.stores.dynamodb.layout import digest_of, parts_of
from semel.testing import ManualClock
from semel.testing.calls import claim, complete, granted
from semel.testing.parity import pages
from semel.testing.samples import RETENTION_MS
from servers.moto import AwsServer
from stores.dynamodb_cases import SERVERS, credentials, table_of, url_on

pytestmark = pytest.mark.timeout(60)
LARGE = Result("bytes", bytes(range(256)) * 4_000)
KEYS = [Key("tenant", "s", f"{number}") for number in range(4)]


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> AwsServer:
    found: AwsServer = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def url(server: AwsServer) -> str:
    return url_on(server.url) + "&migrate=auto"


@pytest.fixture
def store(url: str, clock: ManualClock) -> Iterator[Any]:
    """Four records whose results are parts, one in progress, and one count of attempts."""
    with credentials(), open_store(url, clock=clock) as store:  # type: ignore[attr-defined]
        for key in KEYS:
            assert complete(store, granted(claim(store, key, "a")), LARGE)
        granted(claim(store, Key("other", "s", "n"), "a"))
        store.count_attempt(KEYS[0], "it burnt", retention_ms=RETENTION_MS)
        yield store


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_every_page_is_read(store: Any, limit: int) -> None:
    found = pages(store, Filter(), limit=limit)
    assert len(found) == 5
    assert [record.result for record in found if record.key in KEYS] == [LARGE] * 4
    assert [record.key.tenant for record in pages(store, Filter("in_progress"), limit=limit)] == ["other"]
    counts = store.counts()
    assert (counts.in_progress, counts.succeeded, counts.unreadable) == (1, 4, 0)


def test_all_is_purged_and_nothing_is_left(server: AwsServer, url: str, store: Any, clock: ManualClock) -> None:
    clock.advance(RETENTION_MS)
    assert [store.purge(limit=limit) for limit in (2, 100, 100)] == [2, 3, 0]
    assert server.client("dynamodb").scan(TableName=table_of(url))["Items"] == []


def test_a_result_that_lost_a_part_stops_no_list(server: AwsServer, url: str, store: Any) -> None:
    *_, last = parts_of(digest_of(KEYS[0]), "a", LARGE, 0)
    server.client("dynamodb").delete_item(TableName=table_of(url), Key={"digest": last["digest"]})
    page = store.scan()
    assert len(page.records) == 4
    assert [each.place for each in page.unreadable] == [digest_of(KEYS[0])]


def test_a_purge_keeps_to_its_limit_within_a_page(server: AwsServer) -> None:
    clock = ManualClock()
    with credentials(), open_store(url_on(server.url) + "&migrate=auto", clock=clock) as store:  # type: ignore[attr-defined]
        for number in range(5):
            granted(claim(store, Key("t", "s", f"{number}"), "a"))
        clock.advance(RETENTION_MS)
        assert [store.purge(limit=2) for _ in range(4)] == [2, 2, 1, 0]
