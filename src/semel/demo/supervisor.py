"""The supervisor: holds the listening socket, so that no caller is refused while a killed worker is replaced."""

from __future__ import annotations

import errno
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from semel.demo.timeline import Timeline

BACKLOG = 128
PORTS_TRIED = 20
STOP_S = 5


class PortBusy(Exception):
    """Another program listens on this port."""


class WorkerFailed(Exception):
    """The worker ended by itself, which it does only if it cannot serve."""


def listen(host: str, port: int, *, further: bool) -> socket.socket:
    """A socket that listens on `port`; if it is busy, on one of the next ports when `further` says so."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    last = min(port + PORTS_TRIED, 65_535) if further and port else port
    for candidate in range(port, last + 1):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address[0], candidate))
            listener.listen(BACKLOG)
            return listener
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise
    which = f"ports {port} to {last} are" if last > port else f"port {port} is"
    raise PortBusy(f"{which} in use on {host}")


def supervise(listener: socket.socket, folder: Path, say: Callable[[str], None]) -> None:
    """Keep one worker alive until a signal stops us (Ctrl-C, SIGTERM, SIGHUP)."""
    timeline = Timeline(folder / "timeline.jsonl")
    with _catch_signals(), suppress(KeyboardInterrupt):
        while True:
            with _start(listener, folder) as worker:
                try:
                    code = worker.wait()
                finally:
                    _stop(worker)
            if code >= 0:
                raise WorkerFailed(f"the worker ended with exit code {code}; what it said is above")
            timeline.add("killed", worker=worker.pid)
            say(f"worker {worker.pid} was killed by {signal.Signals(-code).name}; starting another")


def _start(listener: socket.socket, folder: Path) -> subprocess.Popen[bytes]:
    number = listener.fileno()
    return subprocess.Popen(
        [sys.executable, "-m", "semel.demo.worker", str(number), str(folder)],
        stdin=subprocess.PIPE,  # ends with us
        pass_fds=[number],
        start_new_session=True,  # Ctrl-C is for us alone
    )


def _stop(worker: subprocess.Popen[bytes]) -> None:
    """End the worker, if it has not ended by itself."""
    worker.terminate()
    try:
        worker.wait(STOP_S)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()


@contextmanager
def _catch_signals() -> Iterator[None]:
    """Turn every signal that asks us to stop into a KeyboardInterrupt."""
    asked = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = {number: signal.signal(number, signal.default_int_handler) for number in asked}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
