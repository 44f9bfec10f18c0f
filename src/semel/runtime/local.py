"""Connections belong to one process and one event loop. These holders make a new one where the old must not be used.

After a fork the child holds copies of the parent's sockets. A reply would go to the process that reads first. So the
child neither uses nor closes its copy.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary, ref

from semel.errors import StoreError

T = TypeVar("T")
_process = os.getpid()


def process() -> int:
    """The id of this process, without a system call every time: in some sandboxes that is slow."""
    return _process


def _note_fork() -> None:
    global _process
    _process = os.getpid()


if hasattr(os, "register_at_fork"):  # where processes can fork
    os.register_at_fork(after_in_child=_note_fork)


class Once:
    """Something that has to be done once, before anything else. Threads that wait while it fails share the failure.

    Otherwise each of them would try in turn, and the last one would wait for the time-outs of all.
    """

    def __init__(self) -> None:
        self.done = False
        self._lock = threading.Lock()
        self._failed_s = 0.0
        self._failure: StoreError | None = None

    def do(self, work: Callable[[], None]) -> None:
        came_s = time.monotonic()
        with self._lock:
            if self.done:
                return
            if self._failure is not None and self._failed_s > came_s:
                raise again(self._failure)
            try:
                work()
            except StoreError as error:
                self._failure, self._failed_s = error, time.monotonic()
                raise
            self.done = True


class AsyncOnce:
    """The same for the tasks of one event loop."""

    def __init__(self) -> None:
        self.done = False
        self._lock = asyncio.Lock()
        self._failed_s = 0.0
        self._failure: StoreError | None = None

    async def do(self, work: Callable[[], Awaitable[None]]) -> None:
        came_s = time.monotonic()
        async with self._lock:
            if self.done:
                return
            if self._failure is not None and self._failed_s > came_s:
                raise again(self._failure)
            try:
                await work()
            except StoreError as error:
                self._failure, self._failed_s = error, time.monotonic()
                raise
            self.done = True


def again(error: StoreError) -> StoreError:
    """A copy of the failure for another caller: an exception object must not be raised in two threads."""
    return type(error)(str(error))


class PerProcess(Generic[T]):
    """One `T` for each process, made on first use.

    The parent's value stays under the parent's id: it is never used here, and no destructor writes to its sockets.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: dict[int, T] = {}
        self._first: dict[int, Once] = {}  # per process: a thread that only the parent has may hold its lock

    def get(self) -> T:
        pid = process()
        while (value := self._values.get(pid)) is None:  # again if another thread has just taken it
            self._first.setdefault(pid, Once()).do(lambda: self._values.__setitem__(pid, self._make()))
        return value

    def take(self) -> T | None:
        """Hand out this process's value for closing, if there is one. The next use makes another one."""
        value = self._values.pop(process(), None)
        self._first.pop(process(), None)
        return value


class PerLoop(Generic[T]):
    """One `T` for each running event loop, made on first use and forgotten when its loop is closed."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: dict[int, WeakKeyDictionary[asyncio.AbstractEventLoop, T]] = {}
        self._last: tuple[int, Callable[[], asyncio.AbstractEventLoop | None], T] | None = None

    def get(self) -> T:
        loop, last = asyncio.get_running_loop(), self._last
        if last is not None and last[1]() is loop and last[0] == _process:
            return last[2]
        value = self._get(loop)
        self._last = process(), ref(loop), value
        return value

    def _get(self, loop: asyncio.AbstractEventLoop) -> T:
        values = self._here()
        value = values.get(loop)
        if value is None:
            for old in [key() for key in values.keyrefs()]:  # a connection keeps its loop, and so the weak key, alive
                if old is not None and old.is_closed():
                    values.pop(old, None)
            value = values[loop] = self._make()
        return value

    def take(self) -> T | None:
        """Hand out this loop's value for closing, if there is one."""
        self._last = None
        return self._here().pop(asyncio.get_running_loop(), None)

    def _here(self) -> WeakKeyDictionary[asyncio.AbstractEventLoop, T]:
        here = self._values.get(pid := process())
        return self._values.setdefault(pid, WeakKeyDictionary()) if here is None else here
