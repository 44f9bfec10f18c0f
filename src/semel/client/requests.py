"""An adapter for requests that sends them safely again: mount it in the place of the one that you have."""

from __future__ import annotations

from collections.abc import Mapping

import requests
import urllib3
from requests import PreparedRequest, Response
from requests.adapters import BaseAdapter, HTTPAdapter

from semel.client.answers import answer_of, is_interim, is_streamed, leads_elsewhere, text_headers
from semel.client.arguments import check_kind
from semel.client.caller import ONCE_ONLY, UNAUTHORIZED, Caller, LibraryErrors
from semel.client.exchange import run_exchange
from semel.client.journal import Journal
from semel.client.marker import HEADER
from semel.client.reports import reports
from semel.client.retry import Retry
from semel.client.urllib3 import HINTED, respond
from semel.core.call_values import LEASE_MS, SendRequest
from semel.core.dialects import DRAFT_07, KeyDialect
from semel.core.journal import CallRequest
from semel.core.retries import CallAnswer
from semel.errors import Misuse
from semel.runtime.listener import OnEvent, ignore

ERRORS = LibraryErrors(
    unreached=(
        requests.ConnectTimeout,
        requests.exceptions.ProxyError,
        urllib3.exceptions.NewConnectionError,
        urllib3.exceptions.ConnectTimeoutError,
    ),
    unsendable=(
        requests.exceptions.InvalidURL,
        requests.exceptions.InvalidSchema,
        requests.exceptions.InvalidHeader,
        requests.exceptions.MissingSchema,
    ),
    lost=(requests.RequestException, urllib3.exceptions.HTTPError),
)


class IdempotentAdapter(BaseAdapter):
    """`session.mount("https://", IdempotentAdapter(HTTPAdapter()))` gives each POST and PATCH one key.

    With `headers=intent.headers` a request belongs to an intent, whose key outlives the process. `lease` says for how
    many seconds an intent is held without a sign of life: then another process sends it, with the same key.
    """

    def __init__(
        self,
        adapter: HTTPAdapter,
        *,
        journal: Journal | None = None,
        retry: Retry | None = None,
        dialect: KeyDialect = DRAFT_07,
        lease: float = LEASE_MS / 1_000,
        on_event: OnEvent = ignore,
    ) -> None:
        super().__init__()
        check_kind(adapter, HTTPAdapter, "adapter", "a requests.adapters.HTTPAdapter()")
        if adapter.max_retries.total:
            raise Misuse("two layers that repeat multiply: leave max_retries of the HTTPAdapter at 0, and give retry=")
        self._adapter, self._caller = adapter, Caller(journal, retry, dialect, lease, on_event, ERRORS)

    def send(
        self,
        request: PreparedRequest,
        stream: bool = False,
        timeout: float | tuple[float, float] | tuple[float, None] | None = None,
        verify: bool | str = True,
        cert: bytes | str | tuple[bytes | str, bytes | str] | None = None,
        proxies: Mapping[str, str] | None = None,
    ) -> Response:
        method, url = request.method or "", request.url or ""
        intent = self._caller.find_intent(method, request.headers.get(HEADER))
        kept = {name: value for name, value in request.headers.items() if name != HEADER}
        call = self._caller.call_of(CallRequest(method, url, text_headers(kept.items()), _body_of(request)), intent)
        response: Response | None = None

        def attempt(effect: SendRequest) -> CallAnswer:
            nonlocal response
            if response is not None:
                response.close()
            response = self._adapter.send(_sent(request, effect), stream, timeout, verify, cert, proxies)
            if is_interim(method, response.status_code):
                response.close()
                raise requests.ConnectionError(HINTED.format(response.status_code))
            is_read = not stream or not is_streamed(intent, response.status_code, response.headers)
            body = response.content if is_read else b""
            return answer_of(response.status_code, response.raw.headers.items(), body)

        end = run_exchange(self._caller, call, intent, attempt)
        if end.kept is not None:
            response = self._adapter.build_response(
                request, respond(end.kept.status, end.kept.headers, end.kept.body or b"")
            )
        assert response is not None
        if response.status_code == UNAUTHORIZED and intent is not None:
            response.request = request  # `requests.auth` sends a copy of it: with the intent, or else with the key
        response.connection = self  # type: ignore[assignment]
        if leads_elsewhere(response.status_code, response.headers.get("location"), url):
            request.headers.pop(self._caller.settings.dialect.header, None)
        reports[response] = end.report
        return response

    def close(self) -> None:
        self._adapter.close()


def _body_of(request: PreparedRequest) -> bytes:
    """The bytes that every attempt sends."""
    body: object = request.body
    if isinstance(body, str):
        return body.encode()
    if body is None or isinstance(body, bytes):
        return body or b""
    raise Misuse(ONCE_ONLY)


def _sent(request: PreparedRequest, effect: SendRequest) -> PreparedRequest:
    """The request of one attempt."""
    sent = request.copy()
    sent.headers.pop(HEADER, None)
    sent.headers.update(effect.headers)
    if effect.body:
        sent.body = effect.body
        sent.headers["Content-Length"] = str(len(effect.body))
    return sent
