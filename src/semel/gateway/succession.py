"""Which generation of a gateway serves: at first the supervisor of this process, after a restart that of another one.

The process that the operator knows stays, so that a service manager does not lose it. It holds the sockets, passes
signals on, and starts a successor when a signal asks for a restart. The old generation serves until the new one is
ready.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from semel.gateway.logs import GatewayLog
from semel.gateway.rules import Rules
from semel.gateway.settings import GatewaySettings
from semel.gateway.sockets import HANDED_OVER, Sockets, format_address, open_sockets
from semel.gateway.supervisor import METRICS, Supervisor

logger = logging.getLogger("semel.gateway")
READY = b"ready"
START_S = 60.0
"""How long a successor may take until its workers are ready."""


class Generation(Protocol):
    """Workers that serve, or that finish their running requests."""

    async def run(self) -> int:
        """Wait for the end. The exit status."""
        ...

    def stop(self) -> None:
        """End: no other generation will serve."""

    def retire(self) -> None:
        """End: another generation serves now."""

    def reload(self) -> None:
        """Read the rules again."""


class Successor:
    """The same command in a process of its own, on the same sockets."""

    def __init__(self, process: Process, channel: socket.socket) -> None:
        self._process = process
        self._channel = channel

    @classmethod
    async def start(cls, sockets: Sockets) -> Successor:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            files = sockets.describe(theirs)
            named = " ".join(f"{name}={number}" for name, number in files.items())
            env = {name: value for name, value in os.environ.items() if name != METRICS} | {HANDED_OVER: named}
            command = [sys.executable, *sys.orig_argv[1:]]
            process = await asyncio.create_subprocess_exec(*command, env=env, pass_fds=tuple(files.values()))
        return cls(process, ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def become_ready(self) -> bool:
        """Wait until it serves. False when it cannot."""
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(START_S):
                return await asyncio.get_running_loop().sock_recv(self._channel, len(READY)) == READY
        return False

    async def run(self) -> int:
        status = await self._process.wait()
        self._channel.close()
        return 1 if status < 0 else status

    def stop(self) -> None:
        self._signal(signal.SIGTERM)

    def retire(self) -> None:
        self._channel.close()

    def reload(self) -> None:
        self._signal(signal.SIGHUP)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)


class Succession:
    """One generation serves. Others may still finish."""

    def __init__(self, settings: GatewaySettings, rules: Rules, sockets: Sockets, log: GatewayLog) -> None:
        self._sockets = sockets
        self._first = Supervisor(settings, rules, sockets, log)
        self._serving: Generation = self._first
        self._running = dict[asyncio.Task[int], Generation]()
        self._ended = asyncio.Queue[asyncio.Task[int]]()
        self._stopping = False
        self._restarting: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Until the generation that serves has ended. Its exit status."""
        self._listen_for_signals()
        self._watch(self._serving)
        announcing = asyncio.create_task(self._announce_ready())
        while True:
            task = await self._ended.get()
            if self._running.pop(task) is self._serving:
                break
        announcing.cancel()
        self.stop()
        if self._running:
            await asyncio.wait(self._running)
        return task.result()

    def stop(self) -> None:
        """Accept no more connections, and finish running requests."""
        self._close()
        for generation in self._running.values():
            generation.stop()

    def restart(self) -> None:
        """Start a successor. When it is ready, the generation that serves finishes its running requests."""
        if self._stopping or self._restarting is not None:
            logger.warning("a restart was asked for and is not begun: the gateway is restarting or stopping already")
            return
        self._restarting = asyncio.create_task(self._replace())

    async def _replace(self) -> None:
        try:
            await self._hand_over(await Successor.start(self._sockets))
        except OSError as error:
            logger.error("the restart failed, and the gateway serves on as it is: %s", error)
        finally:
            self._restarting = None

    async def _hand_over(self, successor: Successor) -> None:
        logger.info("restarting: process %d takes over as soon as it is ready", successor.pid)
        self._watch(successor)
        ready = await successor.become_ready()
        if self._stopping:
            successor.stop()
        elif not ready:
            successor.kill()
            logger.error(
                "the restart failed, and the gateway serves on as it is: process %d ended, or was not ready in %g s",
                *(successor.pid, START_S),
            )
        else:
            before, self._serving = self._serving, successor
            before.retire()
            logger.info("process %d has taken over; the workers before it finish their requests", successor.pid)

    def _listen_for_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._serving.reload())
        if self._sockets.channel is None:
            loop.add_signal_handler(signal.SIGUSR2, self.restart)
        else:  # the first process restarts, even if all of them are signalled
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
            loop.add_reader(self._sockets.channel.fileno(), self._retire)

    def _retire(self) -> None:
        """The process that started this one has closed the channel, or is dead."""
        assert self._sockets.channel is not None
        asyncio.get_running_loop().remove_reader(self._sockets.channel.fileno())
        self._close()
        for generation in self._running.values():
            generation.retire()

    def _close(self) -> None:
        self._stopping = True
        self._sockets.close()

    async def _announce_ready(self) -> None:
        """Tell the process that started this one."""
        await self._first.serves.wait()
        if self._sockets.channel is not None:
            with suppress(OSError):
                self._sockets.channel.send(READY)

    def _watch(self, generation: Generation) -> None:
        task = asyncio.create_task(generation.run())
        task.add_done_callback(self._ended.put_nowait)
        self._running[task] = generation


async def supervise(settings: GatewaySettings, rules: Rules, log: GatewayLog) -> int:
    """Run a gateway. The exit status is 0, or 1 if no worker could start."""
    sockets = open_sockets(settings)
    try:
        admin = None if sockets.admin is None else format_address(sockets.admin)
        bound = replace(settings, listen=format_address(sockets.listen), admin=admin)
        return await Succession(bound, rules, sockets, log).run()
    finally:
        sockets.close()
