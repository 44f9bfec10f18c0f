"""Stored keys by the million, written past the store in bulk, in the form that the store itself writes."""

from __future__ import annotations

import hashlib
import sqlite3
import time
from pathlib import Path

import psycopg
import redis

from benchmarks.calls import ANSWER, FINGERPRINT, RETENTION_MS, SCOPE, TENANT
from semel import Key
from semel.stores.redis import layout

COLUMNS = (
    "(tenant, scope, name, fingerprint, state, owner, attempt, created_ms, lease_until_ms, expires_ms, completed_ms, "
    "format, payload)"
)
AT_ONCE = 20_000
OWNER = "x" * 22


def filled(number: int) -> Key:
    """The key of the record with this number."""
    return Key(TENANT, SCOPE, hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest())


def fill(store: str, url: str, first: int, last: int, *, expired: bool = False) -> None:
    """Add the records `first` to `last` (exclusive), finished just now, or long past retention."""
    now_ms = int(time.time() * 1000) - (10 * RETENTION_MS if expired else 0)
    match store:
        case "sqlite":
            fill_sqlite(Path(url.removeprefix("sqlite:///")), first, last, now_ms)
        case "postgres":
            fill_postgres(url, first, last, now_ms)
        case "redis":
            fill_redis(url, first, last, now_ms)
        case _:
            raise ValueError(f"{store} is not filled in bulk")


def fill_sqlite(path: Path, first: int, last: int, now_ms: int) -> None:
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    times = (1, now_ms, now_ms, now_ms + RETENTION_MS, now_ms)
    for begin in range(first, last, AT_ONCE):
        rows = [
            (*_parts(filled(number)), FINGERPRINT, 1, OWNER, *times, ANSWER.format, ANSWER.payload)
            for number in range(begin, min(last, begin + AT_ONCE))
        ]
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(f"INSERT INTO semel_records {COLUMNS} VALUES ({', '.join('?' * 13)})", rows)
        connection.execute("COMMIT")
    connection.close()


def fill_postgres(url: str, first: int, last: int, now_ms: int) -> None:
    statement = f"""INSERT INTO semel_records {COLUMNS}
        SELECT %s, %s, md5(n::text), %s, 1, %s, 1, %s, %s, %s, %s, %s, %s
        FROM generate_series(%s::bigint, %s::bigint) n"""
    times = (now_ms, now_ms, now_ms + RETENTION_MS, now_ms)
    with psycopg.connect(url, autocommit=True) as connection:
        given = (TENANT, SCOPE, FINGERPRINT, OWNER, *times, ANSWER.format, ANSWER.payload, first, last - 1)
        connection.execute(statement, given)


def fill_redis(url: str, first: int, last: int, now_ms: int) -> None:
    times = (now_ms.to_bytes(6), now_ms.to_bytes(6), (now_ms + RETENTION_MS).to_bytes(6), bytes(5))
    end = OWNER.encode() + FINGERPRINT.encode() + layout.answer(ANSWER)
    with redis.Redis.from_url(url) as client:
        for begin in range(first, last, AT_ONCE):
            pipeline = client.pipeline(transaction=False)
            for number in range(begin, min(last, begin + AT_ONCE)):
                framed = layout.frame(filled(number))
                sizes = (len(framed), len(OWNER), len(FINGERPRINT))
                head = layout.HEAD.pack(layout.VERSION, layout.SUCCEEDED, 1, *times, *sizes)
                pipeline.set(layout.name_of(b"semel", framed), head + framed + end, px=RETENTION_MS)
            pipeline.execute()


def _parts(key: Key) -> tuple[str, str, str]:
    return key.tenant, key.scope, key.name
