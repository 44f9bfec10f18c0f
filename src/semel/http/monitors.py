"""Accepted operations: the 202, and its monitor, which is the path where the caller asks how the operation ended.

The path names the operation and carries a signature, so that only semel can make one. It answers only the tenant whose
key it is.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass

from semel.core import http
from semel.core.effects import Plan
from semel.core.http import Response
from semel.core.policy import Policy
from semel.core.protocol import look
from semel.core.records import Key
from semel.errors import RecordUnreadable, StoreError, StoreUnavailable
from semel.http.answers import Answers

NOT_KNOWN = (
    "Nothing is known about this operation: it did not take effect, or its record is past retention. "
    "Within the retention it is safe to repeat the request with the same key."
)


@dataclass(frozen=True, slots=True)
class Monitored:
    """An accepted operation: the request that had the key, even if another request has the key later."""

    key: Key
    fingerprint: str
    asked_at: str = ""
    """The path of the request, where only the view at that path can authenticate the caller."""


class Monitors:
    """The monitors of one middleware. Without a secret there are none."""

    def __init__(self, publish: str, secret: bytes | None, *, in_transactions: bool = False) -> None:
        self._in_transactions = in_transactions
        self.path = f"{publish}/operations/"
        self._secret = secret

    def accepted(self, monitored: Monitored, answers: Answers, *, preferred: bool = False) -> Response:
        """202: the operation goes on, and this is where to ask how it ended.

        An application may answer 202 itself, so the link says whose this is: a caller must not take it for the outcome.
        """
        applied = ((b"preference-applied", b"respond-async"),) if preferred else ()
        return Response(
            202,
            (
                (b"location", f"{answers.root}{self.link(monitored)}".encode()),
                (b"retry-after", str(http.RETRY_AFTER_S).encode()),
                (b"cache-control", b"no-store"),
                http.describe("in-progress", answers.base),
                (b"content-length", b"0"),
                *applied,
            ),
            b"",
        )

    def answer(self, monitored: Monitored, answers: Answers, policy: Policy) -> Plan[Response]:
        """How an accepted operation ended, or that it goes on. Another request may have its key by now."""
        unseen = monitored.fingerprint if self._in_transactions else ""
        try:
            found = yield from look(monitored.key, secrets.token_urlsafe(16), policy, unseen=unseen)
        except RecordUnreadable:
            return answers.problem("record-unreadable")
        except StoreError as error:
            if self._in_transactions and isinstance(error, StoreUnavailable):
                return self.accepted(monitored, answers)  # its own open transaction may be the reason
            return answers.problem("store-unavailable", "How the operation ended cannot be read now.")
        if found is None or found.record.fingerprint != monitored.fingerprint:
            return answers.problem("key-expired", NOT_KNOWN)
        if found.record.result is not None and found.record.answers(found.now_ms):
            return answers.replay(found.record.result)
        if not found.record.in_progress():
            return answers.problem("key-expired")
        if found.record.lapsed(found.now_ms):
            return answers.problem("outcome-unknown")
        return self.accepted(monitored, answers)

    def link(self, monitored: Monitored) -> str:
        """The path of an operation's monitor, below the application's root."""
        key = monitored.key
        parts = [key.tenant, key.scope, key.name, monitored.fingerprint, monitored.asked_at]
        token = _b64(json.dumps(parts).encode())
        return f"{self.path}{token}.{_b64(self._sign(token))}"

    def find(self, path: str) -> Monitored | None:
        """The operation of a monitor's path, or None if semel did not make that path."""
        if self._secret is None or not path.startswith(self.path) or not path.isascii():
            return None
        token, _, signature = path.removeprefix(self.path).partition(".")
        if not hmac.compare_digest(signature.encode(), _b64(self._sign(token)).encode()):
            return None
        tenant, scope, name, *rest = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return Monitored(Key(tenant, scope, name), *rest)

    def _sign(self, token: str) -> bytes:
        assert self._secret is not None
        return hmac.digest(self._secret, b"semel-monitor:" + token.encode(), hashlib.sha256)


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
