"""Other libraries, each as its own manual says, on every store that it supports.

They are loaded by name: one that cannot be imported is listed with its error, and the others are measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from benchmarks import least
from benchmarks.calls import LEASE_MS
from benchmarks.places import path_of

if TYPE_CHECKING:
    from benchmarks.apps import Shop

Builder = Callable[["Shop", str], Any]


def starting(app: Any, start: Callable[[], Awaitable[object]]) -> Any:
    """The application, with something awaited before its first request."""
    started: asyncio.Future[object] | None = None

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        nonlocal started
        if started is None:
            started = asyncio.ensure_future(start())
        await started
        await app(scope, receive, send)

    return wrapped


def asgi_idempotency_header(store: str) -> Builder:
    def build(shop: Shop, url: str) -> Any:
        backends = import_module("idempotency_header_middleware.backends")
        if store == "memory":
            backend = backends.MemoryBackend()
        else:
            backend = backends.RedisBackend(import_module("redis.asyncio").from_url(url))
        return import_module("idempotency_header_middleware").IdempotencyHeaderMiddleware(shop.app(), backend=backend)

    return build


def fastapi_idempotency(shop: Shop, url: str) -> Any:
    return import_module("fastapi_idempotency").IdempotencyMiddleware(shop.app())


def fastapi_idempotency_key(store: str) -> Builder:
    def build(shop: Shop, url: str) -> Any:
        backend = {
            "memory": lambda: import_module("fastapi_idempotency_key.backends.memory").MemoryBackend(),
            "redis": lambda: import_module("fastapi_idempotency_key.backends.redis").RedisBackend(redis_url=url),
            "sqlite": lambda: import_module("fastapi_idempotency_key.backends.sqlite").SQLiteBackend(str(path_of(url))),
        }[store]()
        return import_module("fastapi_idempotency_key").IdempotencyMiddleware(shop.app(), backend=backend)

    return build


def fastidempotent(store: str) -> Builder:
    def build(shop: Shop, url: str) -> Any:
        library = import_module("fastidempotent")
        sql = url.replace("postgresql://", "postgresql+asyncpg://").replace("sqlite://", "sqlite+aiosqlite://")
        backend = {
            "memory": lambda: library.MemoryBackend(),
            "redis": lambda: library.RedisBackend(url),
            "sqlite": lambda: library.SQLiteBackend(sql),
            "postgres": lambda: library.PostgresBackend(sql),
        }[store]()
        return starting(library.IdempotencyMiddleware(shop.app(), backend=backend, optional=True), backend.init)

    return build


def idemkit(store: str) -> Builder:
    def build(shop: Shop, url: str) -> Any:
        library = import_module("idemkit")
        config = library.HttpConfig(scope_mode="single_tenant")
        backend = {
            "memory": lambda: library.InMemoryBackend(),
            "redis": lambda: library.RedisBackend.from_url(url),
            "postgres": lambda: library.PostgresBackend.from_url(url),
        }[store]()
        app = library.IdempotencyMiddleware(shop.app(), backend=backend, config=config)
        if store != "postgres":
            return app
        return starting(app, lambda: import_module("idemkit.backends.postgres").init_pg(url))

    return build


def idempot(store: str) -> Builder:
    def build(shop: Shop, url: str) -> Any:
        import_module("idempot").configure(backend=store, redis_url=url)
        protected = import_module("idempot.contrib.fastapi").idempotent(shop.pay)

        async def pay(request: Request) -> Response:
            answer: Response = await protected(request=request)
            return answer

        return shop.app(pay)

    return build


def powertools(shop: Shop, url: str) -> Any:
    """A decorator for functions, in the thread where Starlette runs sync code.

    Without its check of the payload: the Redis layer forgets the payload's hash when it completes, and then refuses
    every repeat.
    """
    library = import_module("aws_lambda_powertools.utilities.idempotency")
    layer = import_module("aws_lambda_powertools.utilities.idempotency.persistence.cache").CachePersistenceLayer
    context = SimpleNamespace(get_remaining_time_in_millis=lambda: LEASE_MS)  # without one it warns at each call
    config = library.IdempotencyConfig(event_key_jmespath="key", lambda_context=context)

    @library.idempotent_function(data_keyword_argument="event", config=config, persistence_store=layer(url=url))  # type: ignore[untyped-decorator]
    def charge(event: dict[str, Any]) -> dict[str, Any]:
        return shop.charge(event["body"]["amount"])

    async def pay(request: Request) -> Response:
        key, body = request.headers.get("idempotency-key"), await request.json()
        return JSONResponse(await run_in_threadpool(charge, event={"key": key, "body": body}))

    return shop.app(pay)


PEERS: dict[tuple[str, str], Builder] = {
    **{("asgi-idempotency-header", store): asgi_idempotency_header(store) for store in ("memory", "redis")},
    ("fastapi-idempotency", "memory"): fastapi_idempotency,
    **{("fastapi-idempotency-key", store): fastapi_idempotency_key(store) for store in ("memory", "sqlite", "redis")},
    **{("fastidempotent", store): fastidempotent(store) for store in ("memory", "sqlite", "postgres", "redis")},
    **{("idemkit", store): idemkit(store) for store in ("memory", "postgres", "redis")},
    **{("idempot", store): idempot(store) for store in ("memory", "redis")},
    ("aws-lambda-powertools", "redis"): powertools,
    (least.DICT_AND_TASK, "memory"): least.build,
    (least.DICT_ALONE, "memory"): partial(least.build, alone=True),
}

ABSENT = {
    "idemptx": "not measured: all versions up to 0.2.2 need redis < 6, and the others are measured with a later one"
}
"""What is no contender, and why."""
