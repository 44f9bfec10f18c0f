"""The policy: everything a user may choose about an operation, validated once, frozen afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Literal, Unpack

from semel.core.fingerprint import Fingerprint
from semel.core.policy_values import (
    CONVERT,
    Chooser,
    Duration,
    ErrorStyle,
    Guarantee,
    InFlight,
    KeyFormat,
    PolicyFields,
)
from semel.core.records import DURATION_MS_MAX

UNKNOWN_RETENTION = timedelta(days=30)


@dataclass(frozen=True)
class Policy:
    """Everything you may choose about an operation: a frozen value, checked when it is made.

    Durations are `timedelta` or seconds, sizes are bytes, sets of names and statuses are any iterable. A bad value is
    an error that names its field.

    ```python
    from datetime import timedelta
    from semel import Policy, Rule

    policy = Policy(required=True, in_flight="wait", retention=timedelta(days=7))
    rules = [Rule("POST /payments", policy=policy), Rule("/webhooks/", policy=None)]
    ```

    Functions, flows and messages take a policy, too. Fields that are only about HTTP have no effect there.
    """

    required: bool = False
    """Refuse a request without a key (400). By default it passes through unprotected."""
    methods: Iterable[str] = ("POST", "PUT", "PATCH")
    """The methods that are protected. GET, HEAD and OPTIONS never are."""
    headers: Iterable[str] = ("Idempotency-Key", "X-Idempotency-Key")
    """The headers that may hold the key. If a request has several of them, they must hold the same key."""
    key_format: KeyFormat | re.Pattern[str] = "any"
    """Which keys are accepted.

    `any`, `uuid`, `ulid`, `strict` (only the quoted form of RFC 9651) or a compiled pattern.
    """
    guarantee: Guarantee = "at-most-once"
    """What holds after a crash.

    `at-most-once`: the outcome is unknown, and nothing runs again. `at-least-once`: the next repeat runs the work
    again. `exactly-once`: the record and your rows commit in one transaction, which needs a store that can do that.
    """
    in_flight: InFlight = "reject"
    """What a repeat gets while the first request runs.

    `reject` is a 409 at once, `wait` waits for the answer, `accept` is a 202 with a link to ask for it.
    """
    wait: Duration = timedelta(seconds=10)
    """How long a repeat waits under `in_flight="wait"`, before it gets a 409."""
    scope: Literal["endpoint", "tenant"] | Chooser = "endpoint"
    """How far a key reaches.

    `endpoint`: the same key on another method or path is another operation. `tenant`: one key for all endpoints of
    a caller. Or a function of `RequestParts`.
    """
    retention: Duration = timedelta(hours=24)
    """How long a finished record answers repeats. After that the key is new again."""
    unknown_retention: Duration = UNKNOWN_RETENTION
    """How long an unknown outcome blocks its key, counted from the claim, unless you resolve it before.

    By default that is 30 days, or `retention` where that is longer. A value below `retention` is refused.
    """
    lease: Duration = timedelta(seconds=30)
    """How long a key stays taken when the process that runs its work dies.

    semel renews the lease while the work runs, each time a third of it has passed.
    """
    expired: Literal["new", "refuse"] = "new"
    """What happens to a key after `retention`.

    `new`: it runs again. `refuse`: it is refused with 410 for as long again.
    """
    fingerprint: Literal["raw", "json"] | Fingerprint | Chooser = "raw"
    """What must be equal for a request to count as a repeat.

    `raw`: method, path, query and the bytes of the body. `json`: the body as canonical JSON (RFC 8785,
    `semel[json]`). `Fingerprint(…)` chooses parts. Or a function of `RequestParts`.
    """
    release_statuses: Iterable[int] = (401, 403, 407, 408, 425, 429, 503)
    """Statuses that mean that nothing was done. The answer is not stored, and the key may be used again."""
    release_exceptions: Iterable[type[Exception]] = ()
    """Exceptions that mean that nothing was done. Every other exception is stored as a failure."""
    release_invalid: bool = False
    """Give the key back if the framework refused the request as invalid, before your endpoint ran."""
    replay_headers: Iterable[str] | None = None
    """The names of the headers that a replay carries.

    By default it carries all of them but hop-by-hop headers, cookies, dates and authentication.
    """
    body_max: int = 1_048_576
    """The size of the largest request body. A larger one is refused with 413."""
    result_max: int = 1_048_576
    """The size of the largest answer that is kept.

    A larger one reaches its caller, and a repeat is told that the work is done.
    """
    on_store_error: Literal["closed", "open"] = "closed"
    """What happens while the store cannot be reached.

    `closed`: 503, and nothing runs. `open`: the work runs unprotected, and its answer says so.
    """
    quota: str | None = None
    """How many new keys a tenant may use, as in `600/minute` (`semel[quota]`).

    Repeats of known keys are always answered.
    """
    per_host: bool = False
    """Keep the keys of different hosts apart, whatever the `scope`. Set it where the host says whose data it is."""
    errors: ErrorStyle = "problem"
    """What semel's own errors look like: `problem` (RFC 9457) or `stripe`."""

    def __post_init__(self) -> None:
        for name, convert in CONVERT.items():
            try:
                object.__setattr__(self, name, convert(getattr(self, name)))
            except (TypeError, ValueError) as error:
                raise type(error)(f"Policy.{name}: {error}") from None
        if self.expired == "refuse" and 2 * self.retention_ms > DURATION_MS_MAX:
            raise ValueError(
                'Policy.retention: expired="refuse" remembers a key for twice the retention, and that is over ten years'
            )
        if self.unknown_retention_ms < self.retention_ms and self.unknown_retention != UNKNOWN_RETENTION:
            raise ValueError(
                f"Policy.unknown_retention: {self.unknown_retention} is less than the retention, {self.retention}: an "
                "outcome that is not known must not be forgotten before one that is"
            )

    @cached_property
    def retention_ms(self) -> int:
        """`retention` in milliseconds."""
        return _ms(self.retention)

    @cached_property
    def unknown_retention_ms(self) -> int:
        """`unknown_retention` in milliseconds."""
        return _ms(self.unknown_retention)

    @cached_property
    def lease_ms(self) -> int:
        """`lease` in milliseconds."""
        return _ms(self.lease)

    @cached_property
    def wait_ms(self) -> int:
        """`wait` in milliseconds."""
        return _ms(self.wait)

    @cached_property
    def refuse_ms(self) -> int:
        """How long a key is refused once its result is past retention."""
        return self.retention_ms if self.expired == "refuse" else 0

    @cached_property
    def claimed_ms(self) -> int:
        """How long a claim that never ends keeps its key: an unknown outcome is kept no shorter than a known one."""
        return max(self.unknown_retention_ms, self.retention_ms + self.refuse_ms)

    @cached_property
    def header_names(self) -> tuple[bytes, ...]:
        """The names of the key's headers as they come off the wire."""
        return tuple(name.lower().encode() for name in self.headers)

    @cached_property
    def header_set(self) -> frozenset[bytes]:
        """The same names as a set."""
        return frozenset(self.header_names)

    @cached_property
    def takeover(self) -> bool:
        """Whether a repeat takes over a key whose lease has lapsed."""
        return self.guarantee == "at-least-once"

    @cached_property
    def waits(self) -> bool:
        """Whether a repeat waits for the first answer."""
        return self.in_flight == "wait"

    @classmethod
    def draft07(cls, **changes: Unpack[PolicyFields]) -> Policy:
        """The behaviour that draft-ietf-httpapi-idempotency-key-header-07 asks for, with `changes`.

        A key is required for POST and PATCH, in the header `Idempotency-Key` alone, and must be quoted.
        """
        preset: PolicyFields = {"required": True, "headers": ("Idempotency-Key",), "methods": ("POST", "PATCH")}
        preset["key_format"] = "strict"
        return cls(**preset | changes)

    @classmethod
    def stripe(cls, **changes: Unpack[PolicyFields]) -> Policy:
        """The behaviour of Stripe's API, version 1, with `changes`.

        A key is optional, for POST only, counts for all endpoints of a caller, and is kept for 24 hours. A request
        that fails validation before the endpoint runs is not saved. Errors look as Stripe's libraries expect.
        """
        preset: PolicyFields = {"methods": ("POST",), "scope": "tenant", "retention": timedelta(hours=24)}
        preset["headers"] = ("Idempotency-Key",)
        preset["release_invalid"], preset["errors"] = True, "stripe"
        return cls(**preset | changes)


def _ms(duration: Duration) -> int:
    return round((duration.total_seconds() if isinstance(duration, timedelta) else duration) * 1000)
