"""The work of one exchange: run the application, collect its answer, settle the lease, and only then let the answer go.

A WSGI application cannot both answer and raise. If the work raised, its caller gets the same problem as every repeat.
The exception is raised again when the server closes the answer, which it does after the last byte. So the caller has
its answer, and the exception reaches the server's log, and an error tracker around us, once. The connection then ends.
(wsgiref logs it, too, and then fails in its own `close`: it forgets that it has answered. Nothing more is sent.)

If a framework has answered for the exception itself and says so (`operation.reported`), that is the answer. If it lets
exceptions through to a debugger or a test, they go on through us at once, and repeats get the problem.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING
from wsgiref.util import FileWrapper

from semel.codecs.responses import AnswerNotKept
from semel.core.decisions import Settlement, Superseded
from semel.core.http import Headers, Response
from semel.core.records import Lease
from semel.core.tables import Ending
from semel.http.admission import Keyed
from semel.http.answers import NO_ANSWER, Ended, Unfinished, known_of
from semel.http.held import HeldBody
from semel.runtime.operation import Inside, Operation
from semel.wsgi.answers import (
    ExcInfo,
    Streamed,
    WireHeaders,
    close_in,
    parts_in,
    read_status,
    status_line,
    wire_headers,
)

if TYPE_CHECKING:
    from semel.wsgi.exchange import WsgiExchange

logger = logging.getLogger("semel")


class WsgiExecution:
    """One attempt. Its operation is current in every step of the application, from the call to the close of its answer.

    So the application finds it in every thread in which the server iterates, and code around us does not. Other context
    variables that the application sets are visible around us, as without us.
    """

    def __init__(self, exchange: WsgiExchange, keyed: Keyed, lease: Lease) -> None:
        self.exchange = exchange
        self._front = exchange.front
        self.keyed = keyed
        self.answers = exchange.answers
        self.policy = exchange.policy
        self.lease = lease
        transaction = self.transaction = exchange.transaction
        self.kept = None if transaction else exchange.front.host.keeper.keep(lease, lease_ms=self.policy.lease_ms)
        self.operation = Operation(lease, self.kept, transaction)
        self._status: int | None = None
        self._reason: bytes | None = None
        self._headers: Headers = ()
        self._chunks: list[bytes] = []
        # Under exactly-once nothing is settled or sent before the application has ended.
        self._held = None if transaction is None else HeldBody(transaction.held_max)
        self._size = 0
        self._settlement: Settlement | None = None
        self._instead: Response | None = None
        self._wire_write: Callable[[bytes], object] | None = None
        self._iterable: Iterable[bytes] = ()
        self._iterator: Iterator[bytes] = iter(())
        self._error: Exception | None = None

    def run(self) -> Iterable[bytes]:
        try:
            return self._run()
        except BaseException:  # the server gets no answer, so it will not close one
            try:
                self.close()
            except Exception:
                logger.exception("closing the application's answer failed")
            raise

    def _run(self) -> Iterable[bytes]:
        try:
            self._collect()
            if self.transaction is not None and self._has_succeeded():
                self.transaction.flush()
            done = self._judge_answer(whole=self._is_whole()) if self._settlement is None else None
        except BaseException as error:
            done = self._judge_error(error)
            if done is None:
                raise
        if done is not None:
            return self._respond(self._settle(done))
        if self._instead is not None:
            return self._front.respond(self.exchange.start_response, self._instead, self.close)
        return Streamed(self._rest(), self.close)

    def _collect(self) -> None:
        """Run the application until its answer is whole, or too large to keep."""
        environ = self.exchange.environ
        if "wsgi.file_wrapper" in environ:  # the wrapper of some servers cannot be read from Python
            environ["wsgi.file_wrapper"] = FileWrapper
        with Inside(self.operation):
            self._iterable = self._front.app(environ, self._start_response)
            iterator = iter(self._iterable)
        self._iterator = parts_in(self.operation, iterator)
        while self._settlement is None:
            try:
                chunk = next(self._iterator)
            except StopIteration:
                break
            self._take(chunk)

    def _has_succeeded(self) -> bool:
        return self._status is not None and self._status < 400 and self.operation.reported is None

    def _is_whole(self) -> bool:
        """Whether all of the answer can be kept."""
        return self._held is None or self._held.size <= self.policy.result_max

    def _respond(self, response: Response) -> Iterable[bytes]:
        """Answer. A body that was too large to keep is sent from where it is held."""
        instead = response.body or isinstance(self._settlement, Superseded)
        if self._held is None or self._is_whole() or instead:
            return self._front.respond(self.exchange.start_response, response, self.close)
        self._start(response)
        return Streamed(self._held.chunks(), self.close)

    def _start(self, response: Response) -> Callable[[bytes], object]:
        """Call the server's `start_response` for an answer that follows in parts."""
        line = status_line(response, self._front.usual_phrase)
        return self.exchange.start_response(line, wire_headers(response.headers))

    def _rest(self) -> Iterator[bytes]:
        """The collected parts, then the rest of the application's answer."""
        collected = b"".join(self._chunks)
        self._chunks.clear()
        if collected:
            yield collected
        yield from self._iterator

    def close(self) -> None:
        """The server is done: close what the application returned, once, and raise the application's exception."""
        iterable, self._iterable = self._iterable, ()
        error, self._error = self._error, None
        try:
            close_in(self.operation, iterable)
        finally:
            if self._held is not None:
                self._held.close()
            if error is not None:
                raise error

    # What the application calls

    def _start_response(self, status: str, headers: WireHeaders, exc_info: ExcInfo = None) -> Callable[[bytes], object]:
        if exc_info is not None and exc_info[1] is not None:
            if self._size:  # the application has sent a part of its answer, and cannot go on
                raise exc_info[1].with_traceback(exc_info[2])
        elif self._status is not None:
            raise AssertionError("start_response() was called again without exc_info")
        self._status, self._reason = read_status(status, self._front.usual_phrase)
        self._headers = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers)
        return self._write

    def _write(self, chunk: bytes) -> None:
        self._take(chunk)
        if self._wire_write is not None:
            self._wire_write(b"".join(self._chunks))
            self._chunks.clear()

    def _take(self, chunk: bytes) -> None:
        if self._instead is not None:
            return
        if self._status is None and chunk:
            raise AssertionError("the application answered before it called start_response()")
        self._size += len(chunk)
        if self._held is not None:
            self._held.add(chunk)
            return
        self._chunks.append(chunk)
        if self._size > self.policy.result_max and self._settlement is None:
            self._overflow()

    # How it ended

    def _overflow(self) -> None:
        """Too large to keep: a tombstone is stored first, then the answer streams on, whole."""
        done = self._judge_answer(whole=False)
        final = self._settle(done)
        if isinstance(self._settlement, Superseded) or final.body:  # the answer is not the application's
            self._instead = final
            self._chunks.clear()
        else:
            self._wire_write = self._start(final)

    def _judge_answer(self, *, whole: bool) -> Ended:
        """The application answered, or its framework answered for an exception and reported it."""
        operation = self.operation
        if self._status is None:
            raise Unfinished("the application returned and never called start_response()")
        collected = self._chunks if self._held is None else self._held.chunks()
        body = b"".join(collected) if whole else b""
        response = Response(self._status, self._headers, body, self._reason)
        known = None
        if not whole:
            known = AnswerNotKept.ENDED if self._held is not None else known_of(self._headers, self._size)
        error = operation.reported
        if error is not None and (self.answers.declared(error) or not self._means_nothing_done(error)):
            if self._front.lets_exceptions_through():  # then this is a debugger's page, which is not kept
                known = AnswerNotKept.ENDED
            return self.keyed.raised(error, response, too_large=known)
        if error is not None:
            operation.nothing_done()
        return self.keyed.answered(response, operation, too_large=known)

    def _judge_error(self, error: BaseException) -> Ended | None:
        """The end of work that raised; None when the exception goes on instead of an answer."""
        if self._settlement is not None:
            return None  # the answer is being sent already, and breaks off
        if (declared := self.answers.declared(error)) is not None:
            return declared
        if not isinstance(error, Exception):  # killed or timed out: the outcome is unknown, so the lease lapses
            self._settle(Ended(Ending.INTERRUPTED, None, NO_ANSWER))
            return None
        if self._means_nothing_done(error):
            self._settle(Ended(Ending.NOTHING_DONE, None, NO_ANSWER))
            return None
        done = self.keyed.raised(error)
        if self._front.lets_exceptions_through():
            self._settle(done)
            return None
        self._error = error
        return done

    def _means_nothing_done(self, error: Exception) -> bool:
        return self.operation.nothing_was_done or isinstance(error, tuple(self.policy.release_exceptions))

    def _settle(self, done: Ended) -> Response:
        if self.kept is not None:
            self._front.host.keeper.stop(self.kept)
        self._settlement = self._front.host.settle(self.keyed, self.lease, done, self.exchange.asker)
        return self.answers.settled(self._settlement, done)
