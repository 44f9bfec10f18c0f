"""What the transports of httpx and httpx2 have in common. Both libraries give their classes the same names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakKeyDictionary

from semel.client.answers import OF_BODY, answer_of, encode_headers, is_streamed, leads_elsewhere
from semel.client.caller import ONCE_ONLY, UNAUTHORIZED, Caller, LibraryErrors
from semel.client.exchange import CallEnd, arun_exchange, run_exchange
from semel.client.journal import Intent, Journal
from semel.client.reports import reports
from semel.client.retry import Retry
from semel.core.call_values import OutgoingCall, SendRequest
from semel.core.dialects import KeyDialect
from semel.core.journal import CallRequest
from semel.core.retries import CallAnswer
from semel.errors import Misuse
from semel.runtime.listener import OnEvent

EXTENSION = "semel"


class Transport:
    """Sends requests of one library. `library` is its module, and `Any` stands for its classes."""

    def __init__(
        self,
        library: Any,
        journal: Journal | None,
        retry: Retry | None,
        dialect: KeyDialect,
        lease: float,
        on_event: OnEvent,
    ) -> None:
        errors = LibraryErrors(
            unreached=(library.ConnectError, library.ConnectTimeout, library.PoolTimeout, library.ProxyError),
            unsendable=(library.UnsupportedProtocol, library.LocalProtocolError),
            lost=(library.RequestError,),
        )
        self._library, self._caller = library, Caller(journal, retry, dialect, lease, on_event, errors)
        # The keys of requests that were answered with 401. An auth flow then sends the same object once more.
        self._keys: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

    def send(self, request: Any, handle: Callable[[Any], Any]) -> Any:
        intent, call = self._read(request)
        response: Any = None

        def attempt(effect: SendRequest) -> CallAnswer:
            nonlocal response
            if response is not None:
                response.close()
            response = handle(self._request(request, effect))
            if is_streamed(intent, response.status_code, response.headers):
                return answer_of(response.status_code, response.headers.multi_items(), b"")
            try:
                body = response.read()
            finally:
                response.close()
            response = self._with_body(response, body)
            return answer_of(response.status_code, response.headers.multi_items(), body)

        return self._respond(request, run_exchange(self._caller, call, intent, attempt), response)

    async def asend(self, request: Any, handle: Callable[[Any], Awaitable[Any]]) -> Any:
        """The same with `await`."""
        intent, call = self._read(request)
        response: Any = None

        async def attempt(effect: SendRequest) -> CallAnswer:
            nonlocal response
            if response is not None:
                await response.aclose()
            response = await handle(self._request(request, effect))
            if is_streamed(intent, response.status_code, response.headers):
                return answer_of(response.status_code, response.headers.multi_items(), b"")
            try:
                body = await response.aread()
            finally:
                await response.aclose()
            response = self._with_body(response, body)
            return answer_of(response.status_code, response.headers.multi_items(), body)

        return self._respond(request, await arun_exchange(self._caller, call, intent, attempt), response)

    def _read(self, request: Any) -> tuple[Intent | None, OutgoingCall]:
        """The call that a request asks for."""
        intent = self._caller.find_intent(request.method, request.extensions.get(EXTENSION))
        sent = CallRequest(request.method, str(request.url), tuple(request.headers.items()), self._body_of(request))
        return intent, self._caller.call_of(sent, intent, self._keys.get(request, ""))

    def _body_of(self, request: Any) -> bytes:
        """The bytes that every attempt sends."""
        # A redirect hands the stream of the first request on, so a form may come as one, too.
        is_form = request.headers.get("content-type", "").startswith("multipart/form-data")
        if is_form or isinstance(request.stream, self._library.ByteStream):
            body: bytes = request.read()
            return body
        raise Misuse(ONCE_ONLY)

    def _request(self, request: Any, effect: SendRequest) -> Any:
        """The request of one attempt."""
        headers = request.headers.copy()
        headers.update(dict(effect.headers))
        if "content-length" in headers:
            headers["content-length"] = str(len(effect.body))
        stream = self._library.ByteStream(effect.body)
        return self._library.Request(
            request.method, request.url, headers=headers, stream=stream, extensions=request.extensions
        )

    def _with_body(self, response: Any, body: bytes) -> Any:
        """A response whose body was read and decoded. Without one its headers stay, such as the length after a HEAD."""
        headers = response.headers.raw
        if body:
            headers = [each for each in headers if each[0].lower().decode("latin-1") not in OF_BODY]
        return self._made_response(response.status_code, headers, body, response.extensions)

    def _made_response(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes, extensions: Any) -> Any:
        """A response that is read as one from the network is, so that `iter_raw` and `elapsed` work."""
        length = [(b"content-length", str(len(body)).encode())] if body else []
        stream = self._library.ByteStream(body)
        return self._library.Response(status, headers=[*headers, *length], stream=stream, extensions=dict(extensions))

    def _respond(self, request: Any, end: CallEnd, response: Any) -> Any:
        if end.kept is not None:
            headers = encode_headers(end.kept.headers)
            response = self._made_response(end.kept.status, headers, end.kept.body or b"", {})
        if response.status_code == UNAUTHORIZED:
            self._keys[request] = end.report.key
        else:
            self._keys.pop(request, None)
        if leads_elsewhere(response.status_code, response.headers.get("location"), str(request.url)):
            request.headers.pop(self._caller.settings.dialect.header, None)
        reports[response] = end.report
        return response
