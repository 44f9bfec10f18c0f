"""The policy document is drawn from the live policy and rules."""

import json
import re
from html.parser import HTMLParser
from typing import Any

from semel import Fingerprint, Policy
from semel.core.http import PROBLEMS, Response
from semel.core.rules import Rule
from semel.http.document import document
from semel.http.document import published as find
from semel.http.gate import Gate
from semel.http.marks import Marked

PATH = "/.well-known/idempotency"
HTML = [(b"accept", b"text/html,application/xhtml+xml,*/*;q=0.8")]


def shown(gate: Gate, path: str = PATH, headers: Any = (), **more: Any) -> Response:
    answer = find(gate, path, headers, **more)
    assert isinstance(answer, Response)
    return answer


def published(gate: Gate, **more: Any) -> dict[str, Any]:
    answer = shown(gate, **more)
    assert dict(answer.headers)[b"content-type"] == b"application/json"
    assert dict(answer.headers)[b"content-length"] == str(len(answer.body)).encode()
    found: dict[str, Any] = json.loads(answer.body)
    return found


def test_the_members() -> None:
    found = published(Gate(Policy(retention=3600, in_flight="wait")))
    assert found["headers"] == ["Idempotency-Key", "X-Idempotency-Key"]
    assert found["key"] == {"format": "any", "max_length": 255}
    assert found["retention_seconds"] == 3600
    assert found["in_flight"] == "wait"
    assert found["guarantee"] == "at-most-once"
    assert found["operations"] == [{"match": "everything else", "methods": ["PATCH", "POST", "PUT"], "required": False}]
    assert found["released_statuses"] == [401, 403, 407, 408, 425, 429, 503]
    assert "stored" in found
    assert {each["type"].partition("#")[2] for each in found["problems"]} == set(PROBLEMS)
    assert {each["type"].partition("#")[0] for each in found["problems"]} == {PATH}


def test_the_statuses_are_those_that_are_sent() -> None:
    for policy, status in ((Policy(), 422), (Policy.stripe(), 400)):
        found = published(Gate(policy))
        assert found["errors"] == policy.errors
        assert [each["status"] for each in found["problems"] if each["type"].endswith("#key-reused")] == [status]


def test_rules_show_what_differs_and_nothing_else() -> None:
    strict = Policy(
        required=True, retention=60, key_format=re.compile("[a-z]+"), guarantee="at-least-once", headers=("K",),
        methods=("DELETE",), in_flight="wait", result_max=1,
    )  # fmt: skip
    rules = [Rule("/health", None), Rule("POST /a/{id}", Policy(required=True)), Rule("/b/", strict)]
    operations = document(Gate(Policy(), rules))["operations"]
    assert operations[0] == {"match": "/health", "exempt": True}
    assert operations[1] == {"match": "POST /a/{id}", "required": True}
    assert operations[2] == {
        "match": "/b/", "required": True, "retention_seconds": 60, "key_format": "[a-z]+", "guarantee": "at-least-once",
        "in_flight": "wait", "headers": ["K"], "methods": ["DELETE"], "result_max": 1,
    }  # fmt: skip


def test_everything_that_a_caller_can_notice_is_shown_where_it_differs() -> None:
    other = Policy(
        scope="tenant", expired="refuse", fingerprint="json", body_max=2, result_max=3, quota="5/minute",
    )  # fmt: skip
    chosen = Policy(scope=lambda request: "", fingerprint=lambda request: "")
    parts = Policy(fingerprint=Fingerprint(body=None, headers=("x-secret-header",)))
    rules = [Rule("/a", other), Rule("/b", chosen), Rule("/c", parts)]
    found = published(Gate(Policy(), rules))
    defaults = ("scope", "expired", "fingerprint", "body_max", "result_max", "quota")
    assert [found[name] for name in defaults] == ["endpoint", "new", "raw", 1_048_576, 1_048_576, None]
    assert found["operations"][0] == {
        "match": "/a", "required": False, "scope": "tenant", "expired": "refuse", "fingerprint": "json",
        "body_max": 2, "result_max": 3, "quota": "5/minute",
    }  # fmt: skip
    by_service = "chosen by the service"
    assert found["operations"][1] == {
        "match": "/b", "required": False, "scope": by_service, "fingerprint": by_service,
    }  # fmt: skip
    assert found["operations"][2] == {"match": "/c", "required": False, "fingerprint": "without the body"}


def test_marked_endpoints_come_first_and_paths_are_those_of_the_caller() -> None:
    marks = [Marked(("POST", "PUT"), "/x/{id}", Policy(required=True)), Marked(("POST",), "/free", None)]
    gate = Gate(Policy(), [Rule(" POST,PUT /a/ ", Policy()), Rule("/b", None)])
    found = published(gate, root="/api", marks=lambda: marks)
    assert [(each["match"], each.get("exempt"), each.get("required")) for each in found["operations"]] == [
        ("POST,PUT /api/x/{id}", None, True), ("POST /api/free", True, None), ("POST,PUT /api/a/", None, False),
        ("/api/b", True, None), ("everything else", None, False),
    ]  # fmt: skip
    assert found["problems"][0]["type"].startswith(f"/api{PATH}#")


class Ids(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str | None] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids |= {value for name, value in attrs if name == "id"}


def test_browsers_get_a_page_with_a_section_for_every_problem() -> None:
    gate = Gate(Policy(retention=1800), [Rule("POST /<script>", Policy(required=True)), Rule("/x", None)])
    answer = shown(gate, headers=HTML)
    assert dict(answer.headers)[b"content-type"] == b"text/html; charset=utf-8"
    assert dict(answer.headers)[b"vary"] == b"accept"
    page, parser = answer.body.decode(), Ids()
    parser.feed(page)
    assert set(PROBLEMS) <= parser.ids
    assert "<script>" not in page
    assert "1800 seconds" in page
    assert b"24 hours" in shown(Gate(Policy()), headers=HTML).body


def test_elsewhere_and_switched_off() -> None:
    assert find(Gate(Policy()), PATH + "/x", []) is None
    assert find(Gate(Policy(), publish=None), PATH, []) is None
    moved = shown(Gate(Policy(), publish="/docs/retries"), "/docs/retries")
    assert json.loads(moved.body)["problems"][0]["type"].startswith("/docs/retries#")
