"""Every field of the policy: its default, what it takes, and an error that names it."""

import re
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest

from semel.core.fingerprint import Fingerprint, RequestParts
from semel.core.policy import Policy
from semel.core.policy_values import HOP_BY_HOP, NEVER_REPLAYED

# Section 7 of the design, line by line.
DEFAULTS: dict[str, object] = {
    "required": False,
    "methods": {"POST", "PUT", "PATCH"},
    "headers": ("Idempotency-Key", "X-Idempotency-Key"),
    "key_format": "any",
    "guarantee": "at-most-once",
    "in_flight": "reject",
    "wait": timedelta(seconds=10),
    "scope": "endpoint",
    "retention": timedelta(hours=24),
    "unknown_retention": timedelta(days=30),
    "lease": timedelta(seconds=30),
    "expired": "new",
    "fingerprint": "raw",
    "release_statuses": {401, 403, 407, 408, 425, 429, 503},
    "release_exceptions": (),
    "release_invalid": False,
    "replay_headers": None,
    "body_max": 1_048_576,
    "result_max": 1_048_576,
    "on_store_error": "closed",
    "quota": None,
    "per_host": False,
    "errors": "problem",
}


def test_the_fields_are_those_of_the_design() -> None:
    assert [field.name for field in fields(Policy)] == list(DEFAULTS)


@pytest.mark.parametrize(("name", "default"), DEFAULTS.items())
def test_default_of(name: str, default: object) -> None:
    assert getattr(Policy(), name) == default


def choose(request: RequestParts) -> str:
    return request.path


GOOD: list[tuple[str, Any, object]] = [
    ("required", True, True),
    ("methods", ["post", "Delete"], {"POST", "DELETE"}),
    ("methods", (), set()),
    ("headers", ["Request-Id"], ("Request-Id",)),
    ("errors", "stripe", "stripe"),
    ("key_format", "ulid", "ulid"),
    ("key_format", re.compile("k-[0-9]+"), re.compile("k-[0-9]+")),
    ("guarantee", "exactly-once", "exactly-once"),
    ("in_flight", "accept", "accept"),
    ("wait", 0.25, timedelta(milliseconds=250)),
    ("scope", choose, choose),
    ("scope", "tenant", "tenant"),
    ("per_host", True, True),
    ("retention", 60, timedelta(minutes=1)),
    ("lease", timedelta(milliseconds=1), timedelta(milliseconds=1)),
    ("expired", "refuse", "refuse"),
    ("fingerprint", "json", "json"),
    ("fingerprint", Fingerprint(body=None), Fingerprint(body=None)),
    ("fingerprint", choose, choose),
    ("release_statuses", [429, 429, 503], {429, 503}),
    ("release_statuses", (), set()),
    ("release_exceptions", [TimeoutError], (TimeoutError,)),
    ("replay_headers", ["Location", "ETag"], {"location", "etag"}),
    ("body_max", 0, 0),
    ("result_max", 2**30, 2**30),
    ("on_store_error", "open", "open"),
    ("quota", "600/minute", "600/minute"),
]


@pytest.mark.parametrize(("name", "given", "kept"), GOOD)
def test_takes(name: str, given: Any, kept: object) -> None:
    policy = Policy(**{name: given})
    assert getattr(policy, name) == kept
    assert replace(policy) == policy, "what was converted once can be given again"
    assert hash(policy) == hash(replace(policy))


BAD: list[tuple[str, Any, str]] = [
    ("required", "yes", "expected True or False, not 'yes'"),
    ("per_host", "yes", "expected True or False, not 'yes'"),
    ("methods", "POST", "expected several values, not 'POST'"),
    ("methods", ["GET", "POST"], "GET: safe methods are never touched"),
    ("methods", ["PO ST"], "'PO ST' is not an HTTP token"),
    ("headers", [], "at least one is needed"),
    ("headers", 5, "expected several values, not 5"),
    ("headers", ["Idempotency Key"], "'Idempotency Key' is not an HTTP token"),
    ("headers", [b"Idempotency-Key"], "is not an HTTP token"),
    ("key_format", "guid", "expected 'any', 'uuid', 'ulid', 'strict' or Pattern, not 'guid'"),
    ("guarantee", "once", "expected 'at-most-once', 'at-least-once', 'exactly-once', not 'once'"),
    ("in_flight", None, "expected 'reject', 'wait', 'accept', not None"),
    ("wait", "10", "expected a timedelta or a number of seconds, not '10'"),
    ("wait", True, "expected a timedelta or a number of seconds, not True"),
    ("scope", "global", "expected 'endpoint', 'tenant' or Callable, not 'global'"),
    ("retention", 0, "must be between 1 ms and"),
    ("unknown_retention", 0, "must be between 1 ms and"),
    ("retention", timedelta(days=4_000), "must be between 1 ms and"),
    ("lease", -1, "must be between 1 ms and"),
    ("lease", float("nan"), "must be between 1 ms and"),
    ("lease", float("inf"), "must be between 1 ms and"),
    ("expired", True, "expected 'new', 'refuse', not True"),
    ("fingerprint", "xml", "expected 'raw', 'json' or Fingerprint or Callable, not 'xml'"),
    ("release_statuses", [100], "100 is not the status of a final answer"),
    ("release_statuses", ["503"], "'503' is not the status of a final answer"),
    ("release_statuses", 503, "expected several values, not 503"),
    ("release_exceptions", [KeyboardInterrupt], "is not an exception type"),
    ("release_exceptions", [ValueError("x")], "is not an exception type"),
    ("release_invalid", 1, "expected True or False"),
    ("errors", "xml", "expected 'problem', 'stripe'"),
    ("replay_headers", ["Transfer-Encoding"], "transfer-encoding: hop-by-hop headers belong to one connection"),
    ("body_max", 1.5, "expected a number of bytes, not 1.5"),
    ("body_max", True, "expected a number of bytes, not True"),
    ("result_max", -1, "must be between 0 and"),
    ("result_max", 2**30 + 1, "must be between 0 and"),
    ("on_store_error", "ignore", "expected 'closed', 'open', not 'ignore'"),
    ("quota", "600", "expected text like '600/minute'"),
    ("quota", "0/minute", "expected text like '600/minute'"),
    ("quota", 600, "expected text like '600/minute'"),
]


@pytest.mark.parametrize(("name", "given", "complaint"), BAD)
def test_refuses_by_the_name_of_the_field(name: str, given: Any, complaint: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        Policy(**{name: given})
    assert str(caught.value).startswith(f"Policy.{name}: ")
    assert complaint in str(caught.value)


def test_every_field_has_a_bad_value() -> None:
    assert {name for name, _, _ in BAD} == set(DEFAULTS)


def test_an_unknown_outcome_is_kept_for_longer_than_a_result() -> None:
    day_ms = 86_400_000
    assert Policy().claimed_ms == 30 * day_ms
    assert Policy(unknown_retention=timedelta(days=2)).claimed_ms == 2 * day_ms
    assert Policy(retention=timedelta(days=60)).claimed_ms == 60 * day_ms
    assert Policy(retention=timedelta(days=20), expired="refuse").claimed_ms == 40 * day_ms
    with pytest.raises(ValueError, match=r"Policy.unknown_retention: 1:00:00 is less than the retention, 1 day"):
        Policy(unknown_retention=3600)


def test_a_refused_key_is_remembered_for_one_more_retention_within_the_bound() -> None:
    assert Policy(retention=60).refuse_ms == 0
    assert Policy(retention=60, expired="refuse").refuse_ms == 60_000
    with pytest.raises(ValueError, match=r"Policy.retention: expired=\"refuse\""):
        Policy(retention=timedelta(days=3_000), expired="refuse")


def test_durations_in_milliseconds() -> None:
    policy = Policy(retention=1.5, lease=0.0015, wait=timedelta(seconds=2))
    assert (policy.retention_ms, policy.lease_ms, policy.wait_ms) == (1_500, 2, 2_000)


def test_what_the_choices_mean() -> None:
    assert [Policy(guarantee=each).takeover for each in ("at-most-once", "at-least-once", "exactly-once")] == [
        False,
        True,
        False,
    ]
    assert [Policy(in_flight=each).waits for each in ("reject", "wait", "accept")] == [False, True, False]


def test_header_names_as_they_come_off_the_wire() -> None:
    assert Policy().header_names == (b"idempotency-key", b"x-idempotency-key")


def test_a_policy_is_frozen() -> None:
    with pytest.raises(AttributeError):
        Policy().required = True  # type: ignore[misc]


def test_preset_draft07() -> None:
    assert Policy.draft07() == Policy(
        required=True, headers=("Idempotency-Key",), methods=("POST", "PATCH"), key_format="strict"
    )
    assert Policy.draft07(key_format="uuid").key_format == "uuid"


def test_preset_stripe() -> None:
    day = timedelta(hours=24)
    assert Policy.stripe() == Policy(
        methods=("POST",),
        headers=("Idempotency-Key",),
        scope="tenant",
        retention=day,
        release_invalid=True,
        errors="stripe",
    )
    assert not Policy().release_invalid, "by default a failure is an answer, too"
    assert Policy.stripe(required=True).required


def test_what_is_never_replayed() -> None:
    assert {"set-cookie", "date", "server", "www-authenticate", "connection", "transfer-encoding"} <= NEVER_REPLAYED
    assert HOP_BY_HOP <= NEVER_REPLAYED
