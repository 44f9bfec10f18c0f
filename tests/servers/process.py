"""A server of our own: one process tree, one folder, one port, and nothing left of it when the tests are over."""

import atexit
import contextlib
import functools
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, Self, TypedDict

import psutil

START_SECONDS = 90  # RabbitMQ takes five on an idle machine
STOP_SECONDS = 10

# A server dies with the *thread* that started it (see `_die_with_us`): this one lives as long as we do.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="servers")


class Identity(TypedDict, total=False):
    """Arguments of `subprocess` that say who runs a program."""

    user: int
    group: int
    extra_groups: list[int]


class ServerFailed(Exception):
    """A server did not start; the message ends with its log."""


class Server(ABC):
    """Subclasses say how to prepare, start and probe; this class owns the process tree."""

    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    refuses_root: ClassVar[bool] = False

    def __init__(self) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="semel-"))
        self.log = self.folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._made_by = os.getpid()
        atexit.register(self.stop)

    @abstractmethod
    def prepare(self) -> None:
        """Write what the server needs into its folder, once."""

    @abstractmethod
    def command(self) -> Sequence[str | Path]:
        """The command that runs the server in the foreground."""

    @abstractmethod
    def probe(self) -> None:
        """Raise unless the server answers."""

    def start(self) -> Self:
        if not self.log.exists():
            if user := self._user():
                os.chown(self.folder, user.pw_uid, user.pw_gid)
            self.prepare()
        with self.log.open("ab") as log:
            self._process = _starter.submit(self._spawn, self.command(), log.fileno()).result()
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                text = self.log.read_text(errors="replace")
                self.stop()
                raise ServerFailed(f"{type(self).__name__} on port {self.port} did not start. Its log:\n{text}")
            time.sleep(0.02)
        return self

    def stop(self) -> None:
        """End it in good order and remove its folder."""
        if os.getpid() == self._made_by:  # a forked child must not stop its parent's servers
            atexit.unregister(self.stop)
            self.end()
            shutil.rmtree(self.folder, ignore_errors=True)

    def end(self) -> None:
        """End it in good order. `restart` finds what it wrote down."""
        if self._process is None or self._process.poll() is not None:
            self._process = None
            return
        children = self._signal(signal.SIGCONT)
        self._process.send_signal(self.stop_signal)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self._process = None

    def kill(self) -> None:
        """SIGKILL to every process at once, as if the power went. `restart` finds the data as it was."""
        if self._process is not None:
            family = self._signal(signal.SIGKILL)
            self._process.wait(STOP_SECONDS)
            wait_until_dead(family)
            self._process = None

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Start again on the same port with the same data, whether it runs, is paused or was killed."""
        self.end()
        self.start()

    def revive(self) -> Self:
        """Start it again unless it answers: an earlier test may have killed or paused it."""
        if not self._answers():
            self.restart()
        return self

    def run(self, command: Sequence[str | Path]) -> None:
        """Run a preparing program to its end, as the user who runs the server."""
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False, **self._identity())
        if done.returncode:
            raise ServerFailed(f"{command[0]} failed:\n{done.stdout}{done.stderr}")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _spawn(self, command: Sequence[str | Path], log: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*_die_with_us(), *command],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the tests, which then stop their servers
            **self._identity(),
        )

    def _answers(self) -> bool:
        try:
            self.probe()
        except Exception:
            return False
        return True

    def _signal(self, number: signal.Signals) -> list[psutil.Process]:
        assert self._process is not None, "the server is not running"
        parent = psutil.Process(self._process.pid)
        parent.suspend()  # so that it makes no children while we count them
        children = parent.children(recursive=True)
        for process in (*children, parent):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        return children

    def _user(self) -> pwd.struct_passwd | None:
        return _unprivileged() if self.refuses_root and os.geteuid() == 0 else None

    def _identity(self) -> Identity:
        user = self._user()
        return Identity(user=user.pw_uid, group=user.pw_gid, extra_groups=[]) if user else Identity()


def free_port() -> int:
    """A free port below those that the kernel gives to clients: still free when a killed server wants it back."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def wait_until_dead(processes: Iterable[psutil.Process]) -> None:
    """Dead, though perhaps not yet collected: orphans are zombies until the first process looks after them."""
    deadline = time.monotonic() + STOP_SECONDS
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            while process.status() != psutil.STATUS_ZOMBIE:
                assert time.monotonic() < deadline, f"{process} is still alive"
                time.sleep(0.005)


@functools.cache
def _unprivileged() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


@functools.cache
def _die_with_us() -> list[str]:
    """On Linux the kernel ends our servers even if we are killed; elsewhere `atexit` has to do."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []
