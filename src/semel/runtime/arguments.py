"""Checks the arguments of a front when it is made. Each error names the argument and how to mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from inspect import iscoroutinefunction, signature
from typing import cast

from semel.core.policy import Policy
from semel.core.rules import Rule
from semel.errors import StoreMisconfigured
from semel.store import Store, TransactionSource

SECRET_MIN = 16
DIFFERENT_MIN = 5
"""16 random hexadecimal digits have fewer different ones once in a million times. `"x" * 32` always has fewer."""
HOW_TO_MAKE = """make one with `python -c "import secrets; print(secrets.token_hex(32))"`"""


def check_options(given: Mapping[str, object], options: type, taker: Callable[..., object]) -> None:
    """Refuse a name that is no option of `taker`: ignoring a misspelt option would leave its default in force."""
    for name in given.keys() - options.__annotations__.keys():
        named = {each.name for each in signature(taker).parameters.values() if each.kind is each.KEYWORD_ONLY}
        known = sorted(named | options.__annotations__.keys())
        close = get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]}=?" if close else f"it takes {', '.join(known)}"
        raise TypeError(f"{taker.__name__}() has no option {name}=: {hint}")


def checked_policy(policy: object, named: str = "policy=") -> Policy:
    if not isinstance(policy, Policy):
        raise TypeError(f"{named} must be a semel.Policy, not {_describe(policy)}")
    return policy


def checked_rules(rules: object) -> tuple[Rule, ...]:
    if isinstance(rules, str | bytes | Mapping) or not isinstance(rules, Iterable):
        raise TypeError(f"rules= must be several semel.Rule, as in rules=[Rule(…)], not {type(rules).__name__}")
    given: tuple[object, ...] = tuple(rules)
    for number, rule in enumerate(given):
        if not isinstance(rule, Rule):
            raise TypeError(f"rules=[{number}] must be a semel.Rule, not {type(rule).__name__}")
    return cast("tuple[Rule, ...]", given)


def checked_secret(secret: object) -> bytes | None:
    if secret is None:
        return None
    encoded = secret.encode() if isinstance(secret, str) else secret
    if not isinstance(encoded, bytes):
        raise StoreMisconfigured(f"secret= must be text or bytes, not {type(encoded).__name__}")
    if (weakness := weakness_of(encoded)) is not None:
        raise StoreMisconfigured(f"secret= {weakness}, and give the same one to every process")
    return encoded


def weakness_of(secret: bytes) -> str | None:
    """Why a secret could be guessed, and how to make a better one; None if it is good. Never shows the secret."""
    if not secret.strip():
        weakness = "is empty"
    elif len(secret) < SECRET_MIN:
        weakness = f"has {len(secret)} bytes, and at least {SECRET_MIN} are needed"
    elif (different := len(set(secret))) < DIFFERENT_MIN:
        weakness = f"has only {different} different bytes, and at least {DIFFERENT_MIN} are needed"
    else:
        return None
    return f"{weakness}: {HOW_TO_MAKE}"


def check_store(store: object) -> None:
    """Refuse a value that is neither a URL nor a store. Sync and async stores have methods of the same names."""
    if not isinstance(store, str | Store | TransactionSource):
        raise TypeError(
            "store= must be a URL like 'sqlite:///semel.db', or a store that semel.open_store or "
            f"semel.open_async_store has opened, not {type(store).__name__}"
        )


def check_function(function: object, named: str) -> None:
    if function is not None and not callable(function):
        raise TypeError(f"{named} must be a function, not {type(function).__name__}")


def is_async(function: Callable[..., object]) -> bool:
    return iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)


def _describe(given: object) -> str:
    also = ": write Policy(**fields)" if isinstance(given, Mapping) else ""
    return f"{type(given).__name__}{also}"
