"""Work that goes on after its caller was answered with 202: `Prefer: respond-async` for a first request.

The server's thread has to return an answer, so the application runs in another thread, which semel starts. If it ends
in time, the caller gets its answer as usual. Otherwise the caller gets 202 and a link to the result, the server ends
the request, and the work goes on with a copy of the environ.

Requests without that header run in the server's thread. `detached_max=0` is for applications that must not run in
another thread.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import Context, ContextVar, Token, copy_context
from itertools import chain
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Any
from wsgiref.types import StartResponse, WSGIEnvironment

from semel.runtime.tasks import DRAIN_S
from semel.wsgi.answers import ExcInfo, Streamed, Whole, WireHeaders

if TYPE_CHECKING:
    from semel.wsgi.execution import WsgiExecution

logger = logging.getLogger("semel")
DETACHED_MAX = 8
"""How many operations may run in threads of semel's in one process; the callers of further ones wait."""
WRITTEN_MAX = 1_048_576
"""Output of `write()` above this size is kept in a file until its caller takes it."""
READ_SIZE = 65_536
SOCKETS = ("gunicorn.socket", "werkzeug.socket", "uwsgi.fd")
"""The members of an environ that belong to the connection, which the work may not use any more."""


def detach_environ(environ: WSGIEnvironment) -> WSGIEnvironment:
    """A copy of the environ that is still valid when the server has ended the request. Its body must be in memory."""
    kept = {name: value for name, value in environ.items() if name not in SOCKETS}
    # Some servers close their own with the request.
    return kept | {"wsgi.errors": sys.stderr, "wsgi.multithread": True}


class DetachedWork:
    """The operations of one middleware that run in threads of their own: a bounded number in each process."""

    def __init__(self, count_max: int | None) -> None:
        if count_max is not None and (type(count_max) is not int or count_max < 0):
            raise ValueError(f"detached_max must be 0 or a number of operations, not {count_max!r}")
        self._count_max = count_max
        self._running: dict[int, Running] = {}

    def serve(self, execution: WsgiExecution, accept_s: float) -> Iterable[bytes] | None:
        """Answer within `accept_s`: with the work's own answer, or with 202.

        None when nothing was begun, and the server's thread has to run the work. That is so when this is switched off,
        when too many operations run, or when the work is one transaction, which belongs to one thread.
        """
        exchange = execution.exchange
        count_max = self._count_max_in(exchange.environ)
        if count_max == 0 or execution.transaction is not None:
            return None
        start_response, environ = exchange.start_response, detach_environ(exchange.environ)

        def work(start: StartDetached) -> Iterable[bytes]:
            exchange.start_response, exchange.environ = start, environ
            return execution.run()

        detached = self._begin(Detached(work, self._here()), count_max)
        if detached is None:
            return None
        if detached.has_ended(accept_s):
            return detached.take(start_response)
        return exchange.front.respond(start_response, execution.keyed.accepted())

    def _here(self) -> Running:
        """The count of this process: after a fork, the counted threads exist only in the parent."""
        pid = os.getpid()
        return self._running.get(pid) or self._running.setdefault(pid, Running())

    def _count_max_in(self, environ: WSGIEnvironment) -> int:
        """By default 0 on a server with one thread: it promises the application that nothing runs beside it."""
        if self._count_max is not None:
            return self._count_max
        return DETACHED_MAX if environ.get("wsgi.multithread") else 0

    def _begin(self, detached: Detached, count_max: int) -> Detached | None:
        running = self._here()
        if not running.enter(count_max):
            return None
        thread = threading.Thread(target=detached.run, name="semel-detached", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads
            running.leave()
            return None
        return detached

    def drain(self, timeout_s: float = DRAIN_S) -> None:
        """Let work that has begun end, within a bound."""
        if (running := self._running.get(os.getpid())) is not None:
            running.drain(timeout_s)


class Running:
    """Counts the operations that run in one process, and waits for them when the interpreter ends."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()
        atexit.register(self.drain)

    def enter(self, count_max: int) -> bool:
        with self._changed:
            if self._count >= count_max:
                return False
            self._count += 1
            return True

    def leave(self) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def drain(self, timeout_s: float = DRAIN_S) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._count == 0, timeout_s)
            if self._count:
                logger.error(
                    "%d operations were cut off because the process ends: their outcome is unknown", self._count
                )


class StartDetached:
    """A `start_response` that keeps its arguments until it is known whether the caller still waits."""

    def __init__(self) -> None:
        self.status = ""
        self.headers: WireHeaders = []
        self._written = SpooledTemporaryFile[bytes](WRITTEN_MAX)

    def __call__(self, status: str, headers: WireHeaders, exc_info: ExcInfo = None, /) -> Callable[[bytes], object]:
        self.status, self.headers = status, headers
        return self._written.write

    def has_written(self) -> bool:
        return self._written.tell() > 0

    def written(self) -> Iterator[bytes]:
        """The output of `write()`, which comes before the returned body."""
        self._written.seek(0)
        while part := self._written.read(READ_SIZE):
            yield part

    def close(self) -> None:
        self._written.close()


class Adopted:
    """Copies the work's changes of context variables into the server's thread, where the work would have run."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._tokens: dict[ContextVar[Any], Token[Any]] = {}

    def follow(self) -> None:
        """Set the variables of this thread to the work's values."""
        for variable, value in self._context.items():
            if variable.get(None) is not value:
                self._tokens.setdefault(variable, variable.set(value))
        for variable in self._tokens.keys() - self._context.keys():  # the work has reset them
            with suppress(ValueError):  # the server runs in another context by now, which has none of these
                variable.reset(self._tokens.pop(variable))


class Detached:
    """One operation in a thread of its own. The server's thread takes its answer; after a 202 this thread does."""

    def __init__(self, work: Callable[[StartDetached], Iterable[bytes]], running: Running) -> None:
        self._work = work
        self._running = running
        self._start = StartDetached()
        self._context = copy_context()
        self._adopted = Adopted(self._context)
        self._answer: Iterable[bytes] | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._caller_left = False

    def run(self) -> None:
        """Run the work in this thread."""
        try:
            answer: Iterable[bytes] | None = None
            error: BaseException | None = None
            try:
                answer = self._context.run(self._work, self._start)
            except BaseException as raised:
                error = raised
            with self._lock:
                self._answer, self._error = answer, error
                self._ended.set()
                if not self._caller_left:
                    return
            self._context.run(self._finish)
        finally:
            self._running.leave()

    def has_ended(self, wait_s: float) -> bool:
        """Wait for the answer. After False the caller gets 202, and `take` must not be called."""
        self._ended.wait(wait_s)
        with self._lock:
            self._caller_left = not self._ended.is_set()
            return not self._caller_left

    def take(self, start_response: StartResponse) -> Iterable[bytes]:
        """The answer, for the server's thread: from here on everything is as if the work had run there."""
        self._adopted.follow()
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        answer, start = self._answer, self._start
        start_response(start.status, start.headers)
        if isinstance(answer, Whole) and not start.has_written():
            return Whole(b"".join(answer), self._close)
        return Streamed(chain(start.written(), self._parts(iter(answer))), self._close)

    def _parts(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        """The rest of the answer, made in the context in which it was begun."""
        while True:
            try:
                part = self._context.run(next, parts)
            except StopIteration:
                return
            finally:
                self._adopted.follow()
            yield part

    def _close(self) -> None:
        self._start.close()
        try:
            if (close := getattr(self._answer, "close", None)) is not None:
                self._context.run(close)
        finally:
            self._adopted.follow()

    def _finish(self) -> None:
        """The caller has its 202, and the result is stored: consume the rest of the answer, and log a failure."""
        try:
            if self._error is not None:
                raise self._error
            assert self._answer is not None
            try:
                for _ in self._answer:
                    pass
            finally:
                if (close := getattr(self._answer, "close", None)) is not None:
                    close()
        except BaseException:
            logger.exception("an operation whose caller was answered with 202 raised")
        finally:
            self._start.close()
