"""Rules: which policy applies to which operations. They are tried in order and the first match wins."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from semel.core.policy import Policy

MATCH = re.compile(r"(?:(?P<methods>[A-Za-z*]+(?:[,|][A-Za-z]+)*)\s+)?(?P<path>/\S*)")
PARAMETER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(:path)?\}")


@dataclass(frozen=True)
class Rule:
    """`Rule("POST /payments/{id}/capture", policy=Policy(required=True))`.

    A path that ends with a slash covers everything below it; `{name}` is one segment and `{name:path}` any number of
    them. Without a method the rule covers all methods that its policy protects. `policy=None` exempts.
    """

    match: str
    policy: Policy | None = None
    _methods: frozenset[str] | None = field(init=False, repr=False, compare=False)
    _path: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = MATCH.fullmatch(self.match.strip())
        if parts is None:
            raise ValueError(
                f"Rule {self.match!r}: write a path like '/api/', or methods and a path like 'POST /payments/{{id}}'"
            )
        methods: str = parts["methods"] or "*"
        named = None if methods == "*" else frozenset(re.split(r"[,|]", methods.upper()))
        object.__setattr__(self, "_methods", named)
        object.__setattr__(self, "_path", re.compile(_pattern(parts["path"]), re.DOTALL))

    def covers(self, method: str, path: str) -> bool:
        return (self._methods is None or method in self._methods) and self._path.fullmatch(path) is not None


def policy_for(method: str, path: str, rules: Sequence[Rule], rest: Policy) -> Policy | None:
    """The policy of the first rule that covers the request, or the rest's; None where nothing is protected."""
    policy: Policy | None = rest
    for rule in rules:
        if rule.covers(method, path):
            policy = rule.policy
            break
    return policy if policy is not None and method in frozenset(policy.methods) else None


def every_policy(rules: Iterable[Rule], rest: Policy) -> list[Policy]:
    return [rest, *(rule.policy for rule in rules if rule.policy is not None)]


def _pattern(path: str) -> str:
    """A regular expression for a path with parameters."""
    if "{" in (rest := PARAMETER.sub("", path)) or "}" in rest:
        raise ValueError(f"Rule path {path!r}: parameters are written {{name}} or {{name:path}}")
    expression, at = "", 0
    for parameter in PARAMETER.finditer(path):
        expression += re.escape(path[at : parameter.start()]) + (".+" if parameter[2] else "[^/]+")
        at = parameter.end()
    return expression + re.escape(path[at:]) + (".*" if path.endswith("/") else "")
