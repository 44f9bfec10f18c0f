"""What a middleware is given wrongly is refused when it is made, and the error names the argument."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from flask import Flask
from quart import Quart

import django_site  # noqa: F401
from semel import Policy, Rule, StoreMisconfigured, asgi, wsgi
from semel.django import checks
from semel.django.config import read
from semel.django.front import Front
from semel.flask import Idempotency
from semel.litestar import IdempotencyPlugin
from semel.quart import protect

SECRET = "a secret of the tests"


async def app(*_: Any) -> None:
    raise AssertionError("nothing is asked")


def flask(**options: Any) -> object:
    return Idempotency(Flask("shop"), **options)


def quart(**options: Any) -> None:
    protect(Quart("shop"), **options)


MIDDLEWARES: list[Callable[..., object]] = [
    lambda **options: asgi.IdempotencyMiddleware(app, **options),
    lambda **options: wsgi.IdempotencyMiddleware(app, **options),  # type: ignore[arg-type]
    flask,
    quart,
    IdempotencyPlugin,
]
every_middleware = pytest.mark.parametrize("make", MIDDLEWARES, ids=["asgi", "wsgi", "flask", "quart", "litestar"])
GOOD = {"store": "memory://", "identify": lambda request: "me", "secret": SECRET}


@every_middleware
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"policy": {"required": True}}, r"policy= must be a semel.Policy, not dict: write Policy\(\*\*fields\)"),
        ({"policy": None}, "policy= must be a semel.Policy, not NoneType"),
        ({"rules": Rule("/x")}, r"rules= must be several semel.Rule, as in rules=\[Rule\(…\)\], not Rule"),
        ({"rules": "POST /x"}, "rules= must be several semel.Rule, .* not str"),
        ({"rules": {"POST /x": Policy()}}, "rules= must be several semel.Rule, .* not dict"),
        ({"rules": [Rule("/x"), ("POST /y", Policy())]}, r"rules=\[1\] must be a semel.Rule, not tuple"),
        ({"store": None}, "store= must be a URL like|give Idempotency a store="),
        ({"store": Path("semel.db")}, "store= must be a URL like 'sqlite:///semel.db', or a store .*, not PosixPath"),
        ({"identify": "me"}, "identify= must be a function, not str"),
        ({"on_event": "print"}, "on_event= must be a function, not str"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(make: Callable[..., object], wrong: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, StoreMisconfigured), match=message):
        make(**{**GOOD, **wrong})


WEAK = [
    ("", "secret= is empty: make one with `python -c"),
    (" \n", "secret= is empty"),
    ("abc", "secret= has 3 bytes, and at least 16 are needed: make one with"),
    (b"fifteen bytes..", "secret= has 15 bytes"),
    ("x" * 64, "secret= has only 1 different bytes, and at least 5 are needed"),
    ("0123" * 8, "secret= has only 4 different bytes"),
    (1234567890123456, "secret= must be text or bytes, not int"),
]


@every_middleware
@pytest.mark.parametrize(("weak", "message"), WEAK)
def test_a_weak_secret_is_refused(make: Callable[..., object], weak: Any, message: str) -> None:
    with pytest.raises(StoreMisconfigured, match=message) as caught:
        make(**{**GOOD, "secret": weak})
    assert len(str(weak)) < 4 or str(weak) not in str(caught.value), "the message never shows the secret"


@pytest.mark.parametrize(("weak", "message"), WEAK)
def test_django_refuses_a_weak_secret(weak: Any, message: str) -> None:
    with override_settings(SEMEL={**GOOD, "secret": weak}):
        with pytest.raises(ImproperlyConfigured, match=f"settings.SEMEL: {message}"):
            Front(read())
        [found] = checks.check_configuration(None)
        assert message.partition(":")[0] in found.msg


@every_middleware
@pytest.mark.parametrize("secret", [None, SECRET, "8f14e45fceea167a", bytes(range(16))])
def test_what_may_be_a_secret_is_taken(make: Callable[..., object], secret: Any) -> None:
    make(**{**GOOD, "secret": secret})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"match": None}, "Rule.match: expected text like 'POST /payments/{id}', not NoneType"),
        ({"match": ["POST", "/x"]}, "Rule.match: expected text .*, not list"),
        ({"match": b"/x"}, "Rule.match: expected text .*, not bytes"),
        ({"policy": {"required": True}}, "Rule.policy: expected a Policy, or None to exempt '/x', not dict"),
        ({"policy": "required"}, "Rule.policy: expected a Policy, .* not str"),
        ({"policy": Policy}, "Rule.policy: expected a Policy, .* not type"),
    ],
)
def test_a_rule_checks_its_fields(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Rule(**{"match": "/x", **wrong})
