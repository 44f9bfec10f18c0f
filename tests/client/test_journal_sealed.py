"""A journal whose requests and answers are sealed: nothing of them is readable in the file, and nothing is mixed up."""

import sqlite3
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from client.api import Api, serving
from semel.client import Journal, Retry
from semel.client.httpx import IdempotentTransport
from semel.codecs.sealed import Seal
from semel.errors import KeyReused, RecordUnreadable, StoreMisconfigured

HOUR = timedelta(hours=1)
OLD, NEW = b"o" * 32, b"n" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def sealed(path: Path, keys: dict[str, bytes], **rest: object) -> Journal:
    return Journal(f"sqlite:///{path}", seal=Seal(keys, **rest))  # type: ignore[arg-type]


def pay(journal: Journal, api: Api, name: str = "pay:42", amount: int = 123456789) -> bytes:
    transport = IdempotentTransport(httpx.HTTPTransport(), journal=journal, retry=Retry(attempts=1))
    with httpx.Client(transport=transport) as http, journal.intent(name, max_age=HOUR) as intent:
        return http.post(f"{api.url}?token=s3cret", json={"amount": amount}, extensions={"semel": intent}).content


def change(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        assert connection.execute(statement).rowcount == 1
    connection.close()


def mark_of(path: Path) -> bytes:
    connection = sqlite3.connect(path)
    found: bytes = connection.execute("SELECT payload FROM mark").fetchone()[0]
    connection.close()
    return found


def test_neither_request_nor_answer_nor_error_is_readable_in_the_file(path: Path) -> None:
    journal = sealed(path, {"2026-11": NEW})
    with serving("answer", "drop") as api:
        assert pay(journal, api) == b"paid"
        with pytest.raises(httpx.RemoteProtocolError) as lost:
            pay(journal, api, "pay:43")
        written = b"".join(file.read_bytes() for file in path.parent.iterdir())
        for word in (b"123456789", b"s3cret", b"POST", b"application/json", b"paid", str(lost.value).encode()):
            assert word not in written
        for word in (b"pay:42", api.requests[0][1].strip('"').encode(), b"answered"):
            assert word in written, "what is not sealed"
        assert pay(journal, api) == b"paid", "from the journal"
        assert len(api.requests) == 2
    (left,) = journal.pending()
    assert (left.request.url, str(lost.value) in left.error) == (f"{api.url}?token=s3cret", True)


def test_another_request_under_a_name_is_refused_when_it_is_sealed_too(path: Path) -> None:
    with serving() as api:
        pay(sealed(path, {"2026-11": NEW}), api)
        with pytest.raises(KeyReused, match=r"the name of the intent belongs to another request"):
            pay(sealed(path, {"2026-11": NEW}), api, amount=6)
        assert len(api.requests) == 1


def test_a_missing_or_wrong_key_is_refused_before_anything_is_sent(path: Path) -> None:
    with serving("drop") as api:
        with pytest.raises(httpx.RemoteProtocolError):
            pay(sealed(path, {"2026-10": OLD}), api)
        with pytest.raises(StoreMisconfigured, match=r"is sealed: open it with its keys, Journal\(url, seal=Seal"):
            Journal(f"sqlite:///{path}")
        with pytest.raises(StoreMisconfigured, match=r"with the key '2026-10', which is not among .*\(2026-11\)"):
            sealed(path, {"2026-11": NEW})
        with pytest.raises(StoreMisconfigured, match=r"2026-10 is not the key that it was sealed with"):
            sealed(path, {"2026-10": NEW})
        with pytest.raises(TypeError, match=r"seal= takes a Seal, .* not bytes"):
            Journal(f"sqlite:///{path}", seal=NEW)  # type: ignore[arg-type]
        assert len(api.requests) == 1


@pytest.mark.parametrize(
    "change_of",
    [
        "name = 'pay:44'",
        "namespace = 'shop'",
        "request = (SELECT request FROM intents WHERE name = 'pay:42')",
        "outcome = (SELECT outcome FROM intents WHERE name = 'pay:42')",
    ],
)
def test_a_row_that_was_copied_to_another_name_does_not_open(path: Path, change_of: str) -> None:
    journal = sealed(path, {"2026-11": NEW})
    with serving() as api:
        pay(journal, api)
        pay(journal, api, "pay:43")
        change(path, f"UPDATE intents SET {change_of} WHERE name = 'pay:43'")
        journal.namespace = "shop" if "shop" in change_of else ""
        name = "pay:44" if "pay:44" in change_of else "pay:43"
        with pytest.raises(RecordUnreadable, match=rf"the intent '{name}' in .* does not open, so nothing is sent"):
            pay(journal, api, name)
        assert len(api.requests) == 2


@pytest.mark.parametrize(
    "change_of", ["key = 'another'", "created_ms = created_ms + 1", "request = outcome", "outcome = request"]
)
def test_a_row_whose_key_age_or_parts_were_changed_does_not_open(path: Path, change_of: str) -> None:
    journal = sealed(path, {"2026-11": NEW})
    with serving() as api:
        pay(journal, api)
        change(path, f"UPDATE intents SET {change_of}")
        with pytest.raises(RecordUnreadable, match=r"the intent 'pay:42' in .* does not open, so nothing is sent"):
            pay(journal, api)
        assert len(api.requests) == 1


def test_keys_are_rotated_and_the_old_one_goes_when_its_intents_are_purged(path: Path) -> None:
    with serving() as api:
        pay(sealed(path, {"old": OLD}), api)
        both = sealed(path, {"new": NEW, "old": OLD})
        assert pay(both, api) == b"paid"
        pay(both, api, "pay:43")
        assert mark_of(path).startswith(b"\3new"), "sealed with the new key"
        only_new = sealed(path, {"new": NEW})
        assert pay(only_new, api, "pay:43") == b"paid"
        with pytest.raises(RecordUnreadable, match=r"'pay:42' .* sealed with the key 'old', which is not among"):
            pay(only_new, api)
        assert len(api.requests) == 2


def test_a_plain_journal_is_sealed_from_now_on_only_by_choice(path: Path) -> None:
    with serving() as api:
        pay(Journal(f"sqlite:///{path}"), api)
        with pytest.raises(StoreMisconfigured, match="it is not sealed: pass allow_plain=True"):
            sealed(path, {"new": NEW})
        journal = sealed(path, {"new": NEW}, allow_plain=True)
        assert pay(journal, api) == b"paid"
        pay(journal, api, "pay:43")
        assert len(api.requests) == 2
        with pytest.raises(StoreMisconfigured, match="is sealed: open it with its keys"):
            Journal(f"sqlite:///{path}")
