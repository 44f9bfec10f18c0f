"""The admin port: is it alive, is it ready, and what has it counted. For operators, never for callers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from aiohttp import web

from semel.runtime.readiness import async_trouble_with
from semel.store import AsyncStore

if TYPE_CHECKING:
    from prometheus_client import Metric

    from semel.gateway.supervisor import Supervisor
    from semel.telemetry.prometheus import RecordsCollector

PROBE_S = 2.0


async def find_trouble(store: AsyncStore) -> str | None:
    """Why the store cannot be used, if it cannot, within a bound."""
    try:
        async with asyncio.timeout(PROBE_S):
            trouble = await async_trouble_with(store)
    except TimeoutError:
        return "no reply in time"
    return None if trouble is None else str(trouble)


class Admin:
    """Answers on the admin port while it is entered, if there is one."""

    def __init__(self, supervisor: Supervisor, store: AsyncStore, metrics: str) -> None:
        self._supervisor = supervisor
        self._store = store
        self._metrics = metrics
        self._records: RecordsCollector | None = None
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        found = self._supervisor.sockets.admin
        if found is not None:
            settings = self._supervisor.settings
            if settings.count_records:
                from semel.telemetry.prometheus import RecordsCollector

                self._records = RecordsCollector(settings.store, registry=None)
            app = web.Application()
            app.router.add_get("/-/healthz", self.healthz)
            app.router.add_get("/-/readyz", self.readyz)
            app.router.add_get("/-/metrics", self.metrics)
            self._runner = web.AppRunner(app, access_log=None)
            await self._runner.setup()
            await web.SockSite(self._runner, found.dup()).start()  # it closes what it is given
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

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
        if (trouble := await find_trouble(self._store)) is not None:
            return web.Response(status=503, text=f"the store does not answer: {trouble}\n")
        return web.Response(text="ok\n")

    async def metrics(self, _: web.Request) -> web.Response:
        """The counters of all workers, living and dead, summed, and how many records the store holds."""
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(Summed(self._metrics))
        if self._records is not None:
            registry.register(self._records)
        body = await asyncio.to_thread(generate_latest, registry)  # it may wait a moment for the store
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


class Summed:
    """What is in the files of all workers.

    A file begins empty, and stays so if its worker dies in that moment: it holds nothing, and cannot be read.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def collect(self) -> Iterable[Metric]:
        from prometheus_client.multiprocess import MultiProcessCollector

        files = [str(path) for path in self._folder.glob("*.db") if path.stat().st_size]
        found: Iterable[Metric] = MultiProcessCollector.merge(files, accumulate=True)  # type: ignore[no-untyped-call]
        return found
