"""RFC 8785 canonical JSON, by the `rfc8785` package, of bodies that have an exact canonical form.

Two bodies are the same request only if they are the same value beyond doubt. What cannot be canonicalised exactly
(not JSON, duplicate members, numbers that a double cannot hold) has no canonical form here, and is compared by its
bytes instead.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from semel.core.fingerprint import Fingerprint
from semel.errors import StoreMisconfigured

DEPTH_MAX = 64


class _Inexact(ValueError):
    """There is no exact canonical form."""


def canonical_json(body: bytes, spec: Fingerprint) -> bytes | None:
    """The canonical bytes of the members that `spec` chooses, or None."""
    try:
        import rfc8785
    except ModuleNotFoundError:
        raise StoreMisconfigured(
            "fingerprints of JSON need rfc8785, which is not installed: pip install 'semel[json]'"
        ) from None
    try:
        value = json.loads(
            body.decode("utf-8"), object_pairs_hook=_members, parse_float=_float, parse_int=_int, parse_constant=_refuse
        )
        _check_depth(value)
        for pointer in spec.exclude:
            _remove(value, pointer)
        if spec.include:
            value = [[pointer, *_at(value, pointer)] for pointer in sorted(spec.include)]
        return rfc8785.dumps(value)
    except (ValueError, ArithmeticError, RecursionError):  # ArithmeticError: an exponent that even Decimal refuses
        return None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _Inexact("duplicate members")
    return members


def _int(text: str) -> int:
    value = int(text)
    if abs(value) > 2**53 - 1:
        raise _Inexact("an integer that a double cannot hold")
    return value


def _float(text: str) -> float:
    """Doubles that read the same are the same number only if the text was not more exact than a double is."""
    value = float(text)
    if Decimal(repr(value)) != Decimal(text):
        raise _Inexact("a number that a double cannot hold")
    return value


def _refuse(text: str) -> Any:
    raise _Inexact(text)


def _check_depth(value: Any, depth: int = 0) -> None:
    if depth > DEPTH_MAX:
        raise _Inexact("nested too deeply")
    if isinstance(value, dict):
        for member in value.values():
            _check_depth(member, depth + 1)
    elif isinstance(value, list):
        for member in value:
            _check_depth(member, depth + 1)


def _steps(pointer: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _at(value: Any, pointer: str) -> tuple[Any, ...]:
    """The member at `pointer` in a tuple, which is empty when there is none."""
    for step in _steps(pointer):
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return ()
    return (value,)


def _remove(value: Any, pointer: str) -> None:
    *way, last = _steps(pointer) or [""]
    found = _at(value, "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in way))
    if found and isinstance(found[0], dict):
        found[0].pop(last, None)
