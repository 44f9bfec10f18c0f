"""A gateway that is restarted again and again under load: no caller is refused, and nothing takes effect twice.

`PYTHONPATH=tests python -m gateway.restarts [RESTARTS] [signal] [manager]`, from the root of the repository. It is
restarted by SIGUSR2, and then as a service manager does that holds the socket.

Callers never repeat a request, and count whatever is not the answer of the service. Most keep their connection for as
long as the gateway does; the others make one for each request, as callers do that come for the first time.
"""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import aiohttp

from gateway.gatewaying import PATIENCE_S, GatewayServer
from gateway.soak import LedgerServer
from waiting import until

KEPT = 24
NEW = 8
SERVED = "has taken over"
ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass
class Load:
    """Callers who ask all the time, each for something new."""

    port: int
    upstream: int
    pause_s: float = 0.0
    """Between an answer and the next request of a caller."""
    sent: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    _going: bool = True

    def go_on(self, count: int = 200) -> None:
        """Wait until so many requests more were sent."""
        enough = self.sent.total() + count
        until(lambda: self.sent.total() >= enough, "callers wait for ever")

    async def during(self, restart: Callable[[], None]) -> dict[str, list[str]]:
        """Ask while it is restarted, in a thread. What has arrived at the service in the end."""
        callers = [asyncio.create_task(self._call(f"{number}", number < KEPT)) for number in range(KEPT + NEW)]
        try:
            await asyncio.to_thread(restart)
        finally:
            self._going = False
        await asyncio.gather(*callers)
        async with asyncio.timeout(PATIENCE_S):
            async with aiohttp.ClientSession() as session, session.get(self._ledger) as answer:
                arrived: dict[str, list[str]] = await answer.json(content_type=None)
                return arrived

    @property
    def _ledger(self) -> str:
        return f"http://127.0.0.1:{self.upstream}/ledger"

    async def _call(self, caller: str, keeps: bool) -> None:
        kept: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        number = 0
        while self._going:
            number += 1
            name = f"{caller}-{number}"
            self.sent[name] += 1
            began = time.monotonic()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    connection = kept or await asyncio.open_connection("127.0.0.1", self.port)
                    kept = await self._ask(name, connection, keeps)
            except (OSError, EOFError, ValueError, TimeoutError) as error:
                kept = None
                self.refused.append(f"{name}: {error!r}")
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            await asyncio.sleep(self.pause_s)
        if kept is not None:
            kept[1].close()

    async def _ask(
        self, name: str, connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], keeps: bool
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """The connection, if it may be used again."""
        reader, writer = connection
        body = name.encode()
        head = f"POST /pay HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {name}\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + (b"" if keeps else b"Connection: close\r\n") + b"\r\n" + body)
        answered = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answered.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        said = await reader.readexactly(length)
        if not answered.startswith(b"http/1.1 201") or said != f"{name} came 1 times".encode():
            raise ValueError(f"{answered!r} {said!r}")
        if b"\r\nconnection: close\r\n" in answered:
            writer.close()
            return None
        return connection


def check(load: Load, arrived: dict[str, list[str]]) -> dict[str, object]:
    """The promises, counted at the service."""
    doubled = [name for name, keys in arrived.items() if len(keys) > 1]
    assert not load.refused, f"{len(load.refused)} of {load.sent.total()} refused: {load.refused[:5]}"
    assert not doubled, f"took effect twice: {doubled[:5]}"
    assert arrived.keys() == load.sent.keys()
    return {
        "requests": load.sent.total(),
        "refused": len(load.refused),
        "doubled": len(doubled),
        "slowest answer": f"{load.slowest_s:.2f} s",
    }


def restart(gateway: GatewayServer) -> None:
    """SIGUSR2, and wait until it has worked."""
    before = gateway.said().count(SERVED)
    gateway.tell(signal.SIGUSR2)
    until(lambda: gateway.said().count(SERVED) > before, "it was not restarted")


def by_signal(restarts: int, *, workers: int = 2, pause_s: float = 0) -> dict[str, object]:
    """SIGUSR2 to the process that the operator knows."""
    with LedgerServer() as upstream, GatewayServer(upstream.port, workers=workers) as gateway:
        load = Load(gateway.port, upstream.port, pause_s)

        def restart_all() -> None:
            for _ in range(restarts):
                load.go_on()
                restart(gateway)
            load.go_on()

        arrived = asyncio.run(load.during(restart_all))
        until(lambda: len(gateway.workers()) == workers, "old workers are still there")
        gateway.tell(signal.SIGTERM)
        assert gateway.ended() == 0
        return {"restarts by SIGUSR2": restarts, **check(load, arrived)}


class Activated(GatewayServer):
    """A gateway whose socket a service manager holds, which is the test."""

    def __init__(self, upstream: int, listener: socket.socket) -> None:
        super().__init__(upstream)
        self._listener = listener
        self.port = listener.getsockname()[1]
        at = self._command.index("--listen")
        del self._command[at : at + 2]

    def command(self) -> Sequence[str]:
        return [sys.executable, "-c", ACTIVATE, str(self._listener.fileno()), *map(str, super().command())]

    def _spawn(self, command: Sequence[object], log: int) -> subprocess.Popen[bytes]:
        handed = (self._listener.fileno(),)
        return subprocess.Popen([*map(str, command)], cwd=self.folder, stdout=log, stderr=log, pass_fds=handed)

    def probe(self) -> None:
        assert self._process is not None
        assert f"listening on http://127.0.0.1:{self.port}" in self.said().rpartition("a new start")[2]


@contextmanager
def activated(upstream: int) -> Iterator[Activated]:
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener, Activated(upstream, listener) as gateway:
        yield gateway


def by_manager(restarts: int, *, pause_s: float = 0) -> dict[str, object]:
    """Stopped and started again, as `systemctl restart` does it with a socket unit."""
    with LedgerServer() as upstream, activated(upstream.port) as gateway:
        load = Load(gateway.port, upstream.port, pause_s)

        def restart() -> None:
            for _ in range(restarts):
                load.go_on()
                gateway.tell(signal.SIGTERM)
                assert gateway.ended() == 0
                with gateway.log.open("a") as log:
                    log.write("a new start\n")
                gateway.start()
            load.go_on()

        arrived = asyncio.run(load.during(restart))
        return {"restarts by a service manager": restarts, **check(load, arrived)}


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    ways = {"signal": by_signal, "manager": by_manager}
    for how in [ways[name] for name in sys.argv[2:]] or ways.values():
        began = time.monotonic()
        figures = how(count)
        print(*(f"{name:<32}{value}" for name, value in figures.items()), sep="\n")
        print(f"{'seconds':<32}{time.monotonic() - began:.0f}\n")
