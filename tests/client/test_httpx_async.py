"""The async transport: the same plan, with `await`."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from client.api import serving
from semel.client import Journal, Retry, report_of
from semel.client.httpx import AsyncIdempotentTransport
from semel.errors import InProgress, Misuse
from waiting import until

pytestmark = pytest.mark.anyio
HOUR = timedelta(hours=1)
FAST = Retry(attempts=4, deadline=10, pause_max=0.02)


def client(journal: Journal | None = None, retry: Retry = FAST, lease: float = 30) -> httpx.AsyncClient:
    transport = AsyncIdempotentTransport(httpx.AsyncHTTPTransport(), journal=journal, retry=retry, lease=lease)
    return httpx.AsyncClient(transport=transport)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(f"sqlite:///{tmp_path}/journal.db")


@pytest.mark.parametrize("trouble", ["drop", "502"])
async def test_a_request_that_took_effect_and_failed_is_sent_again_with_its_key(trouble: str) -> None:
    with serving(trouble, trouble) as api:
        async with client() as http:
            response = await http.post(api.url, json={"amount": 5})
        assert response.content == b"paid"
        report = report_of(response)
        assert (report.attempts, report.replayed) == (3, True)
        assert (list(api.effects.values()), len(set(api.requests))) == ([1], 1)


async def test_tasks_with_one_intent_make_one_request_and_all_get_the_answer(journal: Journal) -> None:
    with serving() as api:
        api.may_answer.clear()
        async with client(journal, lease=1.5) as http:

            async def pay() -> bytes:
                async with journal.intent("pay:42", max_age=HOUR) as intent:
                    return (await http.post(api.url, extensions={"semel": intent}, timeout=30)).content

            tasks = [asyncio.ensure_future(pay()) for _ in range(8)]
            await asyncio.to_thread(until, lambda: api.requests)
            (first,) = journal.pending()
            await asyncio.to_thread(until, lambda: journal.pending()[0].lease_until_ms > first.lease_until_ms + 300)
            async with client(journal, Retry(deadline=0.1)) as other:
                with pytest.raises(InProgress):
                    await other.post(api.url, extensions={"semel": journal.intent("pay:42", max_age=HOUR)})
            api.may_answer.set()
            assert await asyncio.gather(*tasks) == [b"paid"] * 8
        assert len(api.requests) == 1


async def test_a_call_that_is_cancelled_while_the_journal_is_busy_leaves_its_intent(
    journal: Journal, tmp_path: Path
) -> None:
    with serving() as api, closing(sqlite3.connect(tmp_path / "journal.db", isolation_level=None)) as busy:
        async with client(journal) as http:
            busy.execute("BEGIN IMMEDIATE")
            intent = journal.intent("pay:42", max_age=HOUR)
            call = asyncio.ensure_future(http.post(api.url, extensions={"semel": intent}))
            await asyncio.sleep(0.05)  # the thread of the call waits for the file
            call.cancel()
            busy.execute("COMMIT")
            with pytest.raises(asyncio.CancelledError):
                await call
        (left,) = journal.pending()
        assert (left.owner, left.error, api.requests) == ("", "the sender was interrupted", [])


def test_another_event_loop_than_that_of_asyncio_is_refused_before_anything_is_sent() -> None:
    transport = AsyncIdempotentTransport(httpx.AsyncHTTPTransport())
    call = transport.handle_async_request(httpx.Request("POST", "http://127.0.0.1/"))
    with pytest.raises(Misuse, match="nothing was sent: the async adapters need asyncio"):
        call.send(None)


async def test_errors_are_raised_as_httpx_has_them_and_generators_are_refused() -> None:
    with serving(*["drop"] * 4) as api:
        async with client() as http:
            with pytest.raises(httpx.RemoteProtocolError):
                await http.post(api.url)

            async def chunks() -> AsyncIterator[bytes]:
                yield b"a"

            with pytest.raises(Misuse, match="is a generator"):
                await http.post(api.url, content=chunks())
        assert (len(api.requests), list(api.effects.values())) == (4, [1])
