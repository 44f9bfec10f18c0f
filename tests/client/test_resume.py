"""What a dead process left, sent by the next one: the stored request under its key, or an error with the way out."""

from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from client.api import serving
from semel.client import DRAFT_07, SQUARE, Indeterminate, Journal, KeyDialect, Retry
from semel.client.httpx import IdempotentTransport
from semel.client.journal import wall_clock_ms
from semel.core.journal import IntentEntry
from semel.errors import KeyReused
from waiting import until

HOUR = timedelta(hours=1)
ONCE, FAST = Retry(attempts=1), Retry(pause_max=0.02, deadline=10)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(f"sqlite:///{tmp_path}/journal.db")


def client(journal: Journal, retry: Retry, dialect: KeyDialect = DRAFT_07) -> httpx.Client:
    transport = IdempotentTransport(httpx.HTTPTransport(), journal=journal, retry=retry, dialect=dialect)
    return httpx.Client(transport=transport)


def leave(journal: Journal, url: str, max_age: timedelta = HOUR, dialect: KeyDialect = DRAFT_07) -> IntentEntry:
    """Send an intent whose answer is lost or none."""
    with client(journal, ONCE, dialect) as http:
        intent = journal.intent("pay:42", max_age=max_age)
        with suppress(httpx.TransportError):
            http.post(url, json={"amount": 5}, headers={"Authorization": "s3cret"}, extensions={"semel": intent})
    (left,) = journal.pending()
    return left


def send(journal: Journal, entry: IntentEntry, dialect: KeyDialect = DRAFT_07) -> httpx.Response:
    """As an adapter does it."""
    with client(journal, FAST, dialect) as http, journal.resume(entry) as intent:
        asked = intent.request
        return http.request(
            asked.method, asked.url, headers=asked.headers, content=asked.body, extensions={"semel": intent}
        )


@pytest.mark.parametrize("dialect", [DRAFT_07, SQUARE], ids=lambda dialect: dialect.name)
def test_a_request_that_was_left_is_sent_again_with_its_key_and_bytes(journal: Journal, dialect: KeyDialect) -> None:
    with serving("drop") as api:
        left = leave(journal, api.url, dialect=dialect)
        assert send(journal, left, dialect).content == b"paid"
        first, second = api.requests
        assert first == second
        assert journal.pending() == ()
        assert send(journal, left, dialect).content == b"paid"
        assert len(api.requests) == 2, "it has its answer meanwhile: nothing is sent"


def test_in_another_dialect_it_would_be_another_operation(journal: Journal) -> None:
    with serving("drop") as api:
        left = leave(journal, api.url)
        with pytest.raises(KeyReused, match=r"begun in the dialect draft-07, and this one is square"):
            send(journal, left, SQUARE)
        assert len(api.requests) == 1


def test_the_stored_request_has_no_secrets(journal: Journal) -> None:
    with serving("drop") as api:
        asked = journal.resume(leave(journal, api.url)).request
    assert (asked.method, asked.url, asked.body) == ("POST", api.url, b'{"amount":5}')
    assert dict(asked.headers)["content-type"] == "application/json"
    assert "s3cret" not in str(asked.headers)


def test_one_that_is_too_old_is_not_sent_again(journal: Journal) -> None:
    with serving("drop") as api:
        left = leave(journal, api.url, timedelta(milliseconds=20))
        until(lambda: left.is_too_old(wall_clock_ms()))
        with pytest.raises(Indeterminate, match=r"older than its max_age.*Find out at the service.*forget\('pay:42'\)"):
            journal.resume(left)
        assert len(api.requests) == 1


def test_one_in_doubt_is_not_sent_again(journal: Journal) -> None:
    with serving("problem outcome-unknown") as api:
        left = leave(journal, api.url)
        with pytest.raises(Indeterminate, match=r"could not say how .*its last attempt: 409.*forget\('pay:42'\)"):
            journal.resume(left)
        assert len(api.requests) == 1


def test_one_that_was_forgotten_meanwhile_is_not_begun_anew(journal: Journal) -> None:
    with serving("drop", "drop") as api:
        left = leave(journal, api.url)
        assert journal.forget("pay:42")
        with pytest.raises(Indeterminate, match="was forgotten or purged since it was listed"):
            journal.resume(left)
        assert leave(journal, api.url).key != left.key
        with pytest.raises(Indeterminate, match="was forgotten or purged since it was listed"):
            journal.resume(left)
