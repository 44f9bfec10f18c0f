"""One worker process: a server on the supervisor's socket. It lives as long as its supervisor holds the channel."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any, cast

import uvicorn

from semel.drive import OnEvent, ignore
from semel.gateway.app import Gateway
from semel.gateway.connections import Connections, find_room
from semel.gateway.deadlines import TimedProtocol
from semel.gateway.rules import Rules
from semel.gateway.settings import Settings

logger = logging.getLogger("semel.gateway")
READY = "ready"
STOP = None


class Server(uvicorn.Server):
    """Tells the supervisor when it takes requests, and leaves signals to it."""

    def __init__(self, config: uvicorn.Config, channel: Connection) -> None:
        super().__init__(config)
        self._channel = channel

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            # Modules and classes stay as long as the process. A full collection that walks through them takes some ten
            # milliseconds, in which nobody is answered.
            gc.freeze()
            with suppress(OSError):  # nobody is there to hear it: the next event on the channel says so
                self._channel.send(READY)


def log_to_stderr() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def work(settings: Settings, rules: Rules, listener: socket.socket, channel: Connection) -> None:
    """Serve until the channel says stop or closes, then finish what has begun. Rules that come are applied."""
    log_to_stderr()
    # A terminal's Ctrl-C and a service manager's stop reach all of us: the supervisor decides, and tells each worker.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    room = find_room(settings.connections_max)
    app = Gateway(settings, rules, on_event=listener_of(settings, rules), upstream_max=room.upstream)
    protocol = partial(TimedProtocol, settings, Connections(room.callers))
    server = Server(
        uvicorn.Config(
            app,
            http=cast(Any, protocol),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            limit_concurrency=room.callers + 1,  # of requests; connections are refused before there are so many
            timeout_graceful_shutdown=math.ceil(settings.drain_s),
        ),
        channel,
    )
    factory = import_module("uvloop").new_event_loop if find_spec("uvloop") else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_serve(server, app, listener, channel))


def listener_of(settings: Settings, rules: Rules) -> OnEvent:
    """Metrics, if there is a port where they can be read. Operations are named as the rules name them."""
    if settings.admin is None:
        return ignore
    from semel.telemetry.prometheus import PrometheusListener

    return PrometheusListener(operations=[rule.match for rule in rules.rules], front="gateway")


async def _serve(server: uvicorn.Server, app: Gateway, listener: socket.socket, channel: Connection) -> None:
    loop = asyncio.get_running_loop()

    def told() -> None:
        try:
            said: Rules | None = channel.recv()
        except (EOFError, OSError):  # the supervisor is gone
            said = STOP
        if said is None:
            loop.remove_reader(channel.fileno())
            server.should_exit = True
        else:
            app.apply(said)

    loop.add_reader(channel.fileno(), told)
    await server.serve(sockets=[listener])
