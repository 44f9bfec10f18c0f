"""The judgement, row by row, on what services have been seen to do."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from semel.probe.bodies import Difference, change_request
from semel.probe.effects import make_counter
from semel.probe.judge import Mark, ProbeVerdict, judge
from semel.probe.probes import Observations, Seen
from semel.probe.report import format_url, redact
from semel.probe.wire import ProbeReply, ProbeRequest

JSON = (("Content-Type", "application/json"),)
REPLAYED = (*JSON, ("Idempotent-Replayed", "true"))


def answer(number: int = 1, status: int = 201, headers: tuple[tuple[str, str], ...] = JSON) -> ProbeReply:
    return ProbeReply(status, headers, json.dumps({"id": number}).encode())


def seen(*replies: ProbeReply, effects: int | None = None) -> Seen:
    return Seen(replies, effects)


GOOD = Observations(
    first=seen(answer()),
    repeat=seen(answer(headers=REPLAYED)),
    parallel=seen(answer(2), ProbeReply(409, (("Retry-After", "1"),))),
    settled=seen(answer(2, headers=REPLAYED)),
    other_body=seen(ProbeReply(422)),
    control=seen(answer(3)),
    stranger=seen(answer(4)),
    stranger_made_up=False,
    unkeyed=seen(answer(5), answer(6)),
    empty_key=seen(ProbeReply(400)),
    long_key=seen(ProbeReply(400)),
)
ORDER = ("repeat", "parallel", "other_body", "stranger", "unkeyed", "empty_key", "long_key")


def verdict(row: str, **changed: Any) -> ProbeVerdict:
    return judge(replace(GOOD, **changed))[ORDER.index(row)]


def test_a_good_service() -> None:
    assert {each.mark for each in judge(GOOD)} == {Mark.RIGHT}


FAILED = ProbeReply(failure="no answer within 1 s")
CASES: list[tuple[str, dict[str, Seen | None], Mark, str]] = [
    ("repeat", {"repeat": seen(answer())}, Mark.RIGHT, "another key gets another one"),
    ("repeat", {"repeat": seen(answer(2))}, Mark.WRONG, "the work ran twice"),
    ("repeat", {"repeat": seen(answer(2, headers=REPLAYED))}, Mark.WRONG, "got another answer (/id 1 ≠ 2)"),
    ("repeat", {"repeat": seen(answer(), effects=1)}, Mark.WRONG, "although the answers are alike"),
    ("repeat", {"repeat": seen(answer(2), effects=1)}, Mark.WRONG, "the work ran again"),
    ("repeat", {"repeat": seen(ProbeReply(409))}, Mark.WRONG, "refused (409) although the first one is done"),
    ("repeat", {"repeat": seen(ProbeReply(500))}, Mark.WRONG, "the repeat failed (500)"),
    ("repeat", {"repeat": seen(FAILED)}, Mark.WRONG, "no answer within 1 s"),
    ("repeat", {"repeat": seen(ProbeReply(201, REPLAYED, b'{"id":1}'))}, Mark.UNCLEAR, "not byte for byte"),
    ("repeat", {"repeat": seen(answer(headers=()))}, Mark.WRONG, "another content-type header"),
    ("repeat", {"repeat": seen(answer(status=200))}, Mark.WRONG, "got another answer"),
    ("parallel", {"parallel": seen(answer(2), answer(3))}, Mark.WRONG, "ran 2 times"),
    ("parallel", {"parallel": seen(answer(2), answer(2), effects=2)}, Mark.WRONG, "ran 2 times"),
    ("parallel", {"parallel": seen(answer(2), ProbeReply(500))}, Mark.WRONG, "1 of them failed (500)"),
    ("parallel", {"parallel": seen(answer(2), FAILED)}, Mark.WRONG, "1 of them failed"),
    ("parallel", {"settled": seen(ProbeReply(409))}, Mark.WRONG, "does not give the answer (409)"),
    ("parallel", {"settled": seen(answer(9))}, Mark.WRONG, "does not give the answer"),
    ("parallel", {"parallel": seen(ProbeReply(202), ProbeReply(202))}, Mark.RIGHT, "one of them ran"),
    ("parallel", {"parallel": seen(answer(2), answer(2))}, Mark.RIGHT, "one of them ran"),
    ("other_body", {"other_body": seen(answer(2))}, Mark.WRONG, "accepted under a used key"),
    ("other_body", {"other_body": seen(answer())}, Mark.WRONG, "with the first one's answer"),
    ("other_body", {"other_body": seen(ProbeReply(422), effects=1)}, Mark.WRONG, "the work ran"),
    ("other_body", {"other_body": seen(ProbeReply(503))}, Mark.WRONG, "failed (503)"),
    ("other_body", {"control": seen(ProbeReply(422))}, Mark.UNCLEAR, "refused under any key"),
    ("stranger", {"stranger": None}, Mark.UNCLEAR, "does not identify its caller"),
    ("stranger", {"stranger": seen(answer())}, Mark.WRONG, "got the first caller's answer"),
    ("stranger", {"stranger": seen(answer(7, headers=REPLAYED))}, Mark.WRONG, "got the first caller's answer"),
    ("stranger", {"stranger": seen(ProbeReply(401))}, Mark.UNCLEAR, "not authorised"),
    ("stranger", {"stranger": seen(ProbeReply(409))}, Mark.UNCLEAR, "callers share their keys"),
    ("stranger", {"stranger": seen(ProbeReply(500))}, Mark.WRONG, "failed (500)"),
    ("unkeyed", {"unkeyed": seen(ProbeReply(400), ProbeReply(400))}, Mark.RIGHT, "the key is required"),
    ("unkeyed", {"unkeyed": seen(answer(5), answer(5))}, Mark.WRONG, "two operations that look alike become one"),
    ("unkeyed", {"unkeyed": seen(answer(5), answer(6), effects=1)}, Mark.WRONG, "two operations"),
    ("unkeyed", {"unkeyed": seen(answer(5), ProbeReply(500))}, Mark.WRONG, "failed (500)"),
    ("empty_key", {"empty_key": seen(answer(7))}, Mark.WRONG, "believes that it is protected"),
    ("empty_key", {"empty_key": seen(FAILED)}, Mark.WRONG, "failed"),
    ("long_key", {"long_key": seen(answer(7))}, Mark.UNCLEAR, "keys of any length"),
    ("long_key", {"long_key": seen(ProbeReply(500))}, Mark.WRONG, "failed (500)"),
]


@pytest.mark.parametrize(("row", "changed", "mark", "why"), CASES)
def test_a_row(row: str, changed: dict[str, Seen | None], mark: Mark, why: str) -> None:
    found = verdict(row, **changed)
    assert found.mark is mark
    assert why in found.why
    if mark is not Mark.RIGHT:
        assert found.advice.endswith(".")


def test_a_409_should_say_when_to_come_back() -> None:
    assert "Retry-After" in verdict("parallel", parallel=seen(answer(2), ProbeReply(409))).advice


@pytest.mark.parametrize(
    ("body", "other"),
    [
        (b'{"sku": "A", "n": 1}', b'{"sku": "A", "n": 2}'),
        (b'{"lines": [{"sku": "A", "gift": true}]}', b'{"lines": [{"sku": "Ax", "gift": true}]}'),
        (b"[]", b'[[], "semel-try"]'),
        (b"amount=5", b"amount=5 "),
    ],
)
def test_another_body_has_the_same_shape(body: bytes, other: bytes) -> None:
    request = ProbeRequest("POST", "http://h/", body=body)
    assert change_request(request, None).body == other
    assert change_request(request, b"given").body == b"given"


def test_without_a_body_the_query_changes() -> None:
    assert change_request(ProbeRequest("POST", "http://h/a"), None).url == "http://h/a?semel-try=other"
    assert change_request(ProbeRequest("POST", "http://h/a?b=1"), None).url == "http://h/a?b=1&semel-try=other"


def test_differences_show_what_is_no_secret() -> None:
    one, other = b'{"id": 1, "token": "abc", "at": [1, 2]}', b'{"id": 2, "token": "xyz", "at": [1, 3]}'
    assert str(Difference(one, other)) == "/id 1 ≠ 2, /token … ≠ … and 1 more"
    assert Difference(b"1", b"1.0").only_bytes
    assert str(Difference(b"<a/>", b"<b/>")) == ""


def test_secrets_are_not_shown() -> None:
    assert format_url("http://user:pw@h:80/a?token=abc&b=") == "http://h:80/a?token=…&b=…"
    request = ProbeRequest("POST", "http://h/", (("Authorization", "Bearer abcdef"),))
    assert redact("Bearer abcdef, abcdef", request.headers) == "…, …"


@pytest.mark.parametrize("said", ["3", "rows: 3", "count 1 of 3"])
def test_a_command_counts(said: str) -> None:
    assert make_counter(f"echo '{said}'", ProbeRequest("POST", "http://h/"), 10)() == 3
