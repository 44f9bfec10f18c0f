"""Spellings of a path that an upstream in another language may forgive. This one forgives all: whatever comes, ran."""

from collections.abc import Iterator

import pytest

from gateway.gatewaying import Answer, GatewayServer, Upstream

RULES = """
[[rules]]
match = "/webhooks/"
exempt = true

[[rules]]
match = "POST /payments"
required = true

[[rules]]
match = "POST /payments/{id}"

[[rules]]
match = "POST /payments/{id}/capture"
guarantee = "at-least-once"

[[rules]]
match = "POST /refunds/{id}"
required = true

[[rules]]
match = "PUT /files/{name:path}"
retention = "1h"
"""
REQUIRED = (
    "/payments", "/payments/", "/Payments", "/PAYMENTS/", "//payments", "/payments//", "/./payments", "/a/../payments",
    "/webhooks/../payments", "/webhooks/x/../../payments", "/%2e/payments", "/a/%2E%2e/payments", "/a/.%2e/payments",
    "/webhooks/%2e%2e/payments", "/webhooks/..%2fpayments", "/webhooks%2f..%2fpayments", "/webhooks/%2e%2e%2fpayments",
    "/%252e%252e/payments", "/webhooks/%252e%252e/payments", "/webhooks/%252e%252e%252fpayments", "/payments;a=b",
    "/payments;a=b/", "/payments%3Ba=b", "/webhooks/..;/payments", "/webhooks/..;a=b/payments", "/%70ayments",
    "/payments.json", "/payments%20", "/payments%00", "/payments%00.txt", "/payments%0a", "/a/..%5cpayments",
    "/webhooks%5c..%5cpayments", "/payments%5c", "/payments%2f", "/payments?a=b", "/payments/?a=../webhooks/",
    "/webhooks/../%50ayments/", "/refunds/7", "/refunds/a%2fb", "/Refunds/7/", "/refunds/7;a=b", "/refunds/7.json",
)  # fmt: skip


@pytest.fixture(scope="module")
def forgiving() -> Iterator[tuple[GatewayServer, Upstream]]:
    upstream = Upstream()
    with GatewayServer(upstream.port, rules=RULES) as gateway:
        yield gateway, upstream
    upstream.close()


def is_missing(answer: Answer) -> bool:
    return answer.status == 400 and b"key-missing" in answer.body


def test_no_spelling_runs_without_the_key_that_a_rule_requires(forgiving: tuple[GatewayServer, Upstream]) -> None:
    gateway, upstream = forgiving
    before = len(upstream.asked)
    passed = [path for path in REQUIRED if not is_missing(gateway.post(path, None))]
    assert (passed, len(upstream.asked) - before) == ([], 0)


@pytest.mark.parametrize("path", ["/a/../payments//;x=%20y", "/webhooks/%2e%2e/payments", "/payments/a%2Fb"])
def test_what_is_passed_on_is_what_came(forgiving: tuple[GatewayServer, Upstream], path: str, key: str) -> None:
    """And it is protected: the upstream sees it once."""
    gateway, upstream = forgiving
    answers = [gateway.post(path, key, key.encode()) for _ in range(2)]
    assert [answer.header("idempotent-replayed") for answer in answers] == [None, "true"]
    assert (upstream.effects(key), upstream.asked[-1].path) == (1, path)


@pytest.mark.parametrize("path", ["/payments/7%2fcapture", "/payments/x/../7%2Fcapture"])
def test_where_rules_contradict_each_other_a_path_of_two_readings_is_refused(
    forgiving: tuple[GatewayServer, Upstream], path: str, key: str
) -> None:
    """`/payments/7/capture`, or a payment by the name of `7/capture`? Its guarantee would depend on who reads it."""
    gateway, upstream = forgiving
    refused = gateway.post(path, key, key.encode())
    assert (refused.status, refused.header("content-type")) == (400, "text/plain; charset=utf-8")
    assert b"can be read in several ways" in refused.body
    assert upstream.effects(key) == 0
    assert gateway.post(path, None, key.encode()).status == 201, "without a key no rule protects it, however it is read"
    assert gateway.post("/payments/7/capture", key, key.encode()).status == 201


@pytest.mark.parametrize(
    ("path", "exempt"),
    [
        ("/webhooks/a", True),
        ("/webhooks/a%20b", True),
        ("/webhooks/a%2Fb", True),
        ("/webhooks//a.json;v=1", True),
        ("/webhooks%2Fa", False),
        ("/Webhooks/a", False),
        ("/webhooks/../a", False),
        ("/webhooks/%252e%252e/a", False),
        ("/%77ebhooks/a", False),
        ("/webhooks", False),
    ],
)
def test_what_is_exempt_is_so_in_every_spelling(
    forgiving: tuple[GatewayServer, Upstream], path: str, exempt: bool, key: str
) -> None:
    gateway, upstream = forgiving
    answers = [gateway.post(path, key, key.encode()) for _ in range(2)]
    assert [answer.status for answer in answers] == [201, 201]
    assert upstream.effects(key) == (2 if exempt else 1)


def test_reading_is_never_refused(forgiving: tuple[GatewayServer, Upstream]) -> None:
    gateway, upstream = forgiving
    assert gateway.ask("GET", "/payments/7%2fcapture/../x;y").status == 201
    assert upstream.asked[-1].path == "/payments/7%2fcapture/../x;y"


def test_a_name_with_slashes_keeps_its_rule(forgiving: tuple[GatewayServer, Upstream], key: str) -> None:
    """`{name:path}` is what covers encoded slashes in whatever way they are read."""
    gateway, upstream = forgiving
    for path in ("/files/a/b", "/files/a%2Fb"):
        assert gateway.ask("PUT", path, key.encode(), f"Idempotency-Key: {key}").status == 201
    assert upstream.effects(key) == 2
