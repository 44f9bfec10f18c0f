"""Rules: which policy applies to which operations. They are tried in order and the first match wins."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from semel.core.policy import Policy
from semel.core.spellings import spellings

MATCH = re.compile(r"(?:(?P<methods>[A-Za-z*]+(?:[,|][A-Za-z]+)*)\s+)?(?P<path>/\S*)")
PARAMETER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(:path)?\}")


@dataclass(frozen=True)
class Rule:
    """Which policy applies to which requests. Rules are tried in order, and the first one that matches wins.

    ```python
    from semel import Policy, Rule

    rules = [
        Rule("POST /payments/{id}/capture", policy=Policy(required=True)),
        Rule("POST,PUT /orders/", policy=Policy(in_flight="wait")),  # everything below /orders/
        Rule("/webhooks/", policy=None),  # not protected
    ]
    ```

    A path that ends with a slash covers everything below it; `{name}` is one segment and `{name:path}` any number of
    them. Without a method the rule covers all methods that its policy protects. `policy=None` exempts.
    """

    match: str
    policy: Policy | None = None
    _methods: frozenset[str] | None = field(init=False, repr=False, compare=False)
    _path: re.Pattern[str] = field(init=False, repr=False, compare=False)
    _forgiving: re.Pattern[str] = field(init=False, repr=False, compare=False)
    _literal: str | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.match, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Rule.match: expected text like 'POST /payments/{{id}}', not {type(self.match).__name__}")
        if not isinstance(self.policy, Policy | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"Rule.policy: expected a Policy, or None to exempt {self.match!r}, not {type(self.policy).__name__}"
            )
        parts = MATCH.fullmatch(self.match.strip())
        if parts is None:
            raise ValueError(
                f"Rule {self.match!r}: write a path like '/api/', or methods and a path like 'POST /payments/{{id}}'"
            )
        methods: str = parts["methods"] or "*"
        named = None if methods == "*" else frozenset(re.split(r"[,|]", methods.upper()))
        object.__setattr__(self, "_methods", named)
        path: str = parts["path"]
        below = path.endswith("/")
        forgiving = _pattern(path.rstrip("/")) + ("(?:/.*)?" if below else "/?")
        object.__setattr__(self, "_path", re.compile(_pattern(path), re.DOTALL))
        object.__setattr__(self, "_forgiving", re.compile(forgiving, re.DOTALL | re.IGNORECASE))
        object.__setattr__(self, "_literal", None if below or "{" in path else path)

    def covers(self, method: str, path: str) -> bool:
        """Whether the rule is about this method and path."""
        return (self._methods is None or method in self._methods) and self._path.fullmatch(path) is not None

    def may_cover(self, method: str, path: str) -> bool:
        """Whether a router that ignores case, or a slash at the end, may take this path for a covered one."""
        return (self._methods is None or method in self._methods) and self._forgiving.fullmatch(path) is not None

    def names(self, path: str) -> bool:
        """Whether the rule is about this one path, letter by letter."""
        return self._literal == path


def policy_for(method: str, path: str, rules: Sequence[Rule], rest: Policy) -> Policy | None:
    """The policy of the first rule that covers the request, else `rest`; None where nothing is protected.

    A path in another spelling, which a router may still route to a rule's endpoint, is never less protected.
    """
    return possible_policies(method, (path,), rules, rest)[0]


def possible_policies(method: str, decoded: Sequence[str], rules: Sequence[Rule], rest: Policy) -> list[Policy | None]:
    """The most protective policies that the spellings of a path lead to, best first; nearly always there is only one.

    `decoded` is the path, then the other paths that programs may decode it to. A required key protects more than an
    optional one, that more than an exemption, and a rule comes before `rest`. The policy of the path itself comes first
    if it is among the best, and is the only one if a rule names exactly that path.
    """
    path = decoded[0]
    readings = [reading for each in decoded for reading in spellings(each)]
    likely = _first_that_may_cover(method, path, rules)
    if len(readings) == 1 and (likely is None or likely.covers(method, path)):
        # Nearly all requests, in a third of the time. It equals the general path below, which would find this rule
        # twice: a rule `may_cover` all that it `covers`. `test_a_plain_path_has_one_policy` compares both.
        return [_policy_for_method(method, rest if likely is None else likely.policy)]
    return _most_protective(method, readings, rules, rest, certain=len(decoded) == 1)


def _most_protective(
    method: str, readings: Sequence[str], rules: Sequence[Rule], rest: Policy, *, certain: bool
) -> list[Policy | None]:
    """The same for any path. Each spelling counts both exactly and as a more lenient router would read it."""
    exact = [next((rule for rule in rules if rule.covers(method, reading)), None) for reading in readings]
    if certain and exact[0] is not None and exact[0].names(readings[0]):
        return [_policy_for_method(method, exact[0].policy)]
    likely = [_first_that_may_cover(method, reading, rules) for reading in readings]
    found = [_rank(method, rule, rest) for rule in (*exact, *likely)]
    best = max(rank for rank, _ in found)
    policies: list[Policy | None] = []
    for rank, policy in found:
        if rank == best and policy not in policies:
            policies.append(policy)
    return policies


def _first_that_may_cover(method: str, path: str, rules: Sequence[Rule]) -> Rule | None:
    for rule in rules:
        if rule.may_cover(method, path):
            return rule
    return None


def _rank(method: str, rule: Rule | None, rest: Policy) -> tuple[tuple[int, bool], Policy | None]:
    """How much a rule protects (`rest` where there is none), and its policy."""
    policy = _policy_for_method(method, rest if rule is None else rule.policy)
    return (0 if policy is None else 2 if policy.required else 1, rule is not None), policy


def _policy_for_method(method: str, policy: Policy | None) -> Policy | None:
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
