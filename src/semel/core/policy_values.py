"""The values that the fields of a policy take: their types, and the check of each. An error says what is expected."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Literal, TypedDict, get_args

from semel.core.fingerprint import Fingerprint, RequestParts
from semel.core.records import DURATION_MS_MAX

Guarantee = Literal["at-most-once", "at-least-once", "exactly-once"]
InFlight = Literal["reject", "wait", "accept"]
KeyFormat = Literal["any", "uuid", "ulid", "strict"]
ErrorStyle = Literal["problem", "stripe"]
Duration = timedelta | float
Chooser = Callable[[RequestParts], "bytes | str"]

HOP_BY_HOP = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    "upgrade".split()
)
NEVER_REPLAYED = HOP_BY_HOP | frozenset(
    "set-cookie date server www-authenticate authentication-info proxy-authentication-info".split()
)
QUOTA = re.compile(r"([1-9][0-9]*)/(second|minute|hour|day)")


class PolicyFields(TypedDict, total=False):
    """The fields of `Policy`, for the presets, which take any of them. `Policy` says what they mean."""

    required: bool
    methods: Iterable[str]
    headers: Iterable[str]
    key_format: KeyFormat | re.Pattern[str]
    guarantee: Guarantee
    in_flight: InFlight
    wait: Duration
    scope: Literal["endpoint", "tenant"] | Chooser
    retention: Duration
    unknown_retention: Duration
    lease: Duration
    expired: Literal["new", "refuse"]
    fingerprint: Literal["raw", "json"] | Fingerprint | Chooser
    release_statuses: Iterable[int]
    release_exceptions: Iterable[type[Exception]]
    release_invalid: bool
    replay_headers: Iterable[str] | None
    body_max: int
    result_max: int
    on_store_error: Literal["closed", "open"]
    quota: str | None
    per_host: bool
    errors: ErrorStyle


def _duration(value: Any) -> timedelta:
    if isinstance(value, bool) or not isinstance(value, (timedelta, int, float)):
        raise TypeError(f"expected a timedelta or a number of seconds, not {value!r}")
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not 0.001 <= seconds <= DURATION_MS_MAX / 1000:
        raise ValueError(f"must be between 1 ms and {DURATION_MS_MAX // 1000} s, not {value!r}")
    return timedelta(seconds=seconds)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"expected True or False, not {value!r}")
    return value


def _size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"expected a number of bytes, not {value!r}")
    if not 0 <= value <= 2**30:
        raise ValueError(f"must be between 0 and {2**30} bytes, not {value}")
    return value


def _several(value: Any) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise TypeError(f"expected several values, not {value!r}")
    return tuple(value)


def _names(value: Any) -> tuple[str, ...]:
    names = _several(value)
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise ValueError(f"{name!r} is not an HTTP token")
    return names


def _one_or_more_names(value: Any) -> tuple[str, ...]:
    if not (names := _names(value)):
        raise ValueError("at least one is needed")
    return names


def _methods(value: Any) -> frozenset[str]:
    methods = frozenset(name.upper() for name in _names(value))
    if safe := methods & {"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"}:
        raise ValueError(f"{', '.join(sorted(safe))}: safe methods are never touched")
    return methods


def _statuses(value: Any) -> frozenset[int]:
    statuses = frozenset(_several(value))
    for status in statuses:
        if not isinstance(status, int) or not 200 <= status <= 599:
            raise ValueError(f"{status!r} is not the status of a final answer (200 to 599)")
    return statuses


def _exceptions(value: Any) -> tuple[type[Exception], ...]:
    types = _several(value)
    for each in types:
        if not (isinstance(each, type) and issubclass(each, Exception)):
            raise TypeError(f"{each!r} is not an exception type")
    return types


def _replay_headers(value: Any) -> frozenset[str] | None:
    if value is None:
        return None
    names = frozenset(name.lower() for name in _names(value))
    if never := names & HOP_BY_HOP:
        raise ValueError(
            f"{', '.join(sorted(never))}: hop-by-hop headers belong to one connection and are never replayed"
        )
    return names


def _quota(value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and QUOTA.fullmatch(value)):
        raise ValueError(f"expected text like '600/minute' (second, minute, hour or day), not {value!r}")
    return value


def _one_of(choices: Any, *others: type) -> Callable[[Any], Any]:
    names: tuple[str, ...] = get_args(choices)

    def check(value: Any) -> Any:
        if (isinstance(value, str) and value in names) or (others and isinstance(value, others)):
            return value
        also = f" or {' or '.join(other.__name__ for other in others)}" if others else ""
        raise ValueError(f"expected {', '.join(map(repr, names))}{also}, not {value!r}")

    return check


CONVERT: dict[str, Callable[[Any], Any]] = {
    "required": _flag,
    "methods": _methods,
    "headers": _one_or_more_names,
    "key_format": _one_of(KeyFormat, re.Pattern),
    "guarantee": _one_of(Guarantee),
    "in_flight": _one_of(InFlight),
    "wait": _duration,
    "scope": _one_of(Literal["endpoint", "tenant"], Callable),  # type: ignore[arg-type]
    "retention": _duration,
    "unknown_retention": _duration,
    "lease": _duration,
    "expired": _one_of(Literal["new", "refuse"]),
    "fingerprint": _one_of(Literal["raw", "json"], Fingerprint, Callable),  # type: ignore[arg-type]
    "release_statuses": _statuses,
    "release_exceptions": _exceptions,
    "release_invalid": _flag,
    "replay_headers": _replay_headers,
    "body_max": _size,
    "result_max": _size,
    "on_store_error": _one_of(Literal["closed", "open"]),
    "quota": _quota,
    "per_host": _flag,
    "errors": _one_of(ErrorStyle),
}
