"""Every row of the problem table, and which headers a replay carries."""

import json

import pytest

from semel import Policy, RecordUnreadable, StoreUnavailable
from semel.core import http
from semel.core.decisions import Expired, InFlight, Mismatch, Undecided, Unknown, Unreadable
from semel.core.http import PROBLEMS, Response, ending_of, kept_headers, problem, problem_of, status_of
from semel.core.records import Key, Record, State
from semel.core.tables import Ending

TABLE = [
    ("key-missing", 400, False),
    ("key-malformed", 400, False),
    ("key-reused", 422, False),
    ("in-progress", 409, True),
    ("outcome-unknown", 409, False),
    ("result-not-kept", 409, False),
    ("key-expired", 410, False),
    ("body-too-large", 413, False),
    ("internal-error", 500, False),
    ("not-executed", 503, True),
    ("unreachable", 502, True),
    ("interrupted", 504, False),
    ("record-unreadable", 500, False),
    ("too-many-keys", 429, True),
    ("store-unavailable", 503, True),
]
RECORD = Record(Key("t", "s", "n"), "f", State.IN_PROGRESS, "o", 1, 0, 1, 2)


def test_the_table_is_complete() -> None:
    assert {name for name, _, _ in TABLE} == set(PROBLEMS)


@pytest.mark.parametrize(("kind", "status", "retryable"), TABLE)
def test_a_problem(kind: str, status: int, retryable: bool) -> None:
    answer = problem(kind, "urn:uuid:1", retry_after_s=7)
    body, headers = json.loads(answer.body), dict(answer.headers)
    assert (answer.status, body["status"], body["retryable"]) == (status, status, retryable)
    assert set(body) == {"type", "title", "status", "detail", "instance", "retryable"}
    assert body["type"] == f"/.well-known/idempotency#{kind}"
    assert body["instance"] == "urn:uuid:1"
    assert body["detail"] == PROBLEMS[kind].advice
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"content-length"] == str(len(answer.body)).encode()
    assert headers[b"cache-control"] == b"no-store"
    assert headers[b"link"] == b'</.well-known/idempotency>; rel="describedby"'
    assert headers.get(b"retry-after") == (b"7" if retryable else None)


def test_without_a_document_types_are_names_and_nothing_is_linked() -> None:
    answer = problem("in-progress", "urn:uuid:1", detail="Wait.", base=None, retry_after_s=0)
    assert json.loads(answer.body)["type"] == "urn:semel:in-progress"
    assert json.loads(answer.body)["detail"] == "Wait."
    assert b"link" not in dict(answer.headers)
    assert dict(answer.headers)[b"retry-after"] == b"1"


@pytest.mark.parametrize(("kind", "status", "retryable"), TABLE)
def test_a_problem_as_stripe_says_it(kind: str, status: int, retryable: bool) -> None:
    answer = problem(kind, "urn:uuid:1-2", retry_after_s=7, errors="stripe")
    error, headers = json.loads(answer.body)["error"], dict(answer.headers)
    assert answer.status == status_of(kind, "stripe") == (400 if kind == "key-reused" else status)
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"content-length"] == str(len(answer.body)).encode()
    assert headers[b"cache-control"] == b"no-store"
    assert headers[b"link"] == f'</.well-known/idempotency#{kind}>; rel="describedby"'.encode()
    assert headers[b"request-id"] == b"1-2"
    assert headers[b"stripe-should-retry"] == (b"true" if retryable else b"false")
    assert headers.get(b"retry-after") == (b"7" if retryable else None)
    assert error["message"] == f"{PROBLEMS[kind].title}. {PROBLEMS[kind].advice}"
    match kind:
        case "key-reused":
            assert error.keys() == {"type", "message"}
            assert error["type"] == "idempotency_error"
        case "in-progress":
            assert (error["type"], error["code"]) == ("invalid_request_error", "idempotency_key_in_use")
        case "too-many-keys":
            assert (error["type"], error["code"]) == ("invalid_request_error", "rate_limit")
        case _:
            assert error["type"] == ("api_error" if status >= 500 else "invalid_request_error")
            assert error["code"] == kind.replace("-", "_")


def test_the_problem_of_each_decision() -> None:
    assert problem_of(Mismatch()) == "key-reused"
    assert problem_of(InFlight(RECORD, 1)) == "in-progress"
    assert problem_of(Unknown(None)) == "outcome-unknown"
    assert problem_of(Expired()) == "key-expired"
    assert problem_of(Unreadable(RecordUnreadable("x"))) == "record-unreadable"
    assert problem_of(Undecided(StoreUnavailable("x"))) == "store-unavailable"


@pytest.mark.parametrize(
    ("status", "ending"),
    [
        *((status, Ending.REFUSED) for status in (401, 403, 407, 408, 425, 429, 503)),
        *((status, Ending.SUCCEEDED) for status in (200, 201, 204, 302, 304, 399)),
        *((status, Ending.FAILED) for status in (400, 404, 409, 422, 500, 502, 504)),
    ],
)
def test_how_an_answer_ends_the_work(status: int, ending: Ending) -> None:
    assert ending_of(status, Policy()) is ending


def test_the_refusing_statuses_are_the_policys() -> None:
    assert ending_of(503, Policy(release_statuses=())) is Ending.FAILED
    assert ending_of(409, Policy(release_statuses=(409,))) is Ending.REFUSED


SENT = tuple(
    (name.encode(), b"v")
    for name in (
        "Content-Type X-A Set-Cookie Date Server Connection x-a Transfer-Encoding WWW-Authenticate Content-Encoding"
    ).split()
)


def test_a_replay_keeps_order_and_repeats_and_leaves_out_what_belongs_to_one_moment_or_caller() -> None:
    names = [name for name, _ in kept_headers(SENT, Policy())]
    assert names == [b"Content-Type", b"X-A", b"x-a", b"Content-Encoding"]


def test_chosen_headers_always_include_those_without_which_the_body_would_be_another() -> None:
    names = [name for name, _ in kept_headers(SENT, Policy(replay_headers=("Set-Cookie",)))]
    assert names == [b"Content-Type", b"Set-Cookie", b"Content-Encoding"]


def test_more_headers_are_added_at_the_end() -> None:
    answer = Response(200, ((b"a", b"1"),), b"x").plus(http.REPLAYED, http.NOT_STORED)
    assert answer.headers == ((b"a", b"1"), (b"idempotent-replayed", b"true"), (b"idempotency-stored", b"false"))
