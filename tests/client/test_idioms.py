"""What only one library has: its own way to authenticate, to stream, to send files and to repeat."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from io import BytesIO
from typing import Any

import aiohttp
import httpx
import pytest
import requests
import stamina
import tenacity
import urllib3
from requests.adapters import HTTPAdapter
from requests.auth import HTTPDigestAuth
from urllib3 import encode_multipart_formdata

from client.api import serving
from semel.client import Intent, Journal, Retry, report_of
from semel.client.aiohttp import IdempotentMiddleware
from semel.client.httpx import IdempotentTransport
from semel.client.requests import IdempotentAdapter
from semel.client.urllib3 import IdempotentPoolManager
from semel.errors import KeyReused, Misuse

HOUR = timedelta(hours=1)
FAST = Retry(attempts=4, deadline=20, pause_max=0.02)


def session(journal: Journal | None = None, retry: Retry = FAST) -> requests.Session:
    made = requests.Session()
    made.mount("http://", IdempotentAdapter(HTTPAdapter(), journal=journal, retry=retry))
    return made


@pytest.fixture
def journal() -> Journal:
    return Journal("memory://")


@pytest.mark.parametrize("named", [True, False])
def test_digest_authentication_of_requests_keeps_the_key(journal: Journal, named: bool) -> None:
    with serving("drop", "refuse-digest") as api, session(journal) as http:
        http.auth = HTTPDigestAuth("me", "secret")
        intent = journal.intent("pay:42", max_age=HOUR)
        response = http.post(api.url, headers=intent.headers if named else {})
        assert (response.content, report_of(response).replayed) == (b"paid", True)
        assert (len(api.requests), list(api.effects.values())) == (3, [1])
        assert journal.pending() == ()


@pytest.mark.parametrize("named", [True, False])
def test_digest_authentication_of_aiohttp_keeps_the_key(journal: Journal, named: bool) -> None:
    async def run() -> None:
        middlewares = (
            aiohttp.DigestAuthMiddleware("me", "secret"),
            IdempotentMiddleware(journal=journal, retry=FAST),
        )
        with serving("drop", "refuse-digest") as api:
            intent = journal.intent("pay:42", max_age=HOUR)
            async with (
                aiohttp.ClientSession(middlewares=middlewares) as http,
                http.post(api.url, headers=intent.headers if named else {}) as response,
            ):
                assert (await response.read(), report_of(response).replayed) == (b"paid", True)
            assert (len(api.requests), list(api.effects.values())) == (3, [1])
            assert journal.pending() == ()

    asyncio.run(run())


def test_what_names_an_intent_is_not_sent_by_a_library_without_the_adapter(journal: Journal) -> None:
    async def send(url: str) -> None:
        async with aiohttp.ClientSession() as http:
            await http.post(url, headers=intent.headers)

    intent = journal.intent("pay:42", max_age=HOUR)
    with serving() as api:
        for post in (
            lambda: requests.post(api.url, headers=intent.headers),
            lambda: urllib3.request("POST", api.url, headers=intent.headers),
            lambda: asyncio.run(send(api.url)),
            lambda: httpx.post(api.url, headers=intent.headers),
        ):
            with pytest.raises((ValueError, Misuse)):  # aiohttp looks for control characters itself
                post()
        assert not api.requests


def test_a_mark_that_lost_its_intent_is_refused(journal: Journal) -> None:
    intent = journal.intent("pay:42", max_age=HOUR)
    headers = {name: f"{value} " for name, value in intent.headers.items()}
    with serving() as api, session(journal) as http:
        with pytest.raises(Misuse, match="belongs to an intent of a journal, not to str"):
            http.post(api.url, headers=headers)
        assert not api.requests


def test_two_layers_that_repeat_are_refused() -> None:
    with pytest.raises(Misuse, match="leave max_retries of the HTTPAdapter at 0"):
        IdempotentAdapter(HTTPAdapter(max_retries=3))
    with pytest.raises(Misuse, match="leave retries= out of a POST"):
        IdempotentPoolManager().request("POST", "http://127.0.0.1/", retries=3)


def test_a_long_answer_is_streamed_where_no_journal_keeps_it(journal: Journal) -> None:
    with serving(*["long"] * 4) as api:
        with session() as http, http.post(api.url, stream=True) as response:
            assert response.raw.read(4) == b"long"
            assert not response.raw.isclosed()
        pool = IdempotentPoolManager(retry=FAST)
        streamed = pool.request("POST", api.url, preload_content=False)
        assert streamed.read(4) == b"long"
        intent = journal.intent("pay:42", max_age=HOUR)
        kept = pool.request("POST", api.url, preload_content=False, headers=intent.headers)
        assert len(kept.read()) == 2_000_000

        async def run() -> bytes:
            async with (
                aiohttp.ClientSession(middlewares=[IdempotentMiddleware()]) as http,
                http.post(api.url) as response,
            ):
                return await response.content.readexactly(4)

        assert asyncio.run(run()) == b"long"


def test_forms_with_files_are_sent_again_as_the_same_bytes() -> None:
    async def post(url: str) -> None:
        form = aiohttp.FormData()
        form.add_field("file", b"x" * 10_000, filename="a.bin")
        async with aiohttp.ClientSession(middlewares=[IdempotentMiddleware(retry=FAST)]) as http:
            await http.post(url, data=form)

    posts: list[Callable[[str], object]] = [
        lambda url: session().post(url, files={"file": BytesIO(b"x" * 10_000)}),
        lambda url: IdempotentPoolManager(retry=FAST).request("POST", url, fields={"file": ("a.bin", b"x" * 10_000)}),
        lambda url: asyncio.run(post(url)),
    ]
    for send in posts:
        with serving("drop") as api:
            send(api.url)
            assert len(api.requests) == 2
            assert api.requests[0] == api.requests[1]
            assert len(api.requests[0][2]) > 10_000


def test_a_form_with_files_needs_the_same_boundary_in_each_run(journal: Journal) -> None:
    async def post(url: str, intent: Intent, data: Any, headers: dict[str, str]) -> None:
        async with aiohttp.ClientSession(middlewares=[IdempotentMiddleware()]) as http:
            await http.post(url, data=data, headers=headers | intent.headers)

    file = {"file": ("a.bin", b"x")}
    form, content_type = encode_multipart_formdata(file, boundary="the-same-in-each-run")
    headers, pool = {"Content-Type": content_type}, IdempotentPoolManager()
    http = httpx.Client(transport=IdempotentTransport(httpx.HTTPTransport()))
    fronts: dict[str, tuple[Callable[[str, Intent], object], Callable[[str, Intent], object]]] = {
        "httpx": (
            lambda url, intent: http.post(url, files=file, extensions={"semel": intent}),
            lambda url, intent: http.post(url, files=file, headers=headers, extensions={"semel": intent}),
        ),
        "requests": (
            lambda url, intent: session().post(url, files=file, headers=intent.headers),
            lambda url, intent: session().post(url, data=form, headers=headers | intent.headers),
        ),
        "urllib3": (
            lambda url, intent: pool.request("POST", url, fields=file, headers=intent.headers),
            lambda url, intent: pool.request("POST", url, body=form, headers=headers | intent.headers),
        ),
        "aiohttp": (
            lambda url, intent: asyncio.run(post(url, intent, {"file": BytesIO(b"x")}, {})),
            lambda url, intent: asyncio.run(post(url, intent, form, headers)),
        ),
    }
    with http:
        for name, (drawn, same) in fronts.items():
            with serving() as api:
                drawn(api.url, journal.intent(f"{name}:drawn", max_age=HOUR))
                with pytest.raises(KeyReused, match="the same form with another multipart boundary"):
                    drawn(api.url, journal.intent(f"{name}:drawn", max_age=HOUR))
                for _ in range(2):
                    same(api.url, journal.intent(f"{name}:same", max_age=HOUR))
                assert len(api.requests) == 2


def test_an_answer_of_the_journal_looks_like_one_of_aiohttp(journal: Journal) -> None:
    async def run() -> None:
        with serving("json") as api:
            async with aiohttp.ClientSession(middlewares=[IdempotentMiddleware(journal=journal)]) as http:
                for attempts in (1, 0):
                    intent = journal.intent("pay:42", max_age=HOUR)
                    async with http.post(api.url, headers=intent.headers) as response:
                        assert report_of(response).attempts == attempts
                        assert (response.ok, response.reason, response.content_type) == (
                            True,
                            "Created",
                            "application/json",
                        )
                        assert await response.json() == {"paid": True}
                        assert await response.text() == '{"paid": true}'
            assert len(api.requests) == 1

    asyncio.run(run())


def test_a_response_of_somebody_else_has_no_report() -> None:
    with pytest.raises(Misuse, match=r"no adapter of semel\.client has given this Response"):
        report_of(httpx.Response(200))


@pytest.mark.parametrize("repeater", ["stamina", "tenacity"])
def test_under_a_repeater_an_intent_keeps_the_key_and_one_attempt_does_not_multiply(
    journal: Journal, repeater: str
) -> None:
    transport = IdempotentTransport(httpx.HTTPTransport(), journal=journal, retry=Retry(attempts=1))
    with serving("drop", "drop") as api, httpx.Client(transport=transport) as http:

        def pay() -> bytes:
            with journal.intent("pay:42", max_age=HOUR) as intent:
                return http.post(api.url, extensions={"semel": intent}).content

        if repeater == "stamina":
            again = stamina.retry(on=httpx.TransportError, attempts=5, wait_initial=0.01, wait_max=0.01)(pay)
        else:
            again = tenacity.retry(stop=tenacity.stop_after_attempt(5), retry=tenacity.retry_if_exception_type())(pay)
        assert again() == b"paid"
        assert (len(api.requests), list(api.effects.values())) == (3, [1])


def test_under_a_repeater_without_an_intent_each_repeat_is_an_operation_of_its_own() -> None:
    transport = IdempotentTransport(httpx.HTTPTransport(), retry=Retry(attempts=1))
    with serving("drop") as api, httpx.Client(transport=transport) as http:
        stamina.retry(on=httpx.TransportError, attempts=5, wait_initial=0.01)(http.post)(api.url)
        assert list(api.effects.values()) == [1, 1]
