"""The rules file: TOML, decoded and checked, with errors that name file, table and field.

`[policy]` is what applies where no rule does, and what every `[[rules]]` table starts from. `[tenant]` says how a
caller is identified, and `[log]` how the log is written where no option says so.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from semel.core.fingerprint import Fingerprint
from semel.core.policy import Policy
from semel.core.rules import Rule
from semel.gateway.settings import LogFormat, LogLevel, SettingsInvalid

DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
DURATIONS = ("retention", "unknown_retention", "lease", "wait")
NOT_IN_A_FILE = ("release_exceptions", "release_invalid", "errors")
POLICY_FIELDS = tuple(field.name for field in fields(Policy) if field.name not in NOT_IN_A_FILE)
RULE_FIELDS = ("match", "exempt", *POLICY_FIELDS)
LOG_VALUES = {"format": get_args(LogFormat), "level": get_args(LogLevel)}
Table = dict[str, Any]
DEFAULT = Policy(per_host=True)
"""The upstream gets the caller's host, and may choose the customer or the route by it."""


class TenantTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What identifies a caller: the value of a header, or a claim of the bearer token."""

    header: str | None = None
    jwt_claim: str | None = None


class LogTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the log is written, where no option says so."""

    format: LogFormat | None = None
    level: LogLevel | None = None


NO_LOG_TABLE = LogTable()


class RulesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tables that a file may have."""

    policy: Table = {}
    rules: list[Table] = []
    tenant: TenantTable | None = None
    log: LogTable = NO_LOG_TABLE


@dataclass(frozen=True)
class Rules:
    """The content of a rules file. Without a file, the default policy applies to everything."""

    policy: Policy = DEFAULT
    rules: tuple[Rule, ...] = ()
    tenant: TenantTable | None = None
    log: LogTable = NO_LOG_TABLE

    @property
    def key_headers(self) -> frozenset[bytes]:
        """All headers in which some rule lets callers send their key."""
        every = [self.policy, *(rule.policy for rule in self.rules if rule.policy is not None)]
        return frozenset(name for policy in every for name in policy.header_names)


def read_rules(path: Path | None) -> Rules:
    """Read the file, or say what is wrong with it."""
    if path is None:
        return Rules()
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsInvalid(f"--rules {path}: it cannot be read: {error}") from None
    return parse_rules(text, str(path))


def parse_rules(text: str, name: str) -> Rules:
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, and nesting without end
        raise SettingsInvalid(f"{name}: this is not TOML: {error}") from None
    try:
        file = msgspec.convert(tables, RulesFile)
    except msgspec.ValidationError as error:
        raise SettingsInvalid(f"{name}: {_place_error(str(error))}") from None
    policy = _read_policy(f"{name}, [policy]", file.policy, POLICY_FIELDS, DEFAULT)
    rules = [_read_rule(f"{name}, [[rules]] {number}", table, policy) for number, table in enumerate(file.rules, 1)]
    if file.tenant is not None and (file.tenant.header is None) is (file.tenant.jwt_claim is None):
        raise SettingsInvalid(f'{name}, [tenant]: give either header = "X-Account" or jwt_claim = "sub"')
    return Rules(policy, tuple(rules), file.tenant, file.log)


def _place_error(error: str) -> str:
    """The decoder's error, with the names of the file: `$.tenant.header` becomes `[tenant] header`."""
    what, _, where = error.partition(" - at `$")
    table, _, field = where.rstrip("`").strip(".").partition(".")
    allowed = f"; allowed are {', '.join(_fields_of(table))}" if "unknown field" in what else ""
    if table == "log" and field in LOG_VALUES:
        allowed = f"; allowed are {', '.join(LOG_VALUES[field])}"
    place = f"[{table}] {field}".strip() if table else "top level"
    return f"{place}: {what[0].lower()}{what[1:]}{allowed}"


def _fields_of(table: str) -> tuple[str, ...]:
    found = {"tenant": ("header", "jwt_claim"), "log": tuple(LOG_VALUES)}
    return found.get(table, ("[policy]", "[[rules]]", "[tenant]", "[log]"))


def _read_rule(place: str, table: Table, rest: Policy) -> Rule:
    match = table.get("match")
    if not isinstance(match, str):
        raise SettingsInvalid(f'{place}: match is missing: write match = "POST /payments/{{id}}"')
    place = f"{place} ({match})"
    exempt = table.get("exempt", False)
    if not isinstance(exempt, bool):
        raise SettingsInvalid(f"{place}, exempt: expected true or false, not {exempt!r}")
    chosen = {name: value for name, value in table.items() if name not in ("match", "exempt")}
    if exempt and chosen:
        raise SettingsInvalid(f"{place}: an exempt rule has no policy, so {', '.join(chosen)} would mean nothing")
    policy = None if exempt else _read_policy(place, chosen, RULE_FIELDS, rest)
    try:
        return Rule(match, policy)
    except ValueError as error:
        raise SettingsInvalid(f"{place}: {error}") from None


def _read_policy(place: str, table: Table, allowed: tuple[str, ...], rest: Policy) -> Policy:
    chosen = {name: getattr(rest, name) for name in POLICY_FIELDS}
    for name, value in table.items():
        if name not in POLICY_FIELDS:
            close = get_close_matches(name, allowed, 1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise SettingsInvalid(f"{place}: unknown field {name}{hint}; allowed are {', '.join(allowed)}")
        chosen[name] = _read_value(f"{place}, {name}", name, value)
    try:
        policy = Policy(**chosen)
    except (TypeError, ValueError) as error:
        raise SettingsInvalid(f"{place}, {str(error).removeprefix('Policy.')}") from None
    if policy.guarantee == "exactly-once":
        raise SettingsInvalid(
            f"{place}, guarantee: a gateway is not part of the upstream's transaction, so it cannot promise "
            "exactly-once; use at-most-once or at-least-once"
        )
    return policy


def _read_value(place: str, name: str, value: object) -> object:
    """TOML's spelling of what a policy takes: `"24h"` for a duration, a table for a fingerprint."""
    if name in DURATIONS and isinstance(value, str):
        parts = DURATION.fullmatch(value.strip())
        if parts is None:
            raise SettingsInvalid(f'{place}: expected seconds, or text like "30s", "15m", "24h" or "7d", not {value!r}')
        try:
            return timedelta(seconds=float(parts[1]) * SECONDS[parts[2]])
        except OverflowError:
            raise SettingsInvalid(f"{place}: {value!r} is longer than anything can be kept") from None
    if name == "fingerprint" and isinstance(value, Mapping):
        return _read_fingerprint(place, value)
    return value


class FingerprintTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    body: Literal["raw", "json", "none"] = "raw"
    include: list[str] = []
    exclude: list[str] = []
    headers: list[str] = []
    query: bool = True


def _read_fingerprint(place: str, value: Mapping[str, object]) -> Fingerprint:
    try:
        table = msgspec.convert(value, FingerprintTable)
        body: Literal["raw", "json"] | None = None if table.body == "none" else table.body
        return Fingerprint(body, tuple(table.include), tuple(table.exclude), tuple(table.headers), table.query)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise SettingsInvalid(
            f"{place}: {error}; allowed are body (raw, json or none), include, exclude, headers and query"
        ) from None
