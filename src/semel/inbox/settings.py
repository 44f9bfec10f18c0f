"""What a user may choose about an inbox and about a consumer, checked before anything is received."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypedDict

from semel.codecs.seal import Seal
from semel.core.consumer import RETENTION_MS, TRIES_MAX, ConsumerLimits, NamedMessage, RefusedMessage
from semel.core.fingerprint import digest
from semel.core.messages import Delivery, check_line
from semel.core.policy import Policy
from semel.core.policy_values import Duration
from semel.core.records import SCOPE_MAX, Key
from semel.core.verdicts import ATTEMPTS_MAX
from semel.errors import StoreMisconfigured
from semel.inbox.ids import FindId, read_id
from semel.runtime.arguments import checked_policy
from semel.runtime.listener import OnEvent, ignore
from semel.runtime.options import DEFAULTS, CallSettings, Options

RETENTION = timedelta(milliseconds=RETENTION_MS)
LIMIT_MAX = 1_000_000
PayloadPrint = bool | Callable[[Delivery], str | bytes]


class InboxOptions(TypedDict, total=False):
    """The keyword arguments of `Inbox` and `AsyncInbox`, beside `store`."""

    policy: Policy
    """The guarantee, the lease and the waiting of messages that are handled under a lease."""
    tenant: str
    retention: Duration
    """How long a handled message is known: 7 days. Choose more than the longest time after which a broker, or an
    operator with a dead letter, delivers a message again."""
    attempts_max: int
    """How many failed attempts make a message a dead letter; 5 by default."""
    final_errors: Iterable[type[Exception]]
    """Errors after which another attempt is useless: the message becomes a dead letter at once."""
    on_event: OnEvent


class ConsumerOptions(TypedDict, total=False):
    """The keyword arguments of `inbox.consumer`, beside `id` and `begin`."""

    payload_fingerprint: PayloadPrint
    """Whether a message with a known id and another payload is refused; or a function that says what is compared."""
    reconcile: Callable[..., object]
    """Called with a delivery whose outcome is unknown, without `begin`. It returns `NotDone()`, `StillUnknown()`, or
    anything else if the message was handled."""
    wait: Duration | None
    """With `begin`: how long to wait for a transaction that handles the same message. By default 10 s on PostgreSQL."""
    schema: str
    """With `begin`: the PostgreSQL schema of semel's tables."""
    seal: Seal | None
    tries_max: int
    """With `begin`: how often a message is tried at once if the database gives its transaction up; 5 by default."""


@dataclass(frozen=True, slots=True)
class InboxSettings:
    handler: str
    tenant: str
    policy: Policy
    final_errors: tuple[type[Exception], ...]
    attempts_max: int
    on_event: OnEvent

    @classmethod
    def of(cls, handler: str, options: InboxOptions) -> InboxSettings:
        policy = checked_policy(options.get("policy", DEFAULTS))
        retention = options.get("retention")
        if retention is None:
            retention = RETENTION if policy.retention == DEFAULTS.retention else policy.retention
        if policy.on_store_error == "open":
            raise StoreMisconfigured(
                'Policy.on_store_error="open" would handle messages without a record: leave it out. A message can wait '
                "until the store is back"
            )
        final: Any = options.get("final_errors", ())
        settings = cls(
            check_line("handler", handler, SCOPE_MAX),
            options.get("tenant", ""),
            replace(policy, retention=retention),
            (final,) if isinstance(final, type) else tuple(final),
            checked_count("attempts_max", options.get("attempts_max", ATTEMPTS_MAX)),
            options.get("on_event", ignore),
        )
        Key(settings.tenant, settings.handler, "-")
        settings.leased(None, settings.policy if policy.guarantee != "exactly-once" else DEFAULTS)
        return settings

    def leased(
        self, reconcile: Callable[..., object] | None = None, policy: Policy | None = None
    ) -> CallSettings[None]:
        """The settings of blocks under a lease. The policy is refused if it cannot be kept there."""
        options = Options(policy=policy or self.policy, final_errors=self.final_errors, on_event=self.on_event)
        if reconcile is not None:
            options["reconcile"] = reconcile
        return CallSettings[None].of(object, options)


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    inbox: InboxSettings
    find_id: FindId
    payload_print: PayloadPrint
    options: ConsumerOptions

    @property
    def limits(self) -> ConsumerLimits:
        return ConsumerLimits(
            self.inbox.attempts_max,
            checked_count("tries_max", self.options.get("tries_max", TRIES_MAX)),
            self.inbox.policy.retention_ms,
        )

    def name(self, delivery: Delivery) -> NamedMessage | RefusedMessage:
        """The delivery by its id and payload, or why it has no id."""
        inbox = self.inbox
        found, problem = read_id(self.find_id, delivery)
        if found is None:
            return RefusedMessage(Key(inbox.tenant, inbox.handler, "-"), problem)
        key = Key(inbox.tenant, inbox.handler, found)
        if self.payload_print is False:
            return NamedMessage(key)
        if self.payload_print is True:
            return NamedMessage(key, digest((b"payload", delivery.payload)))
        try:
            compared = self.payload_print(delivery)
            return NamedMessage(key, digest((b"chosen", compared.encode() if isinstance(compared, str) else compared)))
        except Exception as error:
            return RefusedMessage(key, f"the function payload_fingerprint= failed: {error!r}")


def checked_count(named: str, given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"{named}= must be a whole number, not {given!r}")
    if not 1 <= given <= LIMIT_MAX:
        raise ValueError(f"{named}= must be between 1 and {LIMIT_MAX}, not {given}")
    return given
