"""What is given wrongly is refused when it is given. Each error names the argument and says what to write."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
import requests
import urllib3
from requests.adapters import HTTPAdapter

from client.api import serving
from client.fronts import Open
from semel.client import DRAFT_07, Journal, Retry, RetryBudget
from semel.client import httpx as semel_httpx
from semel.client import httpx2 as semel_httpx2
from semel.client.requests import IdempotentAdapter
from semel.client.urllib3 import IdempotentPoolManager
from semel.errors import Misuse, StoreMisconfigured

HOUR = timedelta(hours=1)
ANY: Any = None


@pytest.fixture
def journal() -> Journal:
    return Journal("memory://")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"journal": "sqlite:///journal.db"}, r'journal= must be a Journal, as in Journal\("sqlite:///journal.db"\)'),
        ({"dialect": "stripe"}, "dialect= must be a KeyDialect, for example semel.client.STRIPE, not 'stripe'"),
        ({"dialect": None}, "dialect= must be a KeyDialect, .*, not None"),
        ({"retry": 3}, r"retry= must be a Retry, as in Retry\(attempts=3\), not int"),
        ({"lease": HOUR}, "lease must be a number of seconds, not timedelta"),
        ({"lease": "30s"}, "lease must be a number of seconds, not '30s'"),
    ],
)
def test_an_adapter_refuses_it_before_there_is_a_request(open_front: Open, options: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        open_front(**options)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: semel_httpx.IdempotentTransport(ANY), r"sync, such as httpx.HTTPTransport\(\), not None"),
        (
            lambda: semel_httpx.IdempotentTransport(httpx.AsyncHTTPTransport()),  # type: ignore[arg-type]
            "not AsyncHTTPTransport",
        ),
        (
            lambda: semel_httpx.AsyncIdempotentTransport(httpx.HTTPTransport()),  # type: ignore[arg-type]
            r"async, such as httpx.AsyncHTTPTransport\(\), not HTTPTransport",
        ),
        (
            lambda: semel_httpx2.IdempotentTransport(httpx2.AsyncHTTPTransport()),  # type: ignore[arg-type]
            r"httpx2.HTTPTransport\(\), not AsyncHTTPTransport",
        ),
        (
            lambda: semel_httpx2.AsyncIdempotentTransport(httpx2.HTTPTransport()),  # type: ignore[arg-type]
            r"httpx2.AsyncHTTPTransport\(\), not HTTPTransport",
        ),
        (lambda: IdempotentAdapter(requests.Session()), r"a requests.adapters.HTTPAdapter\(\), not Session"),  # type: ignore[arg-type]
        (lambda: Journal(Path("journal.db")), "url must be text, for example 'sqlite:///journal.db', not PosixPath"),  # type: ignore[arg-type]
        (lambda: DRAFT_07.keeping(7), r"retention must be a timedelta, for example timedelta\(hours=23\), not 7"),  # type: ignore[arg-type]
        (
            lambda: IdempotentPoolManager(jornal=Journal("memory://")),
            "has no option jornal=: it takes journal=, .* and what urllib3.PoolManager takes",
        ),
        (lambda: Retry(deadline=HOUR), "deadline must be a number of seconds, not timedelta"),  # type: ignore[arg-type]
        (lambda: Retry(pause_max=True), "pause_max must be a number of seconds, not bool"),
        (lambda: RetryBudget(ratio="3"), "ratio must be a number, not '3'"),  # type: ignore[arg-type]
    ],
)
def test_a_value_of_another_kind(make: Callable[[], object], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        make()


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda journal: journal.intent("a", max_age=3_600), r"max_age must be a timedelta, .*\(hours=23\), not 3600"),
        (lambda journal: journal.intent("a", max_age=-HOUR), "max_age must be between 0:00:00.001000 and 3660 days"),
        (lambda journal: journal.purge(older=30), "older must be a timedelta, for example"),
        (
            lambda journal: journal.purge(older=-HOUR),
            "older must be between 0:00:00 and 3660 days",
        ),
        (lambda journal: journal.read(42), "name must be text, not int"),
        (lambda journal: journal.forget(""), "name must not be empty"),
        (lambda journal: journal.resume("a"), r"entry must be an intent of journal.pending\(\) .*, not 'a'"),
        (lambda journal: journal.resume(None), "not None"),
    ],
)
def test_what_a_journal_is_asked(journal: Journal, ask: Callable[[Any], object], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        ask(journal)


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("no/journal.db", "make its folder .*/no first. Nothing is sent without it"),
        ("file/journal.db", "/file is no folder. Nothing is sent without it"),
        ("folder", "it is a folder, so name a file in it. Nothing is sent without it"),
        (":memory:", "a journal in memory is written memory://"),
    ],
)
def test_a_journal_that_cannot_be_made(tmp_path: Path, monkeypatch: Any, where: str, says: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    Path("folder").mkdir()
    with pytest.raises(StoreMisconfigured, match=says):
        Journal(f"sqlite:///{where}")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]


def test_headers_of_an_intent_without_the_adapter_say_which_one_is_missing(journal: Journal) -> None:
    headers = journal.intent("pay:42", max_age=HOUR).headers
    transport = semel_httpx.IdempotentTransport(httpx.HTTPTransport(), journal=journal)
    with serving() as api, httpx.Client(transport=transport) as http, requests.Session() as session:
        session.mount("https://", IdempotentAdapter(HTTPAdapter(), journal=journal))
        for post in (
            lambda: http.post(api.url, headers=headers),
            lambda: session.post(api.url, headers=headers),
            lambda: urllib3.request("POST", api.url, headers=headers),
            lambda: asyncio.run(post_by_async_httpx(api.url, headers)),
        ):
            with pytest.raises(Misuse, match=r'IdempotentAdapter .*IdempotentPoolManager .*extensions=\{"semel": inte'):
                post()
        assert not api.requests


async def post_by_async_httpx(url: str, headers: dict[str, str]) -> None:
    async with httpx.AsyncClient() as http:
        await http.post(url, headers=headers)
