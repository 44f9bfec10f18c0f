"""What a service publishes about its keys, as a dialect: documents of our servers, and whatever else may come."""

import json
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from core.scripted import play
from semel.core.dialects import DAY_MS, KeyFormat, KeyQuoting, check_key, make_key
from semel.core.discovery import (
    DOCUMENT_MAX,
    OF_HTTP,
    DiscoveredKeys,
    FetchDocument,
    FetchedDocument,
    discover_keys,
    locate,
    read_document,
)
from semel.errors import NotDiscovered

URL = "https://api.example/.well-known/idempotency"
HOUR = 3_600
DOCUMENT: dict[str, Any] = {
    "headers": ["Idempotency-Key", "X-Idempotency-Key"],
    "key": {"format": "any", "max_length": 255, "examples": []},
    "retention_seconds": 24.0 * HOUR,
    "operations": [{"match": "everything else", "methods": ["POST"], "required": False}],
    "unknown": {"deeper": [1, 2]},
}
MISSING = object()


def fetched(document: object = None, **changed: Any) -> FetchedDocument:
    body = json.dumps(DOCUMENT if document is None else document).encode()
    return replace(FetchedDocument(200, "application/json", body), **changed)


def read(*operations: dict[str, Any], **changed: Any) -> DiscoveredKeys:
    document = {**DOCUMENT, "operations": list(operations), **changed}
    return read_document(fetched({name: value for name, value in document.items() if value is not MISSING}), URL)


def moved(location: str, status: int = 302) -> FetchedDocument:
    return FetchedDocument(status, "text/plain", b"", location)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://api.example", URL),
        ("https://api.example/", URL),
        (f"{URL}?a=1#in-progress", URL),
        ("https://api.example/v1/", "https://api.example/v1/.well-known/idempotency"),
        ("http://localhost:8000", "http://localhost:8000/.well-known/idempotency"),
    ],
)
def test_where_the_document_is(url: str, found: str) -> None:
    assert locate(url) == found


@pytest.mark.parametrize("url", ["", "api.example", "/v1", "ftp://api.example", "https://", "file:///etc/passwd"])
def test_what_is_no_service(url: str) -> None:
    with pytest.raises(ValueError, match="the service must be an http or https URL"):
        locate(url)


def test_a_document_is_a_dialect() -> None:
    found = play(discover_keys("https://api.example"), (FetchDocument(URL), fetched()))
    dialect = found.dialect
    assert (dialect.name, dialect.source, dialect.header) == ("discovered", URL, "Idempotency-Key")
    assert (dialect.quoting, dialect.format, dialect.key_max) == (KeyQuoting.QUOTED, KeyFormat.UUID4, 255)
    assert (dialect.retention_ms, found.max_age) == (DAY_MS, timedelta(hours=23))
    assert (dialect.reused, dialect.busy, dialect.replay_header) == ((422,), (409,), "Idempotent-Replayed")
    assert found.exempt == ()


@pytest.mark.parametrize(
    ("formats", "quoting", "format"),
    [
        (["any"], KeyQuoting.QUOTED, KeyFormat.UUID4),
        (["strict", "any"], KeyQuoting.QUOTED, KeyFormat.UUID4),
        (["any", "strict"], KeyQuoting.QUOTED, KeyFormat.UUID4),
        (["uuid"], KeyQuoting.BARE, KeyFormat.UUID4),
        (["any", "uuid", "any"], KeyQuoting.BARE, KeyFormat.UUID4),
        (["ulid"], KeyQuoting.BARE, KeyFormat.ULID),
    ],
)
def test_a_key_suits_every_operation(formats: list[str], quoting: KeyQuoting, format: KeyFormat) -> None:
    operations = [{"key_format": each} for each in formats[1:]]
    dialect = read(*operations, key={"format": formats[0], "max_length": 40}).dialect
    assert (dialect.quoting, dialect.format) == (quoting, format)
    assert check_key(make_key(format, bytes(16), 0, ""), dialect)


def test_operations_that_want_it_otherwise() -> None:
    found = read(
        {"match": "/health", "exempt": True, "key_format": "[0-9]+", "retention_seconds": 1},
        {"match": "POST /pay", "headers": ["pay-key", "x-idempotency-key"], "retention_seconds": HOUR},
        {"match": "everything else"},
    )
    assert found.dialect.header == "X-Idempotency-Key", "the first that all of them read"
    assert found.dialect.retention_ms == HOUR * 1_000, "the shortest"
    assert found.exempt == ("/health",)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"headers": MISSING}, "missing required field `headers`"),
        ({"headers": []}, "no header in which all of its operations take a key"),
        ({"headers": "Idempotency-Key"}, "Expected `array`"),
        ({"headers": ["Idempotency Key"]}, "which cannot hold one"),
        ({"headers": ["K\r\nHost: other"]}, "which cannot hold one"),
        ({"headers": ["K" * 101]}, "which cannot hold one"),
        *(({"headers": [name.title()]}, "which cannot hold one") for name in sorted(OF_HTTP)),
        ({"key": {"format": "(a+)+$", "max_length": 255}}, "semel cannot make a key that suits them all"),
        ({"key": {"format": "uuid", "max_length": 35}}, "key.max_length 35 is too short for a UUID4"),
        ({"key": {"format": "ulid", "max_length": 25}}, "key.max_length 25 is too short for a ULID"),
        ({"key": {"format": "any", "max_length": -1}}, "does not say how keys are sent"),
        ({"key": {"format": "any", "max_length": True}}, "does not say how keys are sent"),
        *(
            ({"retention_seconds": value}, "does not say how keys are sent")
            for value in (MISSING, None, "86400", 0, -1, 0.5, 1e12, True)
        ),
        ({"operations": [{"key_format": "uuid"}, {"key_format": "ulid"}]}, r"formats \['ulid', 'uuid'\]"),
        ({"operations": [{"headers": ["Other"]}]}, "no header in which all of its operations take a key"),
        ({"operations": [{"headers": []}]}, "no header in which all of its operations take a key"),
        ({"operations": [{"retention_seconds": 0}]}, "does not say how keys are sent"),
        ({"operations": {}}, "does not say how keys are sent"),
    ],
)
def test_what_cannot_be_adopted_for_sure(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(NotDiscovered, match=says):
        read(**changed)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (fetched(status=404), "answers 404"),
        (fetched(status=204), "answers 204"),
        (fetched(content_type="text/html"), "is no JSON document but 'text/html'"),
        (fetched(content_type=""), "is no JSON document but ''"),
        (fetched(body=b""), "does not say how keys are sent"),
        (fetched(body=b"{"), "does not say how keys are sent"),
        (fetched(body=b"[]"), "does not say how keys are sent"),
        (fetched(body=b"null"), "does not say how keys are sent"),
        (fetched(body=b"\xff\xfe"), "does not say how keys are sent"),
        (fetched(body=b"[" * 60_000), "does not say how keys are sent"),
        (fetched(body=b'{"unknown": ' + b"[" * 60_000), "does not say how keys are sent"),
        (fetched(body=b'{"retention_seconds": 1e999}'), "does not say how keys are sent"),
        (fetched(body=b" " * (DOCUMENT_MAX + 1)), "is longer than 65536 bytes"),
        (moved("https://evil.example/.well-known/idempotency"), "another origin, 'https://evil.example/"),
        (moved("http://api.example/.well-known/idempotency"), "another origin"),
        (moved("https://api.example:8443/"), "another origin"),
        (moved("//evil.example/"), "another origin"),
        (moved("https://api.example:port/"), "another origin"),
        (moved("https://[/"), "another origin"),
    ],
)
def test_what_is_no_document(answer: FetchedDocument, says: str) -> None:
    with pytest.raises(NotDiscovered, match=says):
        play(discover_keys("https://api.example"), (FetchDocument(URL), answer))


def test_a_media_type_has_parameters_and_no_case() -> None:
    assert read_document(fetched(content_type="Application/JSON; charset=utf-8"), URL).dialect.header


def test_redirects_within_the_origin_are_followed_a_few_times() -> None:
    second = "https://api.example/docs/idempotency"
    found = play(
        discover_keys("https://api.example"),
        (FetchDocument(URL), moved("/docs/idempotency")),
        (FetchDocument(second), moved("https://API.example:443/docs/idempotency")),
        (FetchDocument("https://API.example:443/docs/idempotency"), fetched()),
    )
    assert found.dialect.source == "https://API.example:443/docs/idempotency"
    with pytest.raises(NotDiscovered, match="redirects more than 3 times"):
        play(discover_keys("https://api.example"), *4 * [(FetchDocument(URL), moved(""))])
