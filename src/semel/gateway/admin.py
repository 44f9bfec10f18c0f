"""The admin port: is it alive, is it ready, and what has it counted. For operators, never for callers."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from aiohttp import web

from semel.core.records import Key
from semel.errors import StoreError
from semel.gateway.settings import address
from semel.store import AsyncStore

if TYPE_CHECKING:
    from semel.gateway.supervisor import Supervisor

PROBE = Key("", "semel gateway", "readiness")
PROBE_S = 2.0
PAUSES_S = (0.01, 0.05, 0.2)


async def trouble_with(store: AsyncStore) -> str | None:
    """Why the store does not answer, if it does not."""
    try:
        async with asyncio.timeout(PROBE_S):
            await store.get(PROBE)
    except (StoreError, TimeoutError) as error:
        return str(error) or "no reply in time"
    return None


class Admin:
    """Answers on the admin port while it is entered, if there is one."""

    def __init__(self, supervisor: Supervisor, store: AsyncStore, metrics: str) -> None:
        self._supervisor = supervisor
        self._store = store
        self._metrics = metrics
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        where = self._supervisor.settings.admin
        if where is not None:
            app = web.Application()
            app.router.add_get("/-/healthz", self.healthz)
            app.router.add_get("/-/readyz", self.readyz)
            app.router.add_get("/-/metrics", self.metrics)
            self._runner = web.AppRunner(app, access_log=None)
            await self._runner.setup()
            await web.TCPSite(self._runner, *address("--admin", where)).start()
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def forget(self, worker: int | None) -> None:
        """A worker is dead: what it counted stays, what it had running does not."""
        if self._runner is not None:
            from prometheus_client.multiprocess import mark_process_dead

            mark_process_dead(worker, self._metrics)  # type: ignore[no-untyped-call]

    async def healthz(self, _: web.Request) -> web.Response:
        """The supervisor runs."""
        return web.Response(text="ok\n")

    async def readyz(self, _: web.Request) -> web.Response:
        """A worker takes requests, and the store answers."""
        if not self._supervisor.ready:
            return web.Response(status=503, text="no worker is ready\n")
        if (trouble := await trouble_with(self._store)) is not None:
            return web.Response(status=503, text=f"the store does not answer: {trouble}\n")
        return web.Response(text="ok\n")

    async def metrics(self, _: web.Request) -> web.Response:
        """The counters of all workers, living and dead, summed."""
        from prometheus_client import CONTENT_TYPE_LATEST

        return web.Response(body=await summed(self._metrics), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def summed(folder: str) -> bytes:
    for pause_s in PAUSES_S:
        with suppress(struct.error):  # a worker that has just begun has made its file, and not yet begun to fill it
            return _summed(folder)
        await asyncio.sleep(pause_s)
    return _summed(folder)


def _summed(folder: str) -> bytes:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=folder)  # type: ignore[no-untyped-call]
    return generate_latest(registry)
