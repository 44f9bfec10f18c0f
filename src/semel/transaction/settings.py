"""The options of an operation inside of a transaction, checked before anything runs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, Generic, Required, TypedDict, TypeVar, cast

from semel.codecs.shapes import Adapter
from semel.codecs.values import Values
from semel.core.policy import Policy
from semel.core.policy_values import Duration

R = TypeVar("R")
SETTINGS_MAX = 256
RECEIVED_RETENTION = timedelta(days=7)
"""How long a received message is remembered by default. A broker may deliver it again for as long."""


class TransactionOptions(TypedDict, total=False):
    """The keyword arguments that `operation`, `run` and `arun` share."""

    retention: Duration
    """How long the result answers repeats; by default a day."""
    wait: Duration | None
    """How long to wait for a twin, the first call that is still running. By default 10 s on PostgreSQL and MariaDB; on
    SQLite the connection's own time-out."""
    final_errors: Iterable[type[Exception]]
    """Errors that are answers: they are stored, and raised again for every repeat."""
    adapters: Mapping[type, Adapter]
    """How to turn classes that are not plain data into data, and back."""


class ReceiveOptions(TypedDict, total=False):
    """The keyword arguments of `receive`."""

    handler: Required[str]
    """What handles the message, for instance "orders.projector". Each handler gets each message once."""
    tenant: str
    fingerprint: object
    """Any data that identifies the message, for instance its payload. Another one under the same id is refused."""
    retention: Duration
    """How long a repeat is recognised; by default seven days. It must be longer than the broker delivers again."""
    wait: Duration | None
    """How long to wait for a twin, as for an operation."""


@dataclass(frozen=True, slots=True)
class TransactionSettings(Generic[R]):
    values: Values[R]
    policy: Policy
    wait_ms: int | None

    @property
    def retention_ms(self) -> int:
        return self.policy.retention_ms

    @classmethod
    def of_receive(cls, options: ReceiveOptions) -> TransactionSettings[None]:
        """Of a received message there is no result to keep."""
        chosen: TransactionOptions = {"retention": options.get("retention", RECEIVED_RETENTION)}
        return TransactionSettings[None].of(type(None), {**chosen, "wait": options.get("wait")})

    @classmethod
    def of(cls, returns: object, options: TransactionOptions) -> TransactionSettings[R]:
        """Cached for equal options, because checking them and reading the types costs more than a statement."""
        chosen = (options.get("retention"), options.get("wait"), tuple(options.get("final_errors", ())))
        if options.get("adapters") or not isinstance(returns, Hashable):
            return cast("TransactionSettings[R]", _settings(returns, *chosen, options.get("adapters")))
        return cast("TransactionSettings[R]", _known(returns, *chosen))


def _settings(
    returns: object,
    retention: Duration | None,
    wait: Duration | None,
    errors: tuple[type[Exception], ...],
    adapters: Mapping[type, Adapter] | None = None,
) -> TransactionSettings[Any]:
    durations = {"retention": retention, "wait": wait}
    given: dict[str, Any] = {name: value for name, value in durations.items() if value is not None}
    policy = Policy(guarantee="exactly-once", **given)
    return TransactionSettings(Values[Any](returns, errors, adapters), policy, None if wait is None else policy.wait_ms)


_known = lru_cache(maxsize=SETTINGS_MAX)(_settings)
