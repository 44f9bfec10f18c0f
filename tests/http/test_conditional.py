"""Conditional requests: the table of RFC 9110, section 13.2.2, row by row, and compare-and-set on a real database."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import httpx
import psycopg
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from semel.asgi import IdempotencyMiddleware
from semel.conditional import ETag, Malformed, aupdate_if, refusal, response, tags, update_if

V1, V2 = ETag.version(1), ETag.version(2)
NOON = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)


def sent(**headers: str) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]


@pytest.mark.parametrize(
    ("method", "headers", "current", "status"),
    [
        ("PUT", {}, V1, None),
        ("PUT", {"If_Match": '"v1"'}, V1, None),
        ("PUT", {"If_Match": '"v1"'}, V2, 412),
        ("PUT", {"If_Match": '"v1"'}, None, 412),
        ("PUT", {"If_Match": '"v0", "v1"'}, V1, None),
        ("PUT", {"If_Match": 'W/"v1"'}, V1, 412),  # If-Match compares strongly
        ("PUT", {"If_Match": '"v1"'}, ETag("v1", weak=True), 412),
        ("PUT", {"If_Match": "*"}, V1, None),
        ("PUT", {"If_Match": "*"}, None, 412),
        ("PUT", {"If_None_Match": "*"}, None, None),
        ("PUT", {"If_None_Match": "*"}, V1, 412),
        ("PUT", {"If_None_Match": '"v1"'}, V1, 412),
        ("PUT", {"If_None_Match": '"v2"'}, V1, None),
        ("GET", {"If_None_Match": '"v1"'}, V1, 304),
        ("HEAD", {"If_None_Match": 'W/"v1"'}, V1, 304),  # If-None-Match compares weakly
        ("GET", {"If_None_Match": '"v2" , W/"v3"'}, V1, None),
        ("GET", {"If_Match": '"v2"', "If_None_Match": '"v1"'}, V1, 412),  # If-Match is looked at first
        ("GET", {"If_Match": '"v1"', "If_None_Match": '"v1"'}, V1, 304),
    ],
)
def test_entity_tags(method: str, headers: dict[str, str], current: ETag | None, status: int | None) -> None:
    assert refusal(method, sent(**headers), current) == status


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("PUT", {"If_Unmodified_Since": NOON}, None),
        ("PUT", {"If_Unmodified_Since": NOON - timedelta(seconds=1)}, 412),
        ("GET", {"If_Modified_Since": NOON}, 304),
        ("GET", {"If_Modified_Since": NOON - timedelta(seconds=1)}, None),
        ("PUT", {"If_Modified_Since": NOON}, None),  # only for GET and HEAD
    ],
)
def test_dates(method: str, headers: dict[str, datetime], status: int | None) -> None:
    given = {name: format_datetime(value, usegmt=True) for name, value in headers.items()}
    assert refusal(method, sent(**given), V1, modified=NOON) == status
    assert refusal(method, sent(**given), V1) is None, "without a modification date there is nothing to compare"


def test_tags_go_before_dates() -> None:
    old = format_datetime(NOON - timedelta(days=1), usegmt=True)
    assert refusal("PUT", sent(If_Match='"v1"', If_Unmodified_Since=old), V1, modified=NOON) is None
    assert (
        refusal(
            "GET", sent(If_None_Match='"v2"', If_Modified_Since=format_datetime(NOON, usegmt=True)), V1, modified=NOON
        )
        is None
    )


@pytest.mark.parametrize("name", ["If_Unmodified_Since", "If_Modified_Since"])
def test_a_date_that_is_none_is_ignored(name: str) -> None:
    assert refusal("GET", sent(**{name: "yesterday"}), V1, modified=NOON) is None


def test_a_required_precondition_is_asked_for_on_unsafe_methods_only() -> None:
    assert refusal("PUT", [], V1, required=True) == 428
    assert refusal("GET", [], V1, required=True) is None
    assert refusal("PUT", sent(If_Match='"v1"'), V1, required=True) is None


def test_repeated_lines_are_one_list() -> None:
    headers = [(b"if-match", b'"v1"'), (b"If-Match", b'"v2"')]
    assert refusal("PUT", headers, V2) is None


@pytest.mark.parametrize("value", ["v1", '"v1', '"a b"', 'w/"v1"', '"v1" "v2"', "'v1'"])
def test_a_malformed_precondition_is_an_error_and_never_ignored(value: str) -> None:
    with pytest.raises(Malformed):
        refusal("PUT", sent(If_Match=value), V1)


@pytest.mark.parametrize(
    ("method", "given", "options", "status"),
    [
        ("GET", {"If_None_Match": '"v1"'}, {}, 304),
        ("PUT", {"If_Match": '"v2"'}, {}, 412),
        ("PUT", {}, {"required": True}, 428),
        ("PUT", {"If_Match": "v1"}, {}, 400),
        ("PUT", {"If_Match": '"v1"'}, {"required": True}, None),
    ],
)
def test_the_response(method: str, given: dict[str, str], options: dict[str, Any], status: int | None) -> None:
    answer = response(method, sent(**given), V1, modified=NOON, **options)
    assert (answer and answer.status) == status
    if answer is None:
        return
    headers = dict(answer.headers)
    if status == 304:
        validators = {b"etag": b'"v1"', b"last-modified": b"Sun, 15 Nov 2026 12:00:00 GMT"}
        assert (headers, answer.body) == (validators, b"")
    else:
        assert headers[b"content-type"] == b"application/problem+json"
        assert headers[b"content-length"] == str(len(answer.body)).encode()
        problem = json.loads(answer.body)
        assert (problem["status"], problem["type"]) == (status, "about:blank")
        assert problem["detail"]


def test_lists_may_have_empty_members() -> None:
    assert tags('"a",, W/"b" ,') == [ETag("a"), ETag("b", weak=True)]


def test_tags_are_written_as_they_are_read() -> None:
    assert str(ETag.version(3)) == '"v3"'
    assert tags(str(ETag("x", weak=True))) == [ETag("x", weak=True)]
    assert ETag.of(b"one") != ETag.of(b"two")
    with pytest.raises(ValueError, match="cannot stand in an ETag"):
        ETag('a"b')


def test_update_if_writes_once_for_one_version() -> None:
    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    connection.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER, version INTEGER)")
    connection.execute("INSERT INTO account VALUES (1, 100, 1)")
    replies: list[int | None] = []
    lock = threading.Lock()

    def withdraw() -> None:
        with lock:  # one connection; the race is between versions, not between threads of sqlite3
            replies.append(update_if(connection, "account", where={"id": 1}, version=1, values={"balance": 90}))

    threads = [threading.Thread(target=withdraw) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(replies, key=str) == [2, *[None] * 7]
    assert connection.execute("SELECT balance, version FROM account").fetchall() == [(90, 2)]


async def by_aiosqlite(url: str, folder: Path) -> Any:
    return await aiosqlite.connect(folder / "accounts.db", isolation_level=None, timeout=20)


async def by_psycopg(url: str, folder: Path) -> Any:
    return await psycopg.AsyncConnection.connect(url, autocommit=True)


async def by_asyncpg(url: str, folder: Path) -> Any:
    return await asyncpg.connect(url)


@pytest.mark.parametrize(("connect", "placeholder"), [(by_aiosqlite, "?"), (by_psycopg, "%s"), (by_asyncpg, "$")])
def test_tasks_write_once_for_one_version(connect: Any, placeholder: str, postgres_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        connections = [await connect(postgres_url, tmp_path) for _ in range(4)]
        first = connections[0]
        await first.execute("DROP TABLE IF EXISTS account")
        await first.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER, version INTEGER)")
        await first.execute("INSERT INTO account VALUES (1, 100, 1), (2, 100, 1)")
        named: dict[str, Any] = {"where": {"id": 1}, "values": {"balance": 90}, "placeholder": placeholder}
        replies = await asyncio.gather(*(aupdate_if(each, "account", version=1, **named) for each in connections))
        assert sorted(replies, key=str) == [2, None, None, None]
        assert await aupdate_if(first, "account", version=2, **named) == 3
        for each in connections:
            await each.close()

    asyncio.run(main())


@pytest.mark.parametrize("name", ["account; DROP TABLE account", "a b", "", "1a"])
def test_update_if_takes_plain_names_only(name: str) -> None:
    connection = sqlite3.connect(":memory:")
    with pytest.raises(ValueError, match="not a plain SQL name"):
        update_if(connection, name, where={"id": 1}, version=1, values={})
    with pytest.raises(ValueError, match="where must name the row"):
        update_if(connection, "account", where={}, version=1, values={})


def test_a_retried_put_whose_answer_was_lost_is_replayed_and_not_refused() -> None:
    """Without a key, the retry of a PUT that succeeded finds a newer version than the caller's: a false 412."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.execute("CREATE TABLE page (id INTEGER PRIMARY KEY, text TEXT, version INTEGER)")
    database.execute("INSERT INTO page VALUES (1, 'old', 1)")

    async def put(request: Request) -> Response:
        [version] = database.execute("SELECT version FROM page").fetchone()
        if (status := refusal("PUT", request.headers.raw, ETag.version(version))) is not None:
            return Response(status_code=status)
        text = (await request.body()).decode()
        new = update_if(database, "page", where={"id": 1}, version=version, values={"text": text})
        return Response(status_code=412) if new is None else Response(headers={"etag": str(ETag.version(new))})

    app: Any = Starlette(routes=[Route("/page", put, methods=["PUT"])])
    app = IdempotencyMiddleware(app, store="memory://", identify=lambda scope: "me")

    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:

            async def send(**more: str) -> httpx.Response:
                return await client.put("/page", content=b"new", headers={"if-match": '"v1"', **more})

            first = await send(**{"idempotency-key": "edit-1"})
            assert (first.status_code, first.headers["etag"]) == (200, '"v2"')
            retried = await send(**{"idempotency-key": "edit-1"})
            assert (retried.status_code, retried.headers["etag"]) == (200, '"v2"')
            assert retried.headers["idempotent-replayed"] == "true"
            assert (await send()).status_code == 412, "without the key the false alarm is what happens"

    asyncio.run(main())
    assert database.execute("SELECT text, version FROM page").fetchall() == [("new", 2)]
