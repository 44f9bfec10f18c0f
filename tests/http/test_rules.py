"""Which policy applies to which operation."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel import Policy
from semel.core.rules import Rule, _most_protective, every_policy, policy_for, possible_policies
from semel.core.spellings import decodings, spellings

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


PAY, HOOKS = Rule("POST /payments", REQUIRED), Rule("/webhooks/", None)
CAPTURE = Rule("POST /payments/{id}/capture", REQUIRED)
SPELLINGS = [
    "/payments/", "/Payments", "/PAYMENTS/", "/./payments", "/a/../payments", "/../payments", "/payments/.",
    "/payments/x/..",
    "/payments;a=b", "/payments;a=b/", "/payments.json", "/payments.", "/a/..;/payments", "/a/..;x=1/payments",
    "/.;/payments", "\\payments", "/a\\..\\payments", "/a/..\\payments", "/payments\\", "/payments//",
    "/a//..//../payments",
    "/payments\n", "/payments ", "/payments\0", "/payments\0.txt", "/payments;a/../payments", "/payments.JSON;v=1/",
    "/webhooks/../payments", "/webhooks/..;/payments", "/webhooks\\..\\payments", "/webhooks/x/../../Payments/",
    "/webhooks/./..//payments.json;a=b", "/a/" + "b/../" * 500 + "../payments",
]  # fmt: skip


@pytest.mark.parametrize("path", SPELLINGS)
@pytest.mark.parametrize("rules", [[PAY], [HOOKS, PAY], [PAY, Rule("/", None)]], ids=["alone", "behind", "before"])
def test_a_spelling_that_some_router_forgives_is_never_less_protected(path: str, rules: list[Rule]) -> None:
    assert policy_for("POST", path, rules, REST) is REQUIRED


@pytest.mark.parametrize(
    ("path", "exempt"),
    [
        ("/webhooks/a", True),
        ("/webhooks/", True),
        ("/webhooks/a.json", True),
        ("/webhooks//a", True),
        ("/webhooks/a;b=c", True),
        ("/webhooks", False),  # "/webhooks/" is what is below it
        ("/Webhooks/a", False),  # another path, for most
        ("/webhooks/..", False),
        ("/webhooks/../webhooks", False),
        ("/x/../webhooks/a", False),
        ("/webhooks\\a", False),
    ],
)
def test_what_is_exempt_is_so_in_every_spelling(path: str, exempt: bool) -> None:
    assert policy_for("POST", path, [HOOKS], REST) is (None if exempt else REST)


def test_a_rule_decides_alone_about_the_path_that_it_names() -> None:
    """Rules before it that nearly name the path as well do not count."""
    relaxed = Policy(retention=60)
    assert policy_for("POST", "/payments", [Rule("/payments/", REQUIRED), Rule("/payments", relaxed)], REST) is relaxed
    assert policy_for("POST", "/Items", [Rule("/items", REQUIRED), Rule("/Items", None)], REST) is None
    assert policy_for("POST", "/report.pdf", [Rule("/report", REQUIRED), Rule("/report.pdf", relaxed)], REST) is relaxed


def test_the_most_protective_policy_is_chosen() -> None:
    other = Policy(quota="5/minute")
    assert policy_for("POST", "/items/", [Rule("POST /items", other)], REST) is other, "a rule comes before the rest"
    assert policy_for("POST", "/items/", [Rule("POST /items", other)], REQUIRED) is REQUIRED
    assert policy_for("POST", "/items", [Rule("/items/", REQUIRED)], REST) is REQUIRED
    assert policy_for("DELETE", "/items/", [Rule("/items", REQUIRED)], REST) is None, "a method that nothing protects"


def test_several_policies_that_protect_alike_are_named() -> None:
    """Which of them is right depends on who reads the path. The path itself comes first."""
    one, other = Policy(quota="5/minute"), Policy(retention=60)
    rules = [Rule("/items/{id}", one), Rule("/items/{id}/close", other)]
    decoded = decodings("/items/7/close", "/items/7%2fclose")
    assert possible_policies("POST", decoded, rules, REST) == [other, one]
    assert possible_policies("POST", decoded, [*rules, Rule("/items/7/close", REQUIRED)], REST) == [other, one]
    assert possible_policies("POST", ("/items/7/close",), rules, REST) == [other]


@pytest.mark.parametrize(
    ("raw", "readings"),
    [
        ("/a", ("/a",)),
        ("/a%20b", ("/a b", "/a%20b")),
        ("/a%2Fb%2fc", ("/a/b/c", "/a\ufffcb\ufffcc", "/a%2Fb%2fc")),
        ("/%252e%252e/b", ("/%2e%2e/b", "/../b", "/%252e%252e/b")),
        ("/%2e%2e/b", ("/../b", "/%2e%2e/b")),
    ],
)
def test_what_programs_make_of_percent_encoding(raw: str, readings: tuple[str, ...]) -> None:
    assert decodings(unquote(raw), raw) == readings


@given(
    path=st.lists(st.sampled_from(["a", "B", "b.json", ".", "..", "", ";x", "c;y", "\\", "payments"]), max_size=6),
    order=st.permutations([PAY, HOOKS, CAPTURE, Rule("/a/", REST), Rule("/{x}/b", None)]),
)
def test_a_plain_path_has_one_policy(path: list[str], order: list[Rule]) -> None:
    """The quick way for plain paths leads where the other one does; and nothing is less protected than by the rule
    that covers it.
    """
    text = f"/{'/'.join(path)}"
    found = possible_policies("POST", (text,), order, REST)
    assert found == _most_protective("POST", spellings(text), order, REST, certain=True)
    exact = next((rule for rule in order if rule.covers("POST", text)), None)
    policy = REST if exact is None else exact.policy
    levels = [0 if each is None else 2 if each.required else 1 for each in (found[0], policy)]
    assert levels[0] >= levels[1]


def test_a_path_without_end_costs_little() -> None:
    assert len(spellings("/a/..;/b\\c//d.json" * 20)) <= 64
    assert len(spellings("/a/..;/b\\c//d.json" * 2000)) == 2
