"""A client asks a service how it wants keys, and does as it says: a server of semel, and servers of other kinds."""

import asyncio
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import httpx2
import pytest

from client.protected import protecting
from semel import Policy
from semel.client import Journal, Retry, report_of
from semel.client.discovery import adiscover, discover
from semel.client.httpx import IdempotentTransport
from semel.core.dialects import KeyFormat, KeyQuoting
from semel.core.discovery import DiscoveredKeys
from semel.errors import NotDiscovered

WELL_KNOWN = "/.well-known/idempotency"
GOOD = json.dumps(
    {"headers": ["Idempotency-Key"], "key": {"format": "uuid", "max_length": 36}, "retention_seconds": 86_400}
).encode()
Page = tuple[int, dict[str, str], bytes]


def by_httpx(url: str) -> DiscoveredKeys:
    with httpx.Client(headers={"authorization": "Bearer secret"}, follow_redirects=True) as client:
        return discover(client, url)


def by_httpx2(url: str) -> DiscoveredKeys:
    with httpx2.Client() as client:
        return discover(client, url)


def by_async_httpx(url: str) -> DiscoveredKeys:
    async def asked() -> DiscoveredKeys:
        async with httpx.AsyncClient(follow_redirects=True) as client:
            return await adiscover(client, url)

    return asyncio.run(asked())


def by_async_httpx2(url: str) -> DiscoveredKeys:
    async def asked() -> DiscoveredKeys:
        async with httpx2.AsyncClient() as client:
            return await adiscover(client, url)

    return asyncio.run(asked())


Ask = Callable[[str], DiscoveredKeys]
every_client = pytest.mark.parametrize("ask", [by_httpx, by_httpx2, by_async_httpx, by_async_httpx2])


class Pages:
    """A server of pages, which keeps what it was asked."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.url = ""


@contextmanager
def serving_pages() -> Iterator[Pages]:
    pages = Pages()

    class PageHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            pages.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            status, headers, body = pages.pages.get(self.path, (404, {}, b""))
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                self.wfile.write(body)
            except ConnectionError:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), PageHandler)
    pages.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield pages
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@every_client
def test_a_server_of_semel_says_how_it_wants_keys(ask: Ask) -> None:
    policy = Policy(headers=("Order-Key",), key_format="ulid", retention=timedelta(hours=48))
    with protecting(policy) as shop:
        found = ask(shop.url)
    assert (found.dialect.header, found.dialect.quoting) == ("Order-Key", KeyQuoting.BARE)
    assert (found.dialect.format, found.dialect.key_max) == (KeyFormat.ULID, 255)
    assert found.max_age == timedelta(hours=46)


@pytest.mark.parametrize("policy", [Policy(), Policy.draft07(), Policy(key_format="uuid", headers=("Order-Key",))])
def test_what_was_discovered_protects(policy: Policy) -> None:
    journal = Journal("memory://")
    with protecting(policy) as shop:
        found = by_httpx(shop.url)
        transport = IdempotentTransport(
            httpx.HTTPTransport(), journal=journal, dialect=found.dialect, retry=Retry(attempts=3, pause_max=0.02)
        )
        shop.lost_answers += [502, 502]
        with httpx.Client(transport=transport) as client:
            intent = journal.intent("pay:1", max_age=found.max_age)
            answer = client.post(f"{shop.url}/v1/charges", content=b"amount=5", extensions={"semel": intent})
        assert answer.json()["id"] == "ch_1"
        assert report_of(answer).attempts == 3
        assert report_of(answer).replayed
        assert shop.effects == {b"amount=5": 1}


@every_client
def test_redirects_are_followed_within_the_origin_only(ask: Ask) -> None:
    with serving_pages() as pages, serving_pages() as elsewhere:
        elsewhere.pages[WELL_KNOWN] = (200, {"content-type": "application/json"}, GOOD)
        pages.pages["/docs"] = (200, {"content-type": "application/json"}, GOOD)
        pages.pages[WELL_KNOWN] = (307, {"location": "/docs"}, b"")
        assert ask(pages.url).dialect.source == f"{pages.url}/docs"
        pages.pages[WELL_KNOWN] = (307, {"location": f"{elsewhere.url}{WELL_KNOWN}"}, b"")
        with pytest.raises(NotDiscovered, match="redirects to another origin"):
            ask(pages.url)
        assert elsewhere.asked == [], "no credentials go there"


@every_client
@pytest.mark.parametrize(
    ("page", "says"),
    [
        ((200, {"content-type": "application/json"}, b"{}"), "missing required field"),
        ((200, {"content-type": "application/json"}, b"\0" * 100_000), "longer than 65536 bytes"),
        (
            (200, {"content-type": "application/json", "content-encoding": "gzip"}, gzip.compress(b" " * 10_000_000)),
            "does not say how keys are sent",
        ),
        ((200, {"content-type": "text/html"}, b"<html>"), "is no JSON document"),
        ((500, {}, b"boom"), "answers 500"),
        ((404, {}, b""), "answers 404"),
        ((302, {}, b""), "redirects more than 3 times"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_garbage_is_refused(ask: Ask, page: Page, says: str) -> None:
    with serving_pages() as pages:
        pages.pages[WELL_KNOWN] = page
        with pytest.raises(NotDiscovered, match=says):
            ask(pages.url)
        assert pages.asked[0][1]["accept-encoding"] == "identity", "nothing that swells is asked for"


def test_a_service_that_cannot_be_reached_is_an_error_of_the_client() -> None:
    with serving_pages() as pages:
        url = pages.url
    with pytest.raises(httpx.ConnectError):
        by_httpx(url)
