"""One keyed request up to the decision: read it, claim its key, then replay, refuse, or run the work."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import TYPE_CHECKING, Any, assert_never
from wsgiref.types import StartResponse, WSGIEnvironment

from semel.core import http
from semel.core.decisions import Run
from semel.core.fingerprint import RequestParts
from semel.core.http import Headers, Response
from semel.http.admission import Answered, Keyed
from semel.http.answers import Answers
from semel.http.gate import Admitted, too_large_body
from semel.runtime.calls import Unprotected
from semel.runtime.operation import Inside, Operation
from semel.wsgi.answers import (
    ExcInfo,
    Streamed,
    WireHeaders,
    close_in,
    parts_in,
    plain,
    undirected,
    wire_headers,
)
from semel.wsgi.execution import WsgiExecution
from semel.wsgi.request import length_is_known, length_of, raw_path_of, read

if TYPE_CHECKING:
    from semel.transaction.http import RequestTransaction
    from semel.wsgi.middleware import IdempotencyMiddleware

logger = logging.getLogger("semel")
CUT_SHORT = plain(400, b"The request body ended before its Content-Length. Nothing was run.\n")
"""Hardly any client reads it: most of them left while they were sending."""
WITHOUT_LENGTH = plain(411, b"This server does not take a body in chunks. Send a Content-Length. Nothing was run.\n")
"""The application would read an empty body, so every request with this key would look the same."""


class WsgiExchange:
    """One request until its work begins."""

    def __init__(
        self,
        front: IdempotencyMiddleware,
        admitted: Admitted,
        answers: Answers,
        environ: WSGIEnvironment,
        headers: Headers,
        start_response: StartResponse,
    ) -> None:
        self.front = front
        self.policy = admitted.policy
        self.admitted = admitted
        self.answers = answers
        self.environ = environ
        self.headers = headers
        self.start_response = start_response
        self.asker = front.host.asker
        self.transaction: RequestTransaction[Any] | None = None

    def run(self) -> Iterable[bytes]:
        body = self._read_body()
        if isinstance(body, Response):
            return self.front.respond(self.start_response, body)
        method, query = self.environ["REQUEST_METHOD"].upper(), self.environ.get("QUERY_STRING", "")
        request = RequestParts(method, raw_path_of(self.environ), query, self.headers, body)
        self._hand_on(body)  # `identify` may read it
        claim = self.front.gate.claim(self.admitted, self.front.tenant(self.environ), request)
        self._hand_on(body)
        transactions = self.front.transactions
        if transactions is None:
            return self._serve(Keyed(self.front.host, self.front.gate, self.policy, self.answers, claim, self.headers))
        # Only the thread that runs the request ends its transaction.
        transaction: RequestTransaction[Any] = transactions.request()
        self.transaction, self.asker = transaction, self.front.host.asker_on(transaction)
        try:
            keyed = Keyed(
                self.front.host,
                self.front.gate,
                self.policy,
                self.answers,
                claim,
                self.headers,
                transaction=transaction,
            )
            return self._serve(keyed)
        finally:
            transaction.end()

    def _read_body(self) -> bytes | Response:
        """The whole body, or the answer to a request without a usable body."""
        if not length_is_known(self.environ):
            return WITHOUT_LENGTH
        length, size_max = length_of(self.environ), self.policy.body_max
        too_large = length is not None and length > size_max
        body = b"" if too_large else read(self.environ["wsgi.input"], size_max + 1 if length is None else length)
        if too_large or len(body) > size_max:
            method, path = self.environ["REQUEST_METHOD"], raw_path_of(self.environ)
            refused = too_large_body(size_max, self.policy)
            return self.front.gate.refuse(refused, self.answers, method, path, self.headers)
        if length is not None and len(body) < length:
            logger.warning(
                "the body of %s %s ended after %d of %d bytes: the client left, or wsgi.input was read before us",
                self.environ["REQUEST_METHOD"], raw_path_of(self.environ), len(body), length,
            )  # fmt: skip
            return CUT_SHORT
        return body

    def _hand_on(self, body: bytes) -> None:
        self.environ["wsgi.input"] = BytesIO(body)
        self.environ["wsgi.input_terminated"] = True

    def _serve(self, keyed: Keyed) -> Iterable[bytes]:
        begun = self.front.host.begin(keyed, self.asker)
        match begun:
            case Run(lease):
                execution = WsgiExecution(self, keyed, lease)
                accept_s = keyed.accept_s
                detached = None if accept_s is None else self.front.detached.serve(execution, accept_s)
                return execution.run() if detached is None else detached
            case Unprotected(lease):
                return self._run_open(Operation(lease))
            case Answered(response):
                return self.front.respond(self.start_response, response)
            case _:
                assert_never(begun)

    def _run_open(self, operation: Operation) -> Iterable[bytes]:
        """Fail open: run unprotected, with a mark on the answer."""
        with Inside(operation):
            iterable = self.front.app(self.environ, self._marked_start_response)
            iterator = iter(iterable)
        return Streamed(parts_in(operation, iterator), lambda: close_in(operation, iterable))

    def _marked_start_response(
        self, status: str, headers: WireHeaders, exc_info: ExcInfo = None
    ) -> Callable[[bytes], object]:
        """A `start_response` that marks the application's own answer: nothing was stored."""
        return self.start_response(status, [*undirected(headers), *wire_headers((http.NOT_STORED,))], exc_info)
