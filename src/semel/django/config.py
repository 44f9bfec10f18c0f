"""`settings.SEMEL`, read once and checked, with errors that name the setting."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, TypeVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.utils.module_loading import import_string

from semel.core import http
from semel.core.policy import Policy
from semel.core.rules import Rule
from semel.http.quota import DEFAULT_STORAGE
from semel.runtime.host import WAITERS_MAX
from semel.runtime.listener import OnEvent, ignore
from semel.store import AsyncStore, Store, TransactionSource

T = TypeVar("T")
Identify = Callable[[HttpRequest], "Awaitable[str | None] | str | None"]
EXAMPLE = 'SEMEL = {"store": "django"}'


@dataclass(frozen=True)
class Config:
    """The members of `settings.SEMEL`. Callables may be given by their dotted path."""

    store: str | Store | AsyncStore | TransactionSource
    """A URL, or "django": the tables are in `settings.DATABASES["default"]`; "django://alias" names another one."""
    policy: Policy = Policy()
    rules: tuple[Rule, ...] = ()
    identify: Identify | None = None
    publish: str | None = http.WELL_KNOWN
    secret: str | bytes | None = None
    on_event: OnEvent = ignore
    quota_storage: str = DEFAULT_STORAGE
    waiters_max: int = WAITERS_MAX

    @property
    def on_django(self) -> bool:
        return isinstance(self.store, str) and self.store.startswith("django://")

    @property
    def in_transactions(self) -> bool:
        """Whether each request is a transaction: exactly-once."""
        return getattr(self.store, "in_transactions", False)


def read() -> Config:
    """The configuration as it stands in the settings."""
    given = getattr(settings, "SEMEL", None)
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"settings.SEMEL must be a dictionary, for example {EXAMPLE}")
    known = [field.name for field in fields(Config)]
    for name in given:
        if name not in known:
            close = get_close_matches(str(name), known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(known)}"
            raise ImproperlyConfigured(f"settings.SEMEL has no member {name!r}; {hint}")
    if "store" not in given:
        raise ImproperlyConfigured(f'settings.SEMEL["store"] is missing: a URL, or "django", as in {EXAMPLE}')
    return Config(**{name: READ.get(name, _as_it_is)(name, value) for name, value in given.items()})


def _as_it_is(name: str, value: T) -> T:
    return value


def _store(name: str, value: object) -> object:
    if isinstance(value, str):
        return "django://default" if value == "django" else value
    if not isinstance(value, Store | TransactionSource):  # an async store has the same names
        raise ImproperlyConfigured(f'settings.SEMEL["store"] must be a URL, "django" or a store, not {value!r}')
    return value


def _policy(name: str, value: object) -> Policy:
    if isinstance(value, Policy):
        return value
    if not isinstance(value, Mapping):
        raise ImproperlyConfigured(
            f"settings.SEMEL[{name!r}] must be a Policy or a dictionary of its fields, not {value!r}"
        )
    try:
        return Policy(**value)
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"settings.SEMEL[{name!r}]: {error}") from error


def _rules(name: str, value: Iterable[Any]) -> tuple[Rule, ...]:
    rules = []
    for number, each in enumerate(value):
        where = f"rules][{number}"
        if isinstance(each, Rule):
            rules.append(each)
            continue
        try:
            match, policy = each
            rules.append(Rule(match, None if policy is None else _policy(where, policy)))
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(
                f'settings.SEMEL["rules"][{number}]: {error}; '
                'write a Rule, or a pair like ("POST /pay/", {"required": True})'
            ) from error
    return tuple(rules)


def _callable(name: str, value: object) -> object:
    if isinstance(value, str):
        try:
            value = import_string(value)
        except ImportError as error:
            raise ImproperlyConfigured(f"settings.SEMEL[{name!r}]: {error}") from error
    if value is not None and not callable(value):
        raise ImproperlyConfigured(f"settings.SEMEL[{name!r}] must be a function or its dotted path, not {value!r}")
    return value


READ: Mapping[str, Callable[[str, Any], Any]] = {
    "store": _store,
    "policy": _policy,
    "rules": _rules,
    "identify": _callable,
    "on_event": _callable,
}
