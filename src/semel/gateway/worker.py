"""One worker process: a server on the supervisor's socket. It lives as long as its supervisor holds the channel."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any, cast

import uvicorn

from semel.gateway.app import Gateway
from semel.gateway.connections import CallerConnections, find_room
from semel.gateway.deadlines import TimedProtocol
from semel.gateway.logs import GatewayLog
from semel.gateway.rules import Rules
from semel.gateway.settings import GatewaySettings
from semel.runtime.listener import OnEvent, ignore

logger = logging.getLogger("semel.gateway")
READY = "ready"
TICK_S = 0.05
IDLE_S = 1.0
"""How long idle connections of a stopping gateway stay open, for requests that are on their way already. If there are
successors, idle connections stay open for as long as running requests may take.
"""


class Stop(Enum):
    """Why a worker is to finish what it has begun."""

    GATEWAY_STOPS = "the gateway stops"
    SUCCEEDED = "other workers accept connections"


class Server(uvicorn.Server):
    """Tells the supervisor when it accepts requests, leaves signals to it, and ends without losing a request."""

    def __init__(
        self, config: uvicorn.Config, channel: Connection, connections: CallerConnections, drain_s: float
    ) -> None:
        super().__init__(config)
        self._channel = channel
        self._connections = connections
        self._drain_s = drain_s
        self._idle_s = 0.0

    def finish(self, why: Stop) -> None:
        self._idle_s = self._drain_s if why is Stop.SUCCEEDED else min(IDLE_S, self._drain_s)
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            # Modules and classes stay as long as the process. A full collection that walks through them takes some ten
            # milliseconds, in which no request is answered.
            gc.freeze()
            with suppress(OSError):  # the supervisor is gone: the next event on the channel says so
                self._channel.send(READY)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, say `Connection: close` in the last answers, and close idle ones after a while.

        Closing an idle connection at once would lose the request that its caller may be sending on it just now.
        """
        for server in self.servers:
            server.close()
        for each in sockets or ():
            each.close()
        self._connections.retiring = True
        for connection in list(self.server_state.connections):
            cast(TimedProtocol, connection).retire()
        began = time.monotonic()
        while self.server_state.connections and time.monotonic() - began < self._idle_s:  # noqa: ASYNC110
            await asyncio.sleep(TICK_S)  # as the server itself waits for them
        left_s = max(0.0, self._drain_s - (time.monotonic() - began))
        self.config.timeout_graceful_shutdown = math.ceil(left_s)
        await super().shutdown(sockets)


def run_worker(settings: GatewaySettings, rules: Rules, listener: socket.socket, channel: Connection) -> None:
    """Serve until the channel says stop or closes, then finish running requests. Apply the rules that it sends."""
    log = GatewayLog()
    log.set(settings, rules)
    # Ctrl-C and a service manager's signals reach all processes: the supervisor decides, and tells each worker.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    room = find_room(settings.connections_max)
    app = Gateway(settings, rules, on_event=listener_of(settings, rules), upstream_max=room.upstream)
    connections = CallerConnections(room.callers)
    protocol = partial(TimedProtocol, settings, connections)
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
        ),
        channel,
        connections,
        settings.drain_s,
    )

    def apply(changed: Rules) -> None:
        log.set(settings, changed)
        app.apply(changed)

    factory = import_module("uvloop").new_event_loop if find_spec("uvloop") else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_serve(server, listener, channel, apply))
    log.flush()


def listener_of(settings: GatewaySettings, rules: Rules) -> OnEvent:
    """Metrics, if there is a port where they can be read. Operations are named as the rules name them."""
    if settings.admin is None:
        return ignore
    from semel.telemetry.prometheus import PrometheusListener

    return PrometheusListener(operations=[rule.match for rule in rules.rules], front="gateway")


async def _serve(server: Server, listener: socket.socket, channel: Connection, apply: Callable[[Rules], None]) -> None:
    loop = asyncio.get_running_loop()

    def read_channel() -> None:
        try:
            said: Rules | Stop = channel.recv()
        except (EOFError, OSError):  # the supervisor is gone
            loop.remove_reader(channel.fileno())
            said = Stop.GATEWAY_STOPS
        if isinstance(said, Stop):
            server.finish(said)
        else:
            apply(said)

    loop.add_reader(channel.fileno(), read_channel)
    await server.serve(sockets=[listener])
