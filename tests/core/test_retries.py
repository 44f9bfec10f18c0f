"""What a caller does after each answer, row by row, and how long it waits."""

import json
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime
from typing import get_args

import pytest

from semel.core.dialects import (
    ADYEN,
    DIALECTS,
    DRAFT_07,
    GOCARDLESS,
    MOLLIE,
    PAYPAL,
    REPEATABILITY,
    SQUARE,
    STRIPE,
    X_IDEMPOTENCY_KEY,
    KeyDialect,
)
from semel.core.http import PROBLEMS, problem
from semel.core.policy_values import ErrorStyle
from semel.core.retries import (
    ATTEMPTS_MAX,
    NEXT_STEPS,
    OF_PROBLEM,
    OF_STATUS,
    PROBLEM_MAX,
    WAIT_MS_MAX,
    AttemptEnd,
    Backoff,
    CallAnswer,
    NextStep,
    find_header,
    is_replay,
    jitter_ms,
    may_repeat,
    read_answer,
    read_problem,
    read_retry_after,
    wait_ms,
)

TABLE = [
    (AttemptEnd.ANSWERED, NextStep.CLOSE),
    (AttemptEnd.MOVED, NextStep.LEAVE_OPEN),
    (AttemptEnd.NOT_KEPT, NextStep.CLOSE),
    (AttemptEnd.STORED_FAILURE, NextStep.CLOSE),
    (AttemptEnd.SERVER_ERROR, NextStep.LEAVE_OPEN),
    (AttemptEnd.IN_PROGRESS, NextStep.REPEAT),
    (AttemptEnd.LATER, NextStep.REPEAT),
    (AttemptEnd.GATEWAY, NextStep.REPEAT),
    (AttemptEnd.UNAUTHORIZED, NextStep.LEAVE_OPEN),
    (AttemptEnd.KEY_REFUSED, NextStep.DOUBT),
    (AttemptEnd.UNREADABLE, NextStep.DOUBT),
    (AttemptEnd.UNKNOWN, NextStep.DOUBT),
    (AttemptEnd.FORGOTTEN, NextStep.DOUBT),
    (AttemptEnd.DO_NOT_REPEAT, NextStep.LEAVE_OPEN),
    (AttemptEnd.UNREACHED, NextStep.REPEAT),
    (AttemptEnd.LOST, NextStep.REPEAT),
    (AttemptEnd.UNSENDABLE, NextStep.LEAVE_OPEN),
    (AttemptEnd.HELD_BACK, NextStep.LEAVE_OPEN),
]
PLAIN = X_IDEMPOTENCY_KEY
REPLAYED = {"Idempotent-Replayed": "true"}
NOW_MS = 1_700_000_000_000
NOW = datetime.fromtimestamp(NOW_MS / 1_000, UTC)


def answer(status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> CallAnswer:
    return CallAnswer(status, tuple((headers or {}).items()), body)


def document(status: int, media_type: str = "application/problem+json", **fields: object) -> CallAnswer:
    return answer(status, {"Content-Type": media_type}, json.dumps(fields).encode())


@pytest.mark.parametrize(("received", "step"), TABLE, ids=lambda each: getattr(each, "name", ""))
def test_a_row_of_the_table(received: AttemptEnd, step: NextStep) -> None:
    assert NEXT_STEPS[received] is step


def test_the_table_is_whole() -> None:
    assert {row[0] for row in TABLE} == set(AttemptEnd) == NEXT_STEPS.keys()
    assert set(NEXT_STEPS.values()) == set(NextStep)


@pytest.mark.parametrize("base", ["/.well-known/idempotency", "https://api.example/v1/.well-known/idempotency", None])
@pytest.mark.parametrize("kind", PROBLEMS)
@pytest.mark.parametrize("errors", get_args(ErrorStyle))
@pytest.mark.parametrize("dialect", [DRAFT_07, STRIPE], ids=lambda each: each.name)
def test_the_problems_of_our_servers_mean_to_callers_what_the_servers_say(
    kind: str, base: str | None, errors: ErrorStyle, dialect: KeyDialect
) -> None:
    sent = problem(kind, "urn:uuid:x", base=base, errors=errors)
    headers = tuple((name.decode(), value.decode()) for name, value in sent.headers)
    received = read_answer(CallAnswer(sent.status, headers, sent.body), dialect)
    assert received is OF_PROBLEM[kind]
    assert (NEXT_STEPS[received] is NextStep.REPEAT) == PROBLEMS[kind].retryable


HERE_IT_GOES_ON = '<{}#in-progress>; rel="describedby"'
OF_THE_DOCUMENT = HERE_IT_GOES_ON.format("/v1/.well-known/idempotency")


@pytest.mark.parametrize(
    ("status", "headers", "received"),
    [
        (202, {"Link": OF_THE_DOCUMENT}, AttemptEnd.IN_PROGRESS),
        (202, {"Link": '<urn:semel:in-progress>; rel="describedby"'}, AttemptEnd.IN_PROGRESS),
        (202, {"Link": f'</a>; rel="next", {OF_THE_DOCUMENT}'}, AttemptEnd.IN_PROGRESS),
        (202, {"Link": OF_THE_DOCUMENT, "Idempotent-Replayed": "true"}, AttemptEnd.ANSWERED),
        (201, {"Link": OF_THE_DOCUMENT}, AttemptEnd.ANSWERED),
        (202, {"Link": HERE_IT_GOES_ON.format("/docs")}, AttemptEnd.ANSWERED),
        (202, {"Link": '</.well-known/idempotency>; rel="describedby"'}, AttemptEnd.ANSWERED),
        (202, {"Link": "<" * 100_000 + OF_THE_DOCUMENT}, AttemptEnd.ANSWERED),
        (202, {"X-Link": OF_THE_DOCUMENT}, AttemptEnd.ANSWERED),
    ],
)
def test_a_202_of_semel_is_no_answer_and_one_of_the_application_is(
    status: int, headers: dict[str, str], received: AttemptEnd
) -> None:
    assert read_answer(answer(status, headers), DRAFT_07) is received


def test_every_problem_has_a_meaning() -> None:
    assert OF_PROBLEM.keys() == PROBLEMS.keys()


@pytest.mark.parametrize(
    ("status", "received"),
    [
        *((status, AttemptEnd.ANSWERED) for status in (200, 201, 202, 204, 303, 304, 400, 404, 409, 410, 413, 422)),
        *((status, AttemptEnd.MOVED) for status in (301, 302, 307, 308)),
        *((status, AttemptEnd.UNAUTHORIZED) for status in (401, 403, 407)),
        *((status, AttemptEnd.LATER) for status in (408, 425, 429, 503)),
        *((status, AttemptEnd.GATEWAY) for status in (502, 504)),
        *((status, AttemptEnd.SERVER_ERROR) for status in (500, 501, 505, 599)),
    ],
)
def test_a_status_alone(status: int, received: AttemptEnd) -> None:
    assert read_answer(answer(status), PLAIN) is received


def test_the_draft_gives_two_statuses_a_meaning() -> None:
    assert read_answer(answer(409), DRAFT_07) is AttemptEnd.IN_PROGRESS
    assert read_answer(answer(422), DRAFT_07) is AttemptEnd.KEY_REFUSED
    assert read_answer(answer(409), GOCARDLESS) is AttemptEnd.ANSWERED, "it names the resource that exists"


def test_a_conflict_that_is_not_retryable_is_an_answer() -> None:
    assert read_answer(document(409, type="about:blank", retryable=False), DRAFT_07) is AttemptEnd.ANSWERED


@pytest.mark.parametrize(
    ("status", "received"),
    [
        (200, AttemptEnd.ANSWERED),
        (409, AttemptEnd.ANSWERED),
        (500, AttemptEnd.STORED_FAILURE),
        (502, AttemptEnd.STORED_FAILURE),
        (504, AttemptEnd.STORED_FAILURE),
        (503, AttemptEnd.LATER),
        (401, AttemptEnd.UNAUTHORIZED),
    ],
)
def test_a_replay_is_what_the_server_has_stored(status: int, received: AttemptEnd) -> None:
    replayed = answer(status, REPLAYED)
    assert is_replay(replayed, DRAFT_07)
    assert read_answer(replayed, DRAFT_07) is received


def test_a_problem_of_another_service_that_is_retryable_is_repeated() -> None:
    assert read_answer(document(409, type="https://x/busy", retryable=True), PLAIN) is AttemptEnd.LATER
    assert read_answer(document(200, type="https://x/busy", retryable=True), PLAIN) is AttemptEnd.ANSWERED


@pytest.mark.parametrize(
    ("status", "says", "dialect", "received"),
    [
        (500, "true", STRIPE, AttemptEnd.LATER),
        (400, "true", STRIPE, AttemptEnd.LATER),
        (200, "true", STRIPE, AttemptEnd.ANSWERED),
        (500, "false", STRIPE, AttemptEnd.DO_NOT_REPEAT),
        (429, "false", STRIPE, AttemptEnd.DO_NOT_REPEAT),
        (409, "false", STRIPE, AttemptEnd.DO_NOT_REPEAT),
        (402, "false", STRIPE, AttemptEnd.ANSWERED),
        (401, "false", STRIPE, AttemptEnd.UNAUTHORIZED),
        (409, "", STRIPE, AttemptEnd.IN_PROGRESS),
        (422, "true", ADYEN, AttemptEnd.LATER),
        (422, "false", ADYEN, AttemptEnd.ANSWERED),
    ],
)
def test_a_service_says_itself_whether_to_repeat(
    status: int, says: str, dialect: KeyDialect, received: AttemptEnd
) -> None:
    assert read_answer(answer(status, {dialect.verdict_header: says}), dialect) is received


STRIPE_REUSED = b'{"error": {"type": "idempotency_error", "message": "Keys for idempotent requests can only"}}'
STRIPE_BUSY = b'{"error": {"type": "invalid_request_error", "code": "idempotency_key_in_use"}}'
ADYEN_BUSY = b'{"status": 422, "errorCode": "704", "message": "request already processed or in progress"}'
SQUARE_REUSED = b'{"errors": [{"category": "INVALID_REQUEST_ERROR", "code": "IDEMPOTENCY_KEY_REUSED"}]}'
PAYPAL_REUSED = b'{"name": "x", "details": [{"issue": "PAYPAL_REQUEST_ID_PREVIOUSLY_USED"}]}'
PAYPAL_BUSY = b'{"name": "RESOURCE_CONFLICT", "details": [{"issue": "PREVIOUS_REQUEST_IN_PROGRESS"}]}'


@pytest.mark.parametrize(
    ("status", "body", "dialect", "received"),
    [
        (400, STRIPE_REUSED, STRIPE, AttemptEnd.KEY_REFUSED),
        (409, STRIPE_BUSY, STRIPE, AttemptEnd.IN_PROGRESS),
        (400, b'{"error": {"type": "invalid_request_error"}}', STRIPE, AttemptEnd.ANSWERED),
        (200, STRIPE_REUSED, STRIPE, AttemptEnd.ANSWERED),
        (400, STRIPE_REUSED, ADYEN, AttemptEnd.ANSWERED),
        (400, PROBLEM_MAX * b" " + STRIPE_REUSED, STRIPE, AttemptEnd.ANSWERED),
        (422, ADYEN_BUSY, ADYEN, AttemptEnd.IN_PROGRESS),
        (409, ADYEN_BUSY, ADYEN, AttemptEnd.IN_PROGRESS),
        (422, b'{"errorCode": "702", "amount": 704}', ADYEN, AttemptEnd.ANSWERED),
        (400, SQUARE_REUSED, SQUARE, AttemptEnd.KEY_REFUSED),
        (400, b"<Error><Code>IDEMPOTENCY_KEY_REUSED</Code></Error>", SQUARE, AttemptEnd.KEY_REFUSED),
        (422, PAYPAL_REUSED, PAYPAL, AttemptEnd.KEY_REFUSED),
        (409, PAYPAL_BUSY, PAYPAL, AttemptEnd.IN_PROGRESS),
        (409, b'{"name": "RESOURCE_CONFLICT"}', PAYPAL, AttemptEnd.ANSWERED),
        (400, b"", MOLLIE, AttemptEnd.KEY_REFUSED),
        (409, b"", MOLLIE, AttemptEnd.IN_PROGRESS),
        (422, b"", MOLLIE, AttemptEnd.ANSWERED),
    ],
)
def test_a_service_says_in_the_body_what_became_of_the_key(
    status: int, body: bytes, dialect: KeyDialect, received: AttemptEnd
) -> None:
    assert read_answer(answer(status, body=body), dialect) is received


@pytest.mark.parametrize(
    ("status", "says", "received"),
    [
        (400, "rejected", AttemptEnd.KEY_REFUSED),
        (501, "Rejected", AttemptEnd.KEY_REFUSED),
        (412, "rejected", AttemptEnd.FORGOTTEN),
        (412, "accepted", AttemptEnd.ANSWERED),
        (400, "accepted", AttemptEnd.ANSWERED),
        (409, "accepted", AttemptEnd.IN_PROGRESS),
        (500, "accepted", AttemptEnd.SERVER_ERROR),
    ],
)
def test_a_service_rejects_the_key_without_looking_at_the_request(status: int, says: str, received: AttemptEnd) -> None:
    assert read_answer(answer(status, {"Repeatability-Result": says}), REPEATABILITY) is received


def test_a_replay_is_the_stored_answer_even_with_the_status_of_a_reused_key() -> None:
    assert read_answer(answer(400, REPLAYED), MOLLIE) is AttemptEnd.ANSWERED
    assert read_answer(answer(422, REPLAYED), DRAFT_07) is AttemptEnd.ANSWERED


@pytest.mark.parametrize(
    "sent",
    [
        document(409, media_type="application/json", type="urn:semel:in-progress"),
        document(409, type="urn:semel:no-such-kind"),
        document(409, type="in-progress"),
        document(409, type=7, retryable="yes"),
        answer(409, {"content-type": "application/problem+json"}, b"[]"),
        answer(409, {"content-type": "application/problem+json"}, b"{"),
        answer(409, {"content-type": "application/problem+json"}, b"\xff"),
        answer(409, {"content-type": "application/problem+json"}, b"[" * 60_000),
        document(409, type="urn:semel:in-progress", detail=PROBLEM_MAX * " "),
    ],
)
def test_what_is_no_problem_document_says_nothing(sent: CallAnswer) -> None:
    assert read_problem(sent) == read_problem(answer(409))
    assert read_answer(sent, PLAIN) is AttemptEnd.ANSWERED


def test_a_media_type_has_parameters_and_no_case() -> None:
    sent = document(409, media_type="Application/Problem+JSON; charset=utf-8", type="urn:semel:in-progress")
    assert read_problem(sent).kind == "in-progress"


def test_headers_are_found_whatever_their_case() -> None:
    assert find_header([("X-A", " 1 "), ("x-a", "2")], "x-A") == "1"
    assert find_header([("", "1")], "") == find_header([], "x") == ""


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_no_success_is_ever_repeated(dialect: KeyDialect) -> None:
    for status in range(200, 300):
        assert read_answer(answer(status), dialect) is AttemptEnd.ANSWERED


@pytest.mark.parametrize("status", OF_STATUS)
def test_a_refusal_before_the_operation_closes_nothing(status: int) -> None:
    assert NEXT_STEPS[OF_STATUS[status]] is not NextStep.CLOSE


def test_only_idempotent_methods_and_keyed_requests_are_sent_twice() -> None:
    assert [may_repeat(method, keyed=False) for method in ("GET", "put", "DELETE", "POST", "PATCH", "QUERY")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
    assert may_repeat("POST", keyed=True)


@pytest.mark.parametrize(
    ("value", "asked_ms"),
    [
        ("0", 0),
        ("120", 120_000),
        (" 7 ", 7_000),
        ("1000000000", 1_000_000_000_000),
        ("0" * 5_000 + "3", 3_000),
        ("9" * 5_000, 999_999_999_999_000),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90_000),
        (format_datetime((NOW + timedelta(seconds=90)).astimezone(timezone(timedelta(hours=2)))), 90_000),
        ("Tuesday, 14-Nov-23 22:14:20 GMT", 60_000),
        ("Tue Nov 14 22:14:20 2023", 60_000),
        ("Fri, 01 Jan 1990 00:00:00 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 253_402_300_799_000 - NOW_MS),
        *((value, None) for value in ("", "soon", "-1", "1.5", "1e9", "٣", "²", "Tue, 99 Foo 2023", "0x10", "1, 2")),
        ("Tue, 14 Nov 99999 22:14:20 GMT", None),
        ("Tue, 14 Nov 2023 22:14:20 +9999999", None),
    ],
)
def test_retry_after(value: str, asked_ms: int | None) -> None:
    assert read_retry_after(value, NOW_MS) == asked_ms


def test_full_jitter_doubles_up_to_its_limit() -> None:
    backoff = Backoff(first_ms=100, pause_ms_max=450)
    assert [jitter_ms(backoff, attempt, 0.999999) for attempt in (0, 1, 2, 3, 4, 10_000)] == [
        99,
        99,
        199,
        399,
        449,
        449,
    ]
    assert [jitter_ms(backoff, attempt, 0.0) for attempt in (1, 5)] == [0, 0]
    assert jitter_ms(backoff, 3, 0.5) == 200


def test_what_a_server_asks_for_is_capped_and_jitter_comes_on_top() -> None:
    backoff = Backoff(first_ms=100, retry_after_ms_max=5_000)
    assert wait_ms(backoff, 1, 0.5, None) == 50
    assert wait_ms(backoff, 1, 0.5, 2_000) == 2_050
    assert wait_ms(backoff, 1, 0.5, 1_000_000_000_000) == 5_050


@pytest.mark.parametrize("field", ["attempts", "deadline_ms", "first_ms", "pause_ms_max", "retry_after_ms_max"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5, max(ATTEMPTS_MAX, WAIT_MS_MAX) + 1])
def test_every_number_has_bounds(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{field} must be a whole number between 1 and"):
        Backoff(**{field: value})
