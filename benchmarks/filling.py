"""Stored keys by the million, written past the store in bulk, in the form that the store itself writes."""

from __future__ import annotations

import hashlib
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

import psycopg
import redis

from benchmarks.calls import ANSWER, FINGERPRINT, RETENTION_MS, SCOPE, TENANT
from benchmarks.places import path_of
from semel import Key
from semel.stores.redis import layout
from semel.stores.sql.digests import SIZE, TENANT_SIZE, number_of, tenant_of
from semel.stores.sql.rows import SHORT_FORMATS

COLUMNS = (
    "(digest, tenant, scope, name, fingerprint, state, owner, attempt, created_ms, lease_until_ms, expires_ms, "
    "format, payload)"
)
AT_ONCE, SORTED_AT_ONCE = 20_000, 250_000
OWNER = "x" * 22


def filled(number: int) -> Key:
    """The key of the record with this number."""
    return Key(TENANT, SCOPE, hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest())


def fill(store: str, url: str, first: int, last: int, *, expired: bool = False) -> None:
    """Add the records `first` to `last` (exclusive), finished just now, or long past retention.

    When it returns, the store has put them where they belong: nobody measures the end of the filling.
    """
    now_ms = int(time.time() * 1000) - (10 * RETENTION_MS if expired else 0)
    match store:
        case "sqlite":
            fill_sqlite(path_of(url), first, last, now_ms)
        case "postgres":
            fill_postgres(url, first, last, now_ms)
        case "redis":
            fill_redis(url, first, last, now_ms)
        case _:
            raise ValueError(f"{store} is not filled in bulk")


def fill_sqlite(path: Path, first: int, last: int, now_ms: int) -> None:
    """In large batches, each in the order of the index: its pages are then written once for each batch, not row."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    connection.execute("PRAGMA synchronous = off")
    connection.execute("PRAGMA cache_size = -400000")
    nth = "(SELECT count(*) FROM semel_records WHERE digest = ?)"
    into = f"INSERT INTO semel_records (nth, {COLUMNS[1:]} VALUES ({nth}, {', '.join('?' * 13)})"
    times = (1, now_ms, now_ms, now_ms + RETENTION_MS)
    end = (FINGERPRINT, 1, OWNER, *times, SHORT_FORMATS[ANSWER.format], ANSWER.payload)
    for begin in range(first, last, SORTED_AT_ONCE):
        keys = map(filled, range(begin, min(last, begin + SORTED_AT_ONCE)))
        rows = ((digest, digest, TENANT, SCOPE, name, *end) for digest, name in sorted(map(found_by, keys)))
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(into, rows)
        connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def found_by(key: Key) -> tuple[int, str]:
    return number_of(key), key.name


def fill_postgres(url: str, first: int, last: int, now_ms: int) -> None:
    """Finished one after the other, a millisecond apart: equal times would make the index of them a third as large."""
    statement = f"""INSERT INTO semel_records {COLUMNS}
        SELECT %s || substr(sha256(%s || md5(n::text)::bytea), 1, %s), %s, %s, md5(n::text), %s, 1, %s, 1,
            n + %s::bigint, n + %s::bigint, n + %s::bigint, %s, %s
        FROM generate_series(%s::bigint, %s::bigint) n"""
    times = (now_ms - last, now_ms - last, now_ms - last + RETENTION_MS)
    with psycopg.connect(url, autocommit=True) as connection:
        digested = (tenant_of(TENANT), f"{TENANT}\0{SCOPE}\0".encode(), SIZE - TENANT_SIZE)
        record = (TENANT, SCOPE, FINGERPRINT, OWNER, *times, ANSWER.format, ANSWER.payload)
        given = (*digested, *record, first, last - 1)
        connection.execute(statement, given)
        connection.execute("SELECT count(format) FROM semel_records")  # whoever reads a new row first marks it as seen
        with suppress(psycopg.errors.InsufficientPrivilege):
            connection.execute("CHECKPOINT")


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
                name, value = layout.name_of(b"semel", framed), head + framed + end
                pipeline.execute_command("SET", name, value, "PX", RETENTION_MS)
            pipeline.execute()
        while client.info("persistence")["aof_rewrite_in_progress"]:
            time.sleep(0.05)
