"""A pool manager for urllib3 that sends requests safely again."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import urllib3
from urllib3 import BaseHTTPResponse, HTTPHeaderDict, HTTPResponse
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    LocationValueError,
    NewConnectionError,
    ProtocolError,
    ProxyError,
)
from urllib3.poolmanager import PoolKey

from semel.client.answers import answer_of, is_interim, is_streamed, reason_of, text_headers
from semel.client.caller import ONCE_ONLY, Caller, LibraryErrors
from semel.client.exchange import run_exchange
from semel.client.journal import Journal
from semel.client.marker import HEADER
from semel.client.reports import reports
from semel.client.retry import Retry
from semel.core.call_values import LEASE_MS, SendRequest
from semel.core.dialects import DRAFT_07, KeyDialect
from semel.core.journal import CallRequest, TextHeaders
from semel.core.retries import CallAnswer
from semel.errors import Misuse
from semel.runtime.listener import OnEvent, ignore

__all__ = ["IdempotentPoolManager"]

ERRORS = LibraryErrors(
    unreached=(NewConnectionError, ConnectTimeoutError, ProxyError),
    unsendable=(LocationValueError,),
    lost=(HTTPError,),
)
HINTED = "{} is no answer, and Python's http.client cannot read the one after it: httpx and aiohttp can"
OPTIONS = ("journal=", "retry=", "dialect=", "lease=", "on_event=")
POOL_OPTIONS = {"num_pools", "headers", *(field.removeprefix("key_") for field in PoolKey._fields)}
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class IdempotentPoolManager(urllib3.PoolManager):
    """`IdempotentPoolManager().request("POST", url, json=…)` gives each POST and PATCH one key.

    With `headers=intent.headers` a request belongs to an intent, whose key outlives the process. `lease` says for how
    many seconds an intent is held without a sign of life: then another process sends it, with the same key.

    Redirects of these requests are returned, not followed. GET, HEAD and OPTIONS stay with urllib3 and its `retries`.
    """

    def __init__(
        self,
        *,
        journal: Journal | None = None,
        retry: Retry | None = None,
        dialect: KeyDialect = DRAFT_07,
        lease: float = LEASE_MS / 1_000,
        on_event: OnEvent = ignore,
        **pool: Any,
    ) -> None:
        if unknown := sorted(pool.keys() - POOL_OPTIONS):  # urllib3 finds it with the first request
            raise TypeError(
                f"IdempotentPoolManager() has no option {unknown[0]}=: it takes {', '.join(OPTIONS)}, and "
                "what urllib3.PoolManager takes"
            )
        super().__init__(**pool)
        self._caller = Caller(journal, retry, dialect, lease, on_event, ERRORS)

    def urlopen(  # type: ignore[override]
        self, method: str, url: str, redirect: bool = True, **options: Any
    ) -> BaseHTTPResponse:
        headers = HTTPHeaderDict(self.headers if options.get("headers") is None else options["headers"])
        intent = self._caller.find_intent(method, next(iter(headers.getlist(HEADER)), None))
        headers.discard(HEADER)
        if method.upper() in SAFE_METHODS:
            return super().urlopen(method, url, redirect=redirect, **options | {"headers": headers})
        if options.get("retries") is not None:
            raise Misuse(
                f"two layers that repeat multiply: leave retries= out of a {method}, and give retry= to the pool"
            )
        body = _body_of(options.get("body"))
        call = self._caller.call_of(CallRequest(method, url, text_headers(headers.items()), body), intent)
        is_preloaded = options.get("preload_content", True)
        urlopen = super().urlopen
        response: BaseHTTPResponse | None = None

        def attempt(effect: SendRequest) -> CallAnswer:
            nonlocal response
            if response is not None:
                response.close()
            sent = headers.copy()
            sent.update(effect.headers)
            if "Content-Length" in sent:
                sent["Content-Length"] = str(len(effect.body))
            given = options | {"headers": sent, "body": effect.body or options.get("body")}
            # A preloaded answer has given its connection back, and then it is too late to close it.
            response = urlopen(method, url, redirect=False, **given | {"retries": False, "preload_content": False})
            if is_interim(method, response.status):
                response.close()
                response.release_conn()
                raise ProtocolError(HINTED.format(response.status))
            if not is_preloaded and is_streamed(intent, response.status, response.headers):
                return answer_of(response.status, response.headers.items(), b"")
            answer = answer_of(response.status, response.headers.items(), response.data)
            if not is_preloaded:
                response = respond(answer.status, answer.headers, answer.body)
            return answer

        end = run_exchange(self._caller, call, intent, attempt)
        if end.kept is not None:
            response = respond(end.kept.status, end.kept.headers, end.kept.body or b"")
        assert response is not None
        reports[response] = end.report
        return response


def respond(status: int, headers: TextHeaders, body: bytes) -> HTTPResponse:
    """A response whose body was read before."""
    fields, reason = HTTPHeaderDict(headers), reason_of(status)
    return HTTPResponse(BytesIO(body), headers=fields, status=status, reason=reason, preload_content=False)


def _body_of(body: object) -> bytes:
    """The bytes that every attempt sends."""
    if isinstance(body, str):
        return body.encode()
    if body is None or isinstance(body, bytes | bytearray):
        return bytes(body or b"")
    raise Misuse(ONCE_ONLY)
