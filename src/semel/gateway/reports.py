"""The log line about a request: method, path, a digest of its key, the answer, and the reason."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable

from semel.asgi.types import Message, Scope
from semel.core import http
from semel.core.correlation import correlation_of, request_label
from semel.core.records import Key
from semel.gateway.headers import Pair
from semel.http.gate import REQUEST_ID, TRACEPARENT, Admitted, Gate

logger = logging.getLogger("semel.gateway")
REPORT = "semel.gateway.report"
"""The name of the report in the scope of a request."""
PROBLEM = (b"content-type", b"application/problem+json")
OTHERS = frozenset((b"via", http.REPLAYED[0]))
"""An answer with one of these headers is the upstream's, or a replay of an answer that was reported before."""


class Report:
    """The report on one request. Only failures are written."""

    def __init__(self, scope: Scope, gate: Gate) -> None:
        # Do not keep the scope, which holds this report: the cycle would be work for the garbage collector.
        self._method: str = scope["method"]
        self._path: str = scope["path"]
        self._raw_path: bytes = scope["raw_path"]
        self._headers: list[Pair] = scope["headers"]
        self._gate = gate
        self._cause = ""
        self._own_head: Message | None = None
        """The head of an answer of the gateway's own, until its body is sent."""
        self.started = False

    def explain(self, cause: str) -> None:
        """Say why the request fails. It is logged with the caller's answer, or at once if that has begun."""
        if self.started:
            self._write(logging.WARNING, "failed", cause, {})
        else:
            self._cause = cause

    def see(self, message: Message) -> None:
        """Look at a part of the answer."""
        if message["type"] == "http.response.start":
            self.started = True
            if message["status"] >= 400 and OTHERS.isdisjoint(map(http.NAME, message["headers"])):
                self._own_head = message
        elif self._own_head is not None:
            self._report_answer(self._own_head, message.get("body", b""))
            self._own_head = None

    def end(self) -> None:
        """The request is over. Log a cause that was logged with no answer."""
        if self._cause:
            self._write(logging.WARNING, "failed", self._cause, {})

    def _report_answer(self, head: Message, body: bytes) -> None:
        status: int = head["status"]
        level = logging.WARNING if status >= 500 else logging.INFO
        fields: dict[str, object] = {"status": status}
        if PROBLEM in head["headers"]:
            document = json.loads(body)
            fields |= {"problem": document["type"].rpartition("#")[2].rpartition(":")[2]}
            fields |= {"instance": document["instance"]}
            detail = document["detail"]
        else:
            detail = body.decode("utf-8", "replace")
        said = f"{status} {fields.get('problem', '')}".rstrip()
        self._write(level, said, self._cause or detail, fields)
        self._cause = ""

    def _write(self, level: int, what: str, why: str, fields: dict[str, object]) -> None:
        if not logger.isEnabledFor(level):
            return
        path = self._raw_path.partition(b"?")[0].decode("ascii", "backslashreplace")
        named = {"key": self._key_digest(), "request": request_id(self._headers)} | fields
        shown = " ".join(f"{name}={value}" for name, value in named.items() if value and name in SHOWN)
        extra = {"method": self._method, "path": path, **named, "why": why}
        logger.log(
            level,
            "%s %s: %s: %s",
            *(self._method, path, what, f"{why} {shown}".rstrip()),
            extra={f"semel_{name}": value for name, value in extra.items() if value},
        )

    def _key_digest(self) -> str:
        found = self._gate.admit(self._method, self._path, self._headers)
        return Key("", "", found.name).name_digest if isinstance(found, Admitted) else ""


SHOWN = ("key", "request", "instance")
"""The fields that a line of text does not say in words."""


def request_id(headers: Iterable[Pair]) -> str:
    """The id of the caller's trace, else of its request, spelled as the record of its key has it."""
    named = {name: value.decode("latin-1") for name, value in headers}
    return correlation_of(f".{request_label(named.get(TRACEPARENT), named.get(REQUEST_ID, ''))}")
