"""Conditional requests (RFC 9110, section 13): do it only if the resource is still what the caller has seen.

The middleware replays before any precondition is looked at, so a retried `PUT` that succeeded gets its first answer
and not a false 412.

The forms for threads and for tasks differ only in `await`, and stand side by side.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate, parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Protocol

from semel.core.http import Response

TAG = re.compile(r'\s*(W/)?"([\x21\x23-\x7e\x80-\xff]*)"\s*(?:,|$)|\s*,')
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)?")
Headers = Sequence[tuple[bytes, bytes]]


class Malformed(ValueError):
    """A precondition that cannot be read. It is a 400: to ignore it would be to act where the caller said not to."""


@dataclass(frozen=True, slots=True)
class ETag:
    """An entity tag. Two strong ones are the same bytes; weak ones only mean the same."""

    value: str
    weak: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\x21\x23-\x7e\x80-\xff]*", self.value):
            raise ValueError(f"{self.value!r} cannot stand in an ETag: no blanks, quotes or control characters")

    @classmethod
    def of(cls, content: bytes) -> ETag:
        """The strong tag of these bytes: a digest."""
        return cls(hashlib.sha256(content).hexdigest()[:32])

    @classmethod
    def version(cls, number: int) -> ETag:
        """The strong tag of a row with this version number."""
        return cls(f"v{number}")

    def __str__(self) -> str:
        return f'{"W/" if self.weak else ""}"{self.value}"'

    def is_strongly(self, other: ETag) -> bool:
        """Whether both are strong and equal: the same bytes."""
        return not self.weak and not other.weak and self.value == other.value

    def is_weakly(self, other: ETag) -> bool:
        """Whether both mean the same, strong or weak."""
        return self.value == other.value


def refusal(
    method: str, headers: Headers, current: ETag | None, *, modified: datetime | None = None, required: bool = False
) -> int | None:
    """The status that the preconditions demand instead of the method: 304, 412 or 428; None when the method may
    proceed.

    `current` is the tag of what is there now, None when nothing is. With `required`, an unsafe method must carry
    `If-Match` or `If-None-Match`, so that no caller overwrites a version that it has not seen.
    """
    given = {name.lower(): value.decode("latin-1") for name, value in _joined(headers).items()}
    safe = method in ("GET", "HEAD")
    if required and not safe and not ({b"if-match", b"if-none-match"} & given.keys()):
        return 428
    if b"if-match" in given:
        if not _any(given[b"if-match"], current, weakly=False):
            return 412
    elif b"if-unmodified-since" in given and modified is not None:
        since = _date(given[b"if-unmodified-since"])
        if since is not None and _seconds(modified) > since:
            return 412
    if b"if-none-match" in given:
        if _any(given[b"if-none-match"], current, weakly=True):
            return 304 if safe else 412
    elif safe and b"if-modified-since" in given and modified is not None:
        since = _date(given[b"if-modified-since"])
        if since is not None and _seconds(modified) <= since:
            return 304
    return None


ADVICE = {
    400: "Send quoted entity tags separated by commas, or *.",
    412: "It has changed since you have seen it. Read it again before you decide.",
    428: "Send If-Match with the tag of what you have seen, or If-None-Match: * to create it.",
}


def response(
    method: str, headers: Headers, current: ETag | None, *, modified: datetime | None = None, required: bool = False
) -> Response | None:
    """The answer that the preconditions demand instead of the method's, ready to be sent; None when it may proceed.

    Takes what `refusal` takes. A 304 carries the validators, 412 and 428 are problems, and so is the 400 for a
    precondition that cannot be read.
    """
    try:
        status = refusal(method, headers, current, modified=modified, required=required)
    except Malformed:
        status = 400
    if status is None:
        return None
    if status == 304:
        shown = [(b"etag", str(current).encode("latin-1"))] if current is not None else []
        if modified is not None:
            shown.append((b"last-modified", formatdate(_seconds(modified), usegmt=True).encode()))
        return Response(status, tuple(shown), b"")
    title = HTTPStatus(status).phrase
    problem = {"type": "about:blank", "title": title, "status": status, "detail": ADVICE[status]}
    body = json.dumps(problem).encode()
    length = str(len(body)).encode()
    kind = (b"content-type", b"application/problem+json")
    return Response(status, (kind, (b"content-length", length), (b"cache-control", b"no-store")), body)


def tags(value: str) -> list[ETag]:
    """The tags of an `If-Match` or `If-None-Match` list."""
    found, at = [], 0
    while at < len(value):
        tag = TAG.match(value, at)
        if tag is None:
            raise Malformed(f"expected quoted entity tags separated by commas, not {value[:80]!r}")
        if tag[2] is not None:
            found.append(ETag(tag[2], weak=tag[1] is not None))
        at = tag.end()
    return found


def _any(value: str, current: ETag | None, *, weakly: bool) -> bool:
    if value.strip() == "*":
        return current is not None
    wanted = tags(value)
    if current is None:
        return False
    return any(tag.is_weakly(current) if weakly else tag.is_strongly(current) for tag in wanted)


def _joined(headers: Headers) -> dict[bytes, bytes]:
    joined: dict[bytes, bytes] = {}
    for name, value in headers:
        key = name.lower()
        joined[key] = joined[key] + b", " + value if key in joined else value
    return joined


def _date(value: str) -> int | None:
    """Seconds since 1970, or None for what is not a date: the RFC says to ignore that."""
    try:
        return _seconds(parsedate_to_datetime(value))
    except (ValueError, ArithmeticError, LookupError, TypeError):  # the parser's own ways to fail on hostile dates
        return None


def _seconds(moment: datetime) -> int:
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


class Cursor(Protocol):
    """What `execute` of a DB-API connection gives."""

    @property
    def rowcount(self) -> int:
        """How many rows the statement changed."""
        ...


class Executes(Protocol):
    """A DB-API connection or cursor whose `execute` gives a cursor (sqlite3, psycopg)."""

    def execute(self, sql: str, params: Any, /) -> Any:
        """Run one statement."""
        ...


class AsyncExecutes(Protocol):
    """The same for tasks: a connection of aiosqlite, psycopg or asyncpg."""

    async def execute(self, sql: str, /, *params: Any) -> Any: ...


def update_if(
    connection: Executes,
    table: str,
    *,
    where: Mapping[str, object],
    version: int,
    values: Mapping[str, object],
    version_column: str = "version",
    placeholder: str = "?",
) -> int | None:
    """Compare and set: `UPDATE … WHERE … AND version = ?` in one statement.

    Returns the new version, or None when another writer was faster.

    Names are checked, values are bound. `placeholder` is `?` for sqlite3 and `%s` for psycopg.
    """
    sql, params = _compare_and_set(table, where, version, values, version_column, placeholder)
    cursor: Cursor = connection.execute(sql, params)
    return version + 1 if cursor.rowcount == 1 else None


async def aupdate_if(
    connection: AsyncExecutes,
    table: str,
    *,
    where: Mapping[str, object],
    version: int,
    values: Mapping[str, object],
    version_column: str = "version",
    placeholder: str = "?",
) -> int | None:
    """The same for tasks. `placeholder` is `?` for aiosqlite, `%s` for psycopg and `$` for asyncpg."""
    sql, params = _compare_and_set(table, where, version, values, version_column, placeholder)
    if placeholder == "$":  # asyncpg takes the values one by one, and answers with the command's tag
        changed = int((await connection.execute(sql, *params)).rpartition(" ")[2])
    else:
        changed = (await connection.execute(sql, params)).rowcount
    return version + 1 if changed == 1 else None


def _compare_and_set(
    table: str,
    where: Mapping[str, object],
    version: int,
    values: Mapping[str, object],
    version_column: str,
    placeholder: str,
) -> tuple[str, tuple[object, ...]]:
    for name in (table, version_column, *where, *values):
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a plain SQL name")
    if not where:
        raise ValueError("where must name the row")
    params = (*values.values(), *where.values(), version)
    marks = (f"${number}" if placeholder == "$" else placeholder for number in range(1, len(params) + 1))
    sets = ", ".join([*(f"{name} = {next(marks)}" for name in values), f"{version_column} = {version_column} + 1"])
    tests = " AND ".join(f"{name} = {next(marks)}" for name in (*where, version_column))
    return f"UPDATE {table} SET {sets} WHERE {tests}", params  # noqa: S608
