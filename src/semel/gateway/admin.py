"""The admin port: health, readiness and metrics. For operators, never for callers."""

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
    """Why the store cannot be used; None if it can. A store that does not reply within `PROBE_S` cannot."""
    try:
        async with asyncio.timeout(PROBE_S):
            trouble = await async_trouble_with(store)
    except TimeoutError:
        return "no reply in time"
    return None if trouble is None else str(trouble)


class Admin:
    """Serves the admin port, if there is one, as an async context manager."""

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
            await web.SockSite(self._runner, found.dup()).start()  # the site closes its socket
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def forget(self, worker: int | None) -> None:
        """A worker is dead: keep its counters, and drop its gauges."""
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
        registry.register(WorkerMetrics(self._metrics))
        if self._records is not None:
            registry.register(self._records)
        body = await asyncio.to_thread(generate_latest, registry)  # it may wait a moment for the store
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


class WorkerMetrics:
    """The sums of the metrics in the files of all workers.

    A file is empty at first, and stays empty if its worker dies in that moment. An empty file is skipped, and so is
    one that the supervisor removes meanwhile, because its worker has died.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def collect(self) -> Iterable[Metric]:
        from prometheus_client.multiprocess import MultiProcessCollector

        files = [str(path) for path in self._folder.glob("*.db") if _size_of(path)]
        found: Iterable[Metric] = MultiProcessCollector.merge(files, accumulate=True)  # type: ignore[no-untyped-call]
        return found


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
