"""What `manage.py check` says about the configuration."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.urls import URLResolver, get_resolver
from django.utils.module_loading import import_string

from semel.core.policy import Policy
from semel.core.rules import every_policy
from semel.django import config
from semel.django.marks import class_of
from semel.django.middleware import IdempotencyMiddleware
from semel.errors import SemelError
from semel.http.gate import Gate
from semel.http.marks import mark_of
from semel.runtime.readiness import trouble_with
from semel.stores.open import open_store


def check_configuration(app_configs: Any, **_: object) -> list[CheckMessage]:
    try:
        given = config.read()
        gate = Gate(
            given.policy,
            given.rules,
            publish=given.publish,
            secret=given.secret,
            in_transactions=given.in_transactions,
        )
        if isinstance(given.store, str):
            open_store(given.store)
    except (ImproperlyConfigured, SemelError) as error:
        return [Error(str(error), id="semel.E001")]
    found = [*_order(), *_limits(gate), *(_database(given) if given.on_django else ())]
    if given.identify is None:
        found.append(
            Warning(
                'settings.SEMEL has no "identify": a refreshed token looks like another caller, '
                "and callers without one share their keys.",
                hint='Set "identify" to the dotted path of a function from the request to the account\'s name.',
                id="semel.W002",
            )
        )
    return found


def check_store(app_configs: Any, databases: Sequence[str] | None = None, **_: object) -> list[CheckMessage]:
    """Whether the store can be used. It connects, so it runs only where Django's own database checks do.

    A warning and no error: `manage.py migrate` runs these checks before it creates tables.
    """
    try:
        given = config.read()
        wanted = str(given.store).removeprefix("django://") in (databases or ()) if given.on_django else databases
        if not wanted or inspect.iscoroutinefunction(getattr(given.store, "close", None)):
            return []
        store = open_store(given.store) if isinstance(given.store, str) else given.store
        trouble = trouble_with(store)
        if isinstance(given.store, str):
            store.close()  # type: ignore[union-attr]
    except (ImproperlyConfigured, SemelError):  # `check_configuration` reports it
        return []
    if trouble is None:
        return []
    hint = "The message says what to run. Every request with a key gets 503 before that."
    return [Warning(f"The store cannot be used: {trouble}.", hint=hint, id="semel.W004")]


def check_views(app_configs: Any, **_: object) -> list[CheckMessage]:
    """Check the policies on views at start-up, before the first request needs them."""
    try:
        secret = config.read().secret
    except ImproperlyConfigured:
        return []
    found: list[CheckMessage] = []
    for view in _views(get_resolver().url_patterns):
        for policy in _policies(view):
            try:
                Gate(policy, secret=secret)
            except SemelError as error:
                found.append(Error(f"{getattr(view, '__qualname__', view)}: {error}", obj=view, id="semel.E004"))
    return found


def _order() -> Iterator[CheckMessage]:
    names = list(settings.MIDDLEWARE)
    ours = [name for name in names if import_string(name) is IdempotencyMiddleware]
    if len(ours) != 1:
        yield Error(
            f"semel.django.IdempotencyMiddleware stands {len(ours)} times in MIDDLEWARE.",
            hint="Put it there once, last.",
            id="semel.E002",
        )
        return
    after = names[names.index(ours[0]) + 1 :]
    if after:
        yield Warning(
            f"MIDDLEWARE has {', '.join(after)} after semel.django.IdempotencyMiddleware: "
            "a repeat is answered before they are asked, and what they do is part of the work.",
            hint="Put semel.django.IdempotencyMiddleware last.",
            id="semel.W001",
        )


def _limits(gate: Gate) -> Iterator[CheckMessage]:
    limit: int | None = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    largest = max(policy.body_max for policy in every_policy(gate.rules, gate.policy))
    if limit is not None and largest > limit:
        yield Warning(
            f"Policy.body_max is {largest}, and DATA_UPLOAD_MAX_MEMORY_SIZE lets only {limit} bytes through.",
            hint="Raise DATA_UPLOAD_MAX_MEMORY_SIZE or lower body_max.",
            id="semel.W003",
        )


def _database(given: config.Config) -> Iterator[CheckMessage]:
    alias = str(given.store).removeprefix("django://")
    known: Any = connections.settings
    if alias not in known:
        yield Error(
            f'settings.SEMEL["store"] names the database {alias!r}, which is not in DATABASES.', id="semel.E003"
        )
        return
    if not known[alias].get("AUTOCOMMIT", True):
        yield Error(
            f"DATABASES[{alias!r}] has AUTOCOMMIT off: records would wait for another commit.",
            hint='Switch it on, or give settings.SEMEL["store"] a database of its own.',
            id="semel.E003",
        )
    if connections[alias].vendor not in ("sqlite", "postgresql"):
        yield Error(
            f"DATABASES[{alias!r}] is {connections[alias].vendor}; records are kept in sqlite and postgresql only.",
            hint="Name another alias (django://alias), or give the store a URL of its own.",
            id="semel.E003",
        )


def _views(patterns: Any) -> Iterator[Any]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from _views(pattern.url_patterns)
        else:
            yield pattern.callback


def _policies(view: Any) -> list[Policy]:
    """Every policy on a view, its class, or one of its methods."""
    view_class = class_of(view)
    places = [view, view_class, *(vars(view_class).values() if view_class is not None else ())]
    return [mark for mark in map(mark_of, places) if isinstance(mark, Policy)]
