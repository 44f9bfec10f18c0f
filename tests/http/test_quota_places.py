"""Quotas that are counted on a Redis Cluster or behind sentinels: the same step, which charges at most what is left."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from semel import Policy, StoreUnavailable
from semel.http.quota import AsyncQuotas, Charged, Quotas
from servers import binaries
from servers.needing import needed
from servers.redis import RedisServer

POLICY = Policy(quota="5/minute")
AT_ONCE = 20


@pytest.fixture(params=["cluster_url", "sentinel_url"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


def test_threads_get_no_more_than_their_quota_and_may_give_back(url: str) -> None:
    quotas = Quotas(url)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = list(threads.map(lambda _: quotas.charge(POLICY, "threads"), range(AT_ONCE)))
    charged = [each for each in found if isinstance(each, Charged)]
    assert len(charged) == 5
    assert all(0 < each <= 60 for each in found if isinstance(each, int))
    quotas.give_back(charged[0])
    check_one_more(lambda: quotas.charge(POLICY, "threads"))


def test_tasks_get_no_more_than_their_quota_and_may_give_back(url: str) -> None:
    async def run() -> None:
        quotas = AsyncQuotas(url)
        found = await asyncio.gather(*(quotas.charge(POLICY, "tasks") for _ in range(AT_ONCE)))
        charged = [each for each in found if isinstance(each, Charged)]
        assert len(charged) == 5
        await quotas.give_back(charged[0])
        assert isinstance(await quotas.charge(POLICY, "tasks"), Charged)
        assert isinstance(await quotas.charge(POLICY, "tasks"), int)

    asyncio.run(run())


def check_one_more(charge: Callable[[], Charged | int]) -> None:
    assert isinstance(charge(), Charged)
    assert isinstance(charge(), int)


def test_a_storage_that_is_away_is_told_to_each_task_and_asked_again_later() -> None:
    needed("redis", lambda: binaries.require("redis"))

    async def run(server: RedisServer) -> None:
        quotas = AsyncQuotas(server.url)
        server.kill()
        failed = await asyncio.gather(*(quotas.charge(POLICY, "away") for _ in range(AT_ONCE)), return_exceptions=True)
        assert {type(each) for each in failed} == {StoreUnavailable}
        assert "ConnectionError" in str(failed[0])
        server.start()
        found = await asyncio.gather(*(quotas.charge(POLICY, "away") for _ in range(AT_ONCE)))
        assert sum(isinstance(each, Charged) for each in found) == 5

    with RedisServer() as server:
        asyncio.run(run(server))
