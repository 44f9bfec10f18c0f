"""How services want to be told the key of a request: header, quoting, key format and what their answers mean, as data.

Every dialect names the page that it was written from. Where a service documents several retentions, the shortest
stands here: a key that the service has forgotten protects nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import assert_never
from urllib.parse import parse_qsl, urlencode

from msgspec import Struct
from msgspec.structs import replace

from semel.core.records import NAME_MAX, Member, check_text, read_duration

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
RANDOM_BYTES = 16
"""How many random bytes a key takes."""
TIME_MS_MAX = 2**48 - 1
"""The last time that a UUIDv7 or a ULID can hold, in the year 10889."""
CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
DERIVED_KEYS = uuid.UUID("b1f8a6f2-6d0f-5c0e-9d6e-2f6f1c3d7a54")
"""The namespace of derived keys (RFC 9562, version 5). It never changes: another one would give other keys."""


class KeyFormat(Member):
    """How a new key is made."""

    UUID4 = "a random UUID"
    UUID7 = "a random UUID that begins with the time, so that keys sort by age"
    ULID = "26 characters that begin with the time, so that keys sort by age"
    DERIVED = "a UUID that follows from the intent's name: the same on every machine, and as guessable as the name"


class KeyQuoting(Member):
    """How a key stands in its header."""

    QUOTED = "an RFC 9651 String, in double quotes"
    BARE = "as it is"


PutKey = Callable[[bytes, str], bytes]
"""From a body and a key to the body with the key in it. The same body and key must give the same bytes."""


class KeyDialect(Struct, frozen=True, kw_only=True):
    """How one service wants to be told the key."""

    name: str
    source: str
    """The page that says so."""
    header: str = "Idempotency-Key"
    """Empty for a service that reads the key from the body."""
    body_field: str = ""
    """The field of a JSON body that holds the key, if no header does."""
    put: PutKey | None = None
    """Puts the key into a body of another kind. It is also tried with an empty key, before an intent is opened."""
    quoting: KeyQuoting = KeyQuoting.BARE
    format: KeyFormat = KeyFormat.UUID4
    key_max: int = NAME_MAX
    """How many characters a key may have."""
    retention_ms: int = DAY_MS
    """How long the service remembers a key at least. An intent may not be sent again for longer than that."""
    reused: tuple[int, ...] = ()
    """Statuses that mean, without a problem document: the key belongs to another request."""
    reused_codes: tuple[str, ...] = ()
    """Error codes in the body of an error that mean the same."""
    busy: tuple[int, ...] = ()
    """Statuses that mean, without a problem document: the first request with this key is still running."""
    busy_codes: tuple[str, ...] = ()
    """Error codes in the body of an error that mean the same."""
    replay_header: str = ""
    """The header that marks an answer as the stored one."""
    first_sent_header: str = ""
    """The header that carries when the request was sent for the first time, as an HTTP date."""
    verdict_header: str = ""
    """The header by which the service itself says `true` or `false`: whether to send again."""
    rejection_header: str = ""
    """The header by which the service says `rejected`: it refused the key, and did not look at the request."""

    def keeping(self, retention: timedelta) -> KeyDialect:
        """The dialect of a service that remembers keys for another time."""
        return replace(self, retention_ms=read_duration("retention", retention))

    def making(self, format: KeyFormat) -> KeyDialect:
        """The dialect with new keys of another format."""
        if not isinstance(format, KeyFormat):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"format must be a KeyFormat, for example KeyFormat.UUID7, not {format!r}")
        return replace(self, format=format)


def form_field(name: str) -> PutKey:
    """For `KeyDialect(put=…)`: the key is a field of an URL-encoded form."""

    def put(body: bytes, key: str) -> bytes:
        if any(field == name for field, _ in parse_qsl(body.decode("latin-1"), keep_blank_values=True)):
            raise ValueError(f"the form has a field {name} already: leave it out, so that the intent's key goes there")
        return b"&".join(part for part in (body, urlencode({name: key}).encode()) if part)

    return put


DRAFT_07 = KeyDialect(
    name="draft-07",
    source="https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header-07",
    quoting=KeyQuoting.QUOTED,
    reused=(422,),
    busy=(409,),
    replay_header="Idempotent-Replayed",  # not in the draft: what services that follow it have in common, semel's too
)
STRIPE = KeyDialect(
    name="stripe",
    source="https://docs.stripe.com/api/idempotent_requests",
    reused_codes=("idempotency_error",),
    busy=(409,),
    replay_header="Idempotent-Replayed",
    verdict_header="Stripe-Should-Retry",
)
ADYEN = KeyDialect(
    name="adyen",
    source="https://docs.adyen.com/development-resources/api-idempotency",
    key_max=64,
    retention_ms=7 * DAY_MS,
    busy_codes=("704",),  # with 409 or 422, which mean other things, too
    verdict_header="Transient-Error",
)
PAYPAL = KeyDialect(
    name="paypal",
    source="https://developer.paypal.com/api/rest/reference/idempotency",
    header="PayPal-Request-Id",
    key_max=38,  # the APIs differ: these are the shortest of them
    retention_ms=3 * HOUR_MS,
    reused_codes=("PAYPAL_REQUEST_ID_PREVIOUSLY_USED", "DUPLICATE_REQUEST_ID"),
    busy_codes=("PREVIOUS_REQUEST_IN_PROGRESS",),
)
SQUARE = KeyDialect(
    name="square",
    source="https://developer.squareup.com/docs/build-basics/common-api-patterns/idempotency",
    header="",
    body_field="idempotency_key",
    key_max=45,
    reused_codes=("IDEMPOTENCY_KEY_REUSED",),
)
MOLLIE = KeyDialect(
    name="mollie",
    source="https://docs.mollie.com/reference/api-idempotency",
    retention_ms=HOUR_MS,
    reused=(400,),
    busy=(409,),
    replay_header="Idempotent-Replayed",
)
GOCARDLESS = KeyDialect(
    name="gocardless",
    source="https://gocardless.com/blog/idempotency-keys",
    # A repeat is answered by a 409 that names the resource which exists already: a final answer, never a busy one.
)
KLARNA = KeyDialect(
    name="klarna",
    source="https://docs.klarna.com/api/kn/integration-resilience",
    header="Klarna-Idempotency-Key",
    key_max=36,  # a UUID; nothing says that longer keys are taken
)
REPEATABILITY = KeyDialect(
    name="repeatability",
    source="https://docs.oasis-open.org/odata/repeatable-requests/v1.0/repeatable-requests-v1.0.html",
    header="Repeatability-Request-ID",
    key_max=36,
    retention_ms=5 * 60_000,  # each service says how long; five minutes is what Azure's services have in common
    busy=(409,),
    first_sent_header="Repeatability-First-Sent",
    rejection_header="Repeatability-Result",
)
AWS_EC2 = KeyDialect(
    name="aws-ec2",
    source="https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html",
    header="",
    put=form_field("ClientToken"),
    key_max=64,
    reused_codes=("IdempotentParameterMismatch",),
)
X_IDEMPOTENCY_KEY = KeyDialect(
    name="x-idempotency-key",
    source="https://www.mercadopago.com.br/developers/en/docs/wallet-connect/payment-flow/idempotency",
    header="X-Idempotency-Key",
)

DIALECTS: Mapping[str, KeyDialect] = MappingProxyType(
    {
        each.name: each
        for each in (
            DRAFT_07,
            STRIPE,
            ADYEN,
            PAYPAL,
            SQUARE,
            MOLLIE,
            GOCARDLESS,
            KLARNA,
            REPEATABILITY,
            AWS_EC2,
            X_IDEMPOTENCY_KEY,
        )
    }
)
"""The dialects by their names."""


def make_key(kind: KeyFormat, random: bytes, now_ms: int, name: str) -> str:
    """A new key from 16 random bytes, the time and the intent's name; a format uses only what it needs of them."""
    if len(random) != RANDOM_BYTES:
        raise ValueError(f"a key takes {RANDOM_BYTES} random bytes, not {len(random)}")
    if not 0 <= now_ms <= TIME_MS_MAX:
        raise ValueError(f"now_ms must be between 0 and {TIME_MS_MAX}, not {now_ms}")
    timed = now_ms.to_bytes(6) + random[6:]
    match kind:
        case KeyFormat.UUID4:
            return str(uuid.UUID(bytes=random, version=4))
        case KeyFormat.UUID7:
            bits = int.from_bytes(timed) & ~(0xF << 76) & ~(0b11 << 62)
            return str(uuid.UUID(int=bits | 7 << 76 | 0b10 << 62))
        case KeyFormat.ULID:
            bits = int.from_bytes(timed)
            return "".join(CROCKFORD[bits >> shift & 31] for shift in range(125, -1, -5))
        case KeyFormat.DERIVED:
            return str(uuid.uuid5(DERIVED_KEYS, name))
        case _:
            assert_never(kind)


def check_key(key: str, dialect: KeyDialect) -> str:
    """Refuse a key that the service would refuse, before anything is sent."""
    key = check_text("key", key, NAME_MAX)
    if not (key.isascii() and key.isprintable()):
        raise ValueError("key must be printable ASCII, because it stands in a header")
    if len(key) > dialect.key_max:
        raise ValueError(
            f"key has {len(key)} characters, and the dialect {dialect.name} allows {dialect.key_max}: "
            "give a shorter one, for example a UUID"
        )
    return key


def check_age(max_age_ms: int, dialect: KeyDialect) -> None:
    """Refuse an intent that may be sent again when the service has forgotten its key."""
    if max_age_ms > dialect.retention_ms:
        raise ValueError(
            f"max_age is {max_age_ms / 1_000:g} s, and by the dialect {dialect.name} the service remembers a key for "
            f"{dialect.retention_ms / 1_000:g} s: give a shorter max_age, or the dialect of a service that remembers "
            "longer, for example dialect=DRAFT_07.keeping(timedelta(days=7))"
        )


def quote_key(key: str, quoting: KeyQuoting) -> str:
    """The key as it stands in its header."""
    if quoting is KeyQuoting.BARE:
        return key
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
