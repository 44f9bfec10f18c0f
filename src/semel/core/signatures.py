"""Signatures of webhooks: the sender signs a request, and the receiver verifies it. The caller brings the time.

There is one class for each scheme. `secrets` are tried in turn, so that a secret can be replaced without a gap: the
receiver gets the new one beside the old one, then the sender changes, then the old one goes.
"""

from __future__ import annotations

import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import ClassVar, Protocol, runtime_checkable

from semel.core.policy_values import Duration
from semel.core.records import Member, check_duration

TOLERANCE_S = 300
"""How old a signed request may be, and how far ahead its sender's clock: what Standard Webhooks and Stripe advise."""
SECRETS_MAX = 8
SIGNATURES_MAX = 32
"""In one header: more than any sender has secrets."""
SECRET_MIN = 16
TIMESTAMP = re.compile(r"[0-9]{1,12}")


class SignatureFlaw(Member):
    """Why a request is not accepted as signed."""

    UNSIGNED = "it carries no signature"
    MALFORMED = "its signature headers cannot be read"
    STALE = "its timestamp is too far from this machine's clock"
    FORGED = "no signature fits the request and a known secret"


@runtime_checkable
class SignatureScheme(Protocol):
    """How the senders of one kind sign. Names of headers are in lower case."""

    id_header: str | None
    """The header that names the event, if there is one."""

    def find_flaw(self, headers: Mapping[str, str], body: bytes, *, now_ms: int) -> SignatureFlaw | None:
        """Why the request is not one that a known sender signed just now; None if it is."""
        ...


class StandardWebhooks:
    """Standard Webhooks, version 1: HMAC-SHA256 of the id, the timestamp and the body.

    A secret is text as the sender shows it (`whsec_` and base64), or the key itself as bytes.
    """

    ID: ClassVar[str] = "webhook-id"
    TIMESTAMP: ClassVar[str] = "webhook-timestamp"
    SIGNATURE: ClassVar[str] = "webhook-signature"

    def __init__(self, *secrets: str | bytes, tolerance: Duration = TOLERANCE_S) -> None:
        self.id_header: str | None = self.ID
        self._keys = _read_secrets(secrets, _decode_secret)
        self._tolerance_ms = _read_tolerance(tolerance)

    def sign(self, message_id: str, body: bytes, *, now_ms: int) -> dict[str, str]:
        """The headers of a request, with one signature for each secret."""
        timestamp = str(now_ms // 1000)
        return {
            self.ID: message_id,
            self.TIMESTAMP: timestamp,
            self.SIGNATURE: " ".join(f"v1,{each}" for each in self._signatures(message_id, timestamp, body)),
        }

    def find_flaw(self, headers: Mapping[str, str], body: bytes, *, now_ms: int) -> SignatureFlaw | None:
        """Why the request is not from the sender; None if its signature is right and its time is near."""
        message_id, timestamp = headers.get(self.ID, ""), headers.get(self.TIMESTAMP, "")
        listed = headers.get(self.SIGNATURE, "").split()
        if not listed:
            return SignatureFlaw.UNSIGNED
        given = [signature for version, _, signature in (each.partition(",") for each in listed) if version == "v1"]
        if not message_id or not given or len(listed) > SIGNATURES_MAX:
            return SignatureFlaw.MALFORMED
        if (flaw := _judge_time(timestamp, now_ms, self._tolerance_ms)) is not None:
            return flaw
        return None if _any_fits(given, self._signatures(message_id, timestamp, body)) else SignatureFlaw.FORGED

    def _signatures(self, message_id: str, timestamp: str, body: bytes) -> list[str]:
        signed = f"{message_id}.{timestamp}.".encode(errors="replace") + body
        return [b64encode(hmac.digest(key, signed, "sha256")).decode() for key in self._keys]


class StripeSignature:
    """Stripe's `Stripe-Signature: t=…,v1=…`. The event's id is in the payload: give the consumer `id=` for it."""

    SIGNATURE: ClassVar[str] = "stripe-signature"

    def __init__(self, *secrets: str | bytes, tolerance: Duration = TOLERANCE_S) -> None:
        self.id_header: str | None = None
        self._keys = _read_secrets(secrets, str.encode)
        self._tolerance_ms = _read_tolerance(tolerance)

    def find_flaw(self, headers: Mapping[str, str], body: bytes, *, now_ms: int) -> SignatureFlaw | None:
        """Why the request is not from Stripe; None if its signature is right and its time is near."""
        if not (header := headers.get(self.SIGNATURE, "")):
            return SignatureFlaw.UNSIGNED
        parts = [each.strip().partition("=")[::2] for each in header.split(",")]
        times, given = ([value for name, value in parts if name == wanted] for wanted in ("t", "v1"))
        if len(times) != 1 or not given or len(parts) > SIGNATURES_MAX:
            return SignatureFlaw.MALFORMED
        if (flaw := _judge_time(times[0], now_ms, self._tolerance_ms)) is not None:
            return flaw
        signed = f"{times[0]}.".encode() + body
        return (
            None
            if _any_fits(given, [hmac.digest(key, signed, "sha256").hex() for key in self._keys])
            else SignatureFlaw.FORGED
        )


class GithubSignature:
    """GitHub's `X-Hub-Signature-256`. It covers neither a time nor the id in `X-GitHub-Delivery`.

    So a request that an attacker recorded can be sent again under another id. Take the id from the payload where that
    would do harm.
    """

    SIGNATURE: ClassVar[str] = "x-hub-signature-256"

    def __init__(self, *secrets: str | bytes) -> None:
        self.id_header: str | None = "x-github-delivery"
        self._keys = _read_secrets(secrets, str.encode)

    def find_flaw(self, headers: Mapping[str, str], body: bytes, *, now_ms: int) -> SignatureFlaw | None:
        """Why the request is not from GitHub; None if its signature is right."""
        if not (header := headers.get(self.SIGNATURE, "")):
            return SignatureFlaw.UNSIGNED
        algorithm, _, given = header.partition("=")
        if algorithm != "sha256":
            return SignatureFlaw.MALFORMED
        return (
            None
            if _any_fits([given], [hmac.digest(key, body, "sha256").hex() for key in self._keys])
            else SignatureFlaw.FORGED
        )


def _read_secrets(secrets: Sequence[str | bytes], decode: Callable[[str], bytes]) -> tuple[bytes, ...]:
    """The keys; an error never shows a secret."""
    if not 1 <= len(secrets) <= SECRETS_MAX:
        raise ValueError(f"give 1 to {SECRETS_MAX} secrets, not {len(secrets)}")
    keys = list[bytes]()
    for number, secret in enumerate(secrets, 1):
        if not isinstance(secret, str | bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"secret {number} must be text or bytes, not {type(secret).__name__}")
        key = decode(secret) if isinstance(secret, str) else bytes(secret)
        if len(key) < SECRET_MIN:
            raise ValueError(f"secret {number} has {len(key)} bytes, and at least {SECRET_MIN} are needed")
        keys.append(key)
    return tuple(keys)


def _decode_secret(secret: str) -> bytes:
    try:
        return b64decode(secret.strip().removeprefix("whsec_"), validate=True)
    except (NotBase64, ValueError):
        raise ValueError(
            "a secret of Standard Webhooks is whsec_ and base64: copy it whole, or give the key itself as bytes"
        ) from None


def _read_tolerance(tolerance: Duration) -> int:
    seconds = tolerance.total_seconds() if isinstance(tolerance, timedelta) else tolerance
    return check_duration("tolerance", round(seconds * 1000), least_ms=1000)


def _judge_time(timestamp: str, now_ms: int, tolerance_ms: int) -> SignatureFlaw | None:
    if not TIMESTAMP.fullmatch(timestamp):
        return SignatureFlaw.MALFORMED
    return SignatureFlaw.STALE if abs(now_ms - int(timestamp) * 1000) > tolerance_ms else None


def _any_fits(given: Iterable[str], expected: Iterable[str]) -> bool:
    """Whether one of `given` is expected, in a time that does not tell how much of it is right."""
    wanted = [each.encode() for each in expected]
    offered = [each.encode(errors="replace") for each in given]
    fits = [hmac.compare_digest(one, other) for one in offered for other in wanted]
    return any(fits)
