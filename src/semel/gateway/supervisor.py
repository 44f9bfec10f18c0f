"""The supervisor: keeps workers running on one socket, reads the rules, and answers on the admin port.

It never touches a request. A worker that dies is replaced; connections that no worker has accepted yet
wait for the next.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
from contextlib import AsyncExitStack, suppress
from enum import Enum
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from tempfile import TemporaryDirectory

from semel.errors import StoreMisconfigured
from semel.gateway.admin import Admin, find_trouble
from semel.gateway.logs import GatewayLog
from semel.gateway.rules import Rules, read_rules
from semel.gateway.settings import GatewaySettings, SettingsInvalid
from semel.gateway.sockets import Sockets
from semel.gateway.worker import Stop, listener_of, run_worker
from semel.http.gate import Gate
from semel.http.quota import AsyncQuotas
from semel.purger import AsyncPurger
from semel.stores.open import open_async_store
from semel.telemetry.listeners import purges

logger = logging.getLogger("semel.gateway")
METRICS = "PROMETHEUS_MULTIPROC_DIR"
"""Where the workers' counters are, for the admin port, which sums them."""
RESTART_DELAY_S = 1.0
"""How long to wait before a worker that could not start is started again."""
UNIDENTIFIED = (
    "the rules have no [tenant], so callers are told apart by their Authorization header: a refreshed token looks like "
    "another caller, and callers without one share their keys. Name a header or a claim in [tenant]"
)
UNKEYED = (
    "there is no --secret, so that header is stored as its plain SHA-256, and any reader of the store can confirm a "
    "guessed credential. Give 32 random bytes in SEMEL_GATEWAY_SECRET"
)
EXIT_S = 15.0
"""The time that a stopping worker needs after running work has ended: `semel.runtime.tasks.DRAIN_S`, and its exit."""


class Startup(Enum):
    """Whether the gateway could start: the exit status says so in the end."""

    PENDING = "no worker was ready yet"
    DONE = "a worker was ready"
    FAILED = "a worker ended before any was ready"


class Worker:
    """One process and the channel to it."""

    def __init__(self, process: ForkServerProcess, channel: Connection) -> None:
        self.process = process
        self.channel = channel
        self.ready = False


def check_rules(settings: GatewaySettings, log: GatewayLog) -> Rules:
    """Read the rules as a worker uses them, so that a mistake in them is reported before anything changes."""
    rules = read_rules(settings.rules)
    try:
        gate = Gate(rules.policy, rules.rules, secret=settings.secret)
        if gate.has_quota:
            _ = AsyncQuotas(settings.quota_storage).limiter
    except StoreMisconfigured as error:
        raise SettingsInvalid(f"--rules {settings.rules}: {_name_options(str(error))}") from None
    log.set(settings, rules)
    if rules.tenant is None:
        logger.warning(UNIDENTIFIED)
        if settings.secret is None:
            logger.warning(UNKEYED)
    return rules


def _name_options(error: str) -> str:
    """An error about the arguments of a middleware, with the names of the command line's options."""
    return error.replace("give the middleware a secret=", "give --secret").replace("quota_storage=", "--quota-storage")


class Supervisor:
    """Runs one generation of a gateway: this process and its workers."""

    def __init__(self, settings: GatewaySettings, rules: Rules, sockets: Sockets, log: GatewayLog) -> None:
        self.settings = settings
        self._log = log
        self.sockets = sockets
        self.rules = rules
        self.workers: list[Worker] = []
        self._startup = Startup.PENDING
        self.serves = asyncio.Event()
        """Set when all workers are ready for the first time."""
        self._why: Stop | None = None
        """Why this generation ends; None while it serves."""
        self._stop_asked = asyncio.Event()
        self._replacing: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["semel.gateway.seed"])

    async def run(self) -> int:
        """Serve until it is told to stop. The exit status is 0, or 1 if no worker could start."""
        async with AsyncExitStack() as stack:
            os.environ[METRICS] = metrics = stack.enter_context(TemporaryDirectory(prefix="semel-gateway-"))
            store = open_async_store(self.settings.store)
            stack.push_async_callback(store.close)
            on_event = listener_of(self.settings, self.rules)
            self._admin = await stack.enter_async_context(Admin(self, store, metrics))
            # The gateway may be the only program that uses the store, so it purges the store.
            await stack.enter_async_context(AsyncPurger(store, on_purged=purges(on_event)))
            if (trouble := await find_trouble(store)) is not None:
                logger.warning("the store does not answer, and requests with a key get 503 until it does: %s", trouble)
            for _ in range(self.settings.workers if self._why is None else 0):
                self._start_worker()
            await self._stop_asked.wait()
            if self._why is Stop.SUCCEEDED:
                await self._admin.close()  # the port is the successor's
            await self._end_workers()
        return 1 if self._startup is Startup.FAILED else 0

    @property
    def ready(self) -> bool:
        return not self.stopping and any(worker.ready for worker in self.workers)

    def reload(self) -> None:
        """Read the rules again and send them to every worker. A file with a mistake changes nothing."""
        try:
            self.rules = check_rules(self.settings, self._log)
        except SettingsInvalid as error:
            logger.error("the rules were not reloaded, and the old ones stay: %s", error)
            return
        for worker in self.workers:
            with suppress(OSError):  # it has just died; the worker that replaces it starts with these rules
                worker.channel.send(self.rules)
        logger.info("the rules were reloaded: %d of them", len(self.rules.rules))

    @property
    def stopping(self) -> bool:
        return self._why is not None

    def stop(self) -> None:
        """Finish running requests. New connections are refused, or wait for the next start."""
        self._finish(Stop.GATEWAY_STOPS)

    def retire(self) -> None:
        """Finish running requests without hurry: a successor accepts connections."""
        self._finish(Stop.SUCCEEDED)

    def _finish(self, why: Stop) -> None:
        self._why = why
        for worker in self.workers:
            with suppress(OSError):  # the worker has just died
                worker.channel.send(why)
        self._stop_asked.set()

    def _start_worker(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=run_worker, args=(self.settings, self.rules, self.sockets.listen, theirs)
        )
        process.start()
        theirs.close()
        worker = Worker(process, ours)
        self.workers.append(worker)
        loop = asyncio.get_running_loop()
        loop.add_reader(ours.fileno(), self._read_channel, worker)

    def _read_channel(self, worker: Worker) -> None:
        """Read what a worker sent: it is ready. If its end of the channel is closed, the worker is dead."""
        try:
            worker.channel.recv()
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(worker.channel.fileno())
            worker.channel.close()
            self._replacing.add(task := asyncio.create_task(self._replace_worker(worker)))
            task.add_done_callback(self._replacing.discard)
            return
        worker.ready = True
        if self._startup is Startup.PENDING:
            self._startup = Startup.DONE
        logger.info("worker %s is ready", worker.process.pid)
        if sum(each.ready for each in self.workers) == self.settings.workers:
            logger.info("listening on http://%s for %s", self.settings.listen, self.settings.upstream)
            self.serves.set()

    async def _replace_worker(self, worker: Worker) -> None:
        await _wait_for_end(worker.process)
        self._admin.forget(worker.process.pid)
        self.workers.remove(worker)
        if self.stopping:
            if not self.workers:
                self._empty.set()
            return
        logger.error("worker %s ended with %s", worker.process.pid, worker.process.exitcode)
        if not worker.ready:
            if self._startup is Startup.PENDING:
                self._startup = Startup.FAILED
                self.stop()
                return
            await asyncio.sleep(RESTART_DELAY_S)
        if not self.stopping:
            self._start_worker()

    async def _end_workers(self) -> None:
        """Wait for the workers. Kill those that do not finish in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_s + EXIT_S):
                await self._wait_until_empty()
        for worker in self.workers:
            logger.error("worker %s did not stop in time and is killed", worker.process.pid)
            worker.process.kill()
        await self._wait_until_empty()

    async def _wait_until_empty(self) -> None:
        if self.workers:
            await self._empty.wait()


async def _wait_for_end(process: ForkServerProcess) -> None:
    """Wait for the end of a process without blocking the loop."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(process.sentinel, ended.set)
    await ended.wait()
    loop.remove_reader(process.sentinel)
    process.join()
