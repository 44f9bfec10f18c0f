"""Which policy applies to which operation."""

import pytest

from semel import Policy
from semel.core.rules import Rule, every_policy, policy_for

REST = Policy()
REQUIRED = Policy(required=True)


@pytest.mark.parametrize(
    ("match", "method", "path", "covers"),
    [
        ("POST /payments", "POST", "/payments", True),
        ("post /payments", "POST", "/payments", True),
        ("POST /payments", "PUT", "/payments", False),
        ("POST /payments", "POST", "/payments/", False),
        ("POST,PUT /payments", "PUT", "/payments", True),
        ("POST|PUT /payments", "PUT", "/payments", True),
        ("* /payments", "PATCH", "/payments", True),
        ("/payments", "PATCH", "/payments", True),
        ("/api/", "POST", "/api/a/b", True),
        ("/api/", "POST", "/api/", True),
        ("/api/", "POST", "/api", False),
        ("/api/", "POST", "/apis", False),
        ("/", "POST", "/anything", True),
        ("/api/", "POST", "/api/a\nb", True),
        ("POST /payments/{id}/capture", "POST", "/payments/7/capture", True),
        ("POST /payments/{id}/capture", "POST", "/payments/7/8/capture", False),
        ("POST /payments/{id}/capture", "POST", "/payments//capture", False),
        ("POST /files/{rest:path}", "PUT", "/files/a/b", False),
        ("PUT /files/{rest:path}", "PUT", "/files/a/b", True),
        ("PUT /files/{rest:path}", "PUT", "/files/a\n/b", True),
        ("PUT /a.b/{id}", "PUT", "/axb/1", False),
        ("  POST   /x  ", "POST", "/x", True),
    ],
)
def test_what_a_rule_covers(match: str, method: str, path: str, covers: bool) -> None:
    assert Rule(match, REQUIRED).covers(method, path) is covers


@pytest.mark.parametrize(
    "match",
    [
        "",
        "payments",
        "POST",
        "POST payments",
        "POST /{",
        "/a}",
        "/{a-b}",
        "/{a-b}/{id}",
        "/x}/{id}",
        "/{id:int}",
        "/a b",
    ],
)
def test_a_rule_that_cannot_be_read_is_an_error(match: str) -> None:
    with pytest.raises(ValueError, match="Rule"):
        Rule(match, REQUIRED)


def test_the_first_match_wins_and_the_policy_is_the_rest() -> None:
    rules = [Rule("/api/health", None), Rule("/api/", REQUIRED)]
    assert policy_for("POST", "/api/health", rules, REST) is None
    assert policy_for("POST", "/api/orders", rules, REST) is REQUIRED
    assert policy_for("POST", "/other", rules, REST) is REST
    assert policy_for("GET", "/api/orders", rules, REST) is None
    assert every_policy(rules, REST) == [REST, REQUIRED]


def test_a_rule_protects_only_the_methods_of_its_policy() -> None:
    rules = [Rule("/api/", Policy(methods=("DELETE",)))]
    assert policy_for("POST", "/api/x", rules, REST) is None
    assert policy_for("DELETE", "/api/x", rules, REST) is not None
