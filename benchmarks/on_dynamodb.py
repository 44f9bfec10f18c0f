"""Claims and completions per second on an emulator of DynamoDB, beside one by one and beside Powertools' layer.

The emulator is one process of Node that answers some hundred requests per second: it bounds every contender. So these
are ratios of what callers wait for, not what AWS answers.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from itertools import count
from typing import Any

import boto3
from botocore.config import Config

from benchmarks.apps import SEMEL
from benchmarks.places import Places
from benchmarks.results import PER_SECOND, Found, Note
from benchmarks.rounds import aalternate, measured
from benchmarks.sizes import Size
from semel import Acquired, Key, Result, open_async_store, open_store
from servers.binaries import MissingServer
from servers.dynalite import DynaliteServer
from servers.moto import REGION

CALLERS = (1, 16, 64)
POWERTOOLS = "aws-lambda-powertools"
ANSWER = Result("text", b"paid")
TERMS = {"lease_ms": 60_000, "retention_ms": 3_600_000}
numbers = count()
Contenders = dict[str, Callable[[int], Awaitable[int]]]
"""By the number of callers: each makes one claim and one completion, and the reply is how many did."""


def measure(size: Size, places: Places) -> Iterator[Found]:
    os.environ |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    try:
        with DynaliteServer() as server:
            yield from asyncio.run(_measure(size, server))
    except MissingServer as error:
        yield Note("DynamoDB", str(error))


async def _measure(size: Size, server: DynaliteServer) -> list[Found]:
    found: list[Found] = []
    async with _contenders(server) as contenders:
        for callers in CALLERS:
            runs = {who: partial(_per_second, many, callers, size.round_s) for who, many in contenders.items()}
            rounds = await aalternate(runs, size.rounds)
            for who, values in rounds.items():
                found.append(measured("claim and complete", who, "DynamoDB", callers, PER_SECOND, values))
    return found


async def _per_second(many: Callable[[int], Awaitable[int]], callers: int, seconds: float) -> float:
    done, started = 0, time.perf_counter()
    while time.perf_counter() < started + seconds:
        done += await many(callers)
    return done / (time.perf_counter() - started)


@asynccontextmanager
async def _contenders(server: DynaliteServer) -> AsyncIterator[Contenders]:
    url = f"dynamodb://{REGION}/semel?endpoint_url={server.url}&migrate=auto"
    async with AsyncExitStack() as opened:
        contenders: Contenders = {}
        for who, concurrency in ((SEMEL, 64), (f"{SEMEL}, one by one", 1)):
            store: Any = await opened.enter_async_context(open_async_store(f"{url}&concurrency={concurrency}"))  # type: ignore[arg-type]
            contenders[who] = partial(_gather, store)
        sync = opened.enter_context(ExitStack())
        threads = sync.enter_context(ThreadPoolExecutor(max(CALLERS)))
        plain: Any = sync.enter_context(open_store(url))  # type: ignore[arg-type]
        contenders[f"{SEMEL}, threads"] = partial(_in_threads, threads, partial(_pair, plain))
        contenders[f"{POWERTOOLS}, threads"] = partial(_in_threads, threads, _powertools(server))
        yield contenders


async def _gather(store: Any, callers: int) -> int:
    async def pair() -> None:
        claimed = await store.claim(_key(), "1.f", owner="o", takeover=False, **TERMS)
        assert isinstance(claimed, Acquired)
        assert await store.complete(claimed.lease, ANSWER, retention_ms=TERMS["retention_ms"])

    await asyncio.gather(*(pair() for _ in range(callers)))
    return callers


def _pair(store: Any) -> None:
    claimed = store.claim(_key(), "1.f", owner="o", takeover=False, **TERMS)
    assert isinstance(claimed, Acquired)
    assert store.complete(claimed.lease, ANSWER, retention_ms=TERMS["retention_ms"])


def _key() -> Key:
    return Key("bench", "POST /payments", f"{next(numbers)}")


async def _in_threads(threads: ThreadPoolExecutor, work: Callable[[], None], callers: int) -> int:
    loop = asyncio.get_running_loop()
    await asyncio.gather(*(loop.run_in_executor(threads, work) for _ in range(callers)))
    return callers


def _powertools(server: DynaliteServer) -> Callable[[], None]:
    """Its own layer, with retries off as ours are. It takes two requests for an operation, as semel does."""
    from aws_lambda_powertools.utilities.idempotency import (
        DynamoDBPersistenceLayer,
        IdempotencyConfig,
        idempotent_function,
    )

    config = Config(retries={"total_max_attempts": 1}, max_pool_connections=max(CALLERS))
    client: Any = boto3.client("dynamodb", region_name=REGION, endpoint_url=server.url, config=config)  # pyright: ignore[reportUnknownMemberType]
    client.create_table(
        TableName="powertools",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    layer = DynamoDBPersistenceLayer(table_name="powertools", boto3_client=client)

    @idempotent_function(data_keyword_argument="data", persistence_store=layer, config=IdempotencyConfig())  # type: ignore[untyped-decorator]
    def pay(data: dict[str, int]) -> str:
        return "paid"

    def work() -> None:
        assert pay(data={"order": next(numbers)}) == "paid"

    return work
