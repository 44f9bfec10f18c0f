"""What the store asks SQLite, as scripts for lists of calls. Each asks call by call: here only the commit is expensive.

The scripts that write must run inside `BEGIN IMMEDIATE`: after a plain `BEGIN`, a transaction that has read fails at
once when another process has written. Times come from outside, because SQLite has no clock of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from semel.core import model
from semel.core.attempts import CountAttempt
from semel.core.effects import Claim, Complete, Effect, Read, Release, Remove, Renew, Resolve, do
from semel.core.records import Acquired, Claimed, Key, Lease, Occupied, Record, Result
from semel.stores.sql.digests import number_of
from semel.stores.sql.rows import CODES, COLUMNS, SHORT_FORMATS, to_record
from semel.stores.sql.statements import Script, Statement
from semel.stores.sqlite.attempts import count_attempt, purge_attempts

C = TypeVar("C")
R = TypeVar("R")


class Look(Effect["Claimed | None"], frozen=True):
    """Answer a claim without writing, or None when it may be granted. So a replay never waits for the write lock."""

    claim: Claim


def look_first(call: Effect[Any]) -> Effect[Any] | None:
    return Look(call) if isinstance(call, Claim) else None


class Purge(Effect[int], frozen=True):
    limit: int


KEY = "digest = :digest AND tenant = :tenant AND scope = :scope AND name = :name"
# A finished record has no lease, one in progress no refusal; each kind is asked for by its own index.
LAPSED_PAST_RETENTION = "(expires_ms <= :now AND lease_until_ms <= :now)"
FINISHED_PAST_RETENTION = "(expires_ms <= :now AND expires_ms + refuse_ms <= :now)"
PAST_RETENTION = f"({FINISHED_PAST_RETENTION} AND lease_until_ms <= :now)"
HELD = f"{KEY} AND owner = :owner AND state = 0"
UNKNOWN = f"{KEY} AND attempt = :attempt AND owner = :owner AND state = 0 AND lease_until_ms <= :now"
FINISH = """UPDATE semel_records SET
    state = :state, lease_until_ms = :now, expires_ms = :now + :retention,
    format = :format, payload = :payload, refuse_ms = :refuse"""

SELECT = f"SELECT {', '.join(COLUMNS)} FROM semel_records"
READ = f"{SELECT} WHERE {KEY} AND NOT {PAST_RETENTION}"
TOGETHER_MAX = 64
DIGESTS = tuple(f"digest_{number}" for number in range(TOGETHER_MAX))
READ_SEVERAL = {  # for each power of two
    size: f"{SELECT} WHERE digest IN (:{', :'.join(DIGESTS[:size])}) AND NOT {PAST_RETENTION}"
    for size in (1 << power for power in range(TOGETHER_MAX.bit_length()))
}
INTO = """INSERT INTO semel_records
        (digest, tenant, scope, name, fingerprint, state, owner, attempt, created_ms, lease_until_ms, expires_ms,
        nth)"""
FIRST = ":digest, :tenant, :scope, :name, :fingerprint, 0, :owner, 1, :now, :now + :lease, :now + :retention"
NTH = "(SELECT coalesce(max(nth) + 1, 0) FROM semel_records WHERE digest = :digest)"
CLAIM = f"""{INTO} SELECT {FIRST}, {NTH} WHERE NOT EXISTS (SELECT 1 FROM semel_records WHERE {KEY})
    RETURNING attempt, lease_until_ms"""
TAKE = f"""UPDATE semel_records SET
        attempt = CASE WHEN {PAST_RETENTION} THEN 1 ELSE attempt + 1 END,
        created_ms = CASE WHEN {PAST_RETENTION} THEN :now ELSE created_ms END,
        fingerprint = :fingerprint, state = 0, owner = :owner,
        lease_until_ms = :now + :lease, expires_ms = :now + :retention,
        format = NULL, payload = NULL, refuse_ms = 0
    WHERE {KEY} AND ({PAST_RETENTION}
        OR (:takeover AND state = 0 AND lease_until_ms <= :now AND fingerprint = :fingerprint AND owner <> :owner))
    RETURNING attempt, lease_until_ms"""
RENEW = f"UPDATE semel_records SET lease_until_ms = :now + :lease WHERE {HELD} RETURNING attempt, lease_until_ms"
COMPLETE = f"{FINISH} WHERE {HELD} RETURNING 1"
COMPLETED_BEFORE = f"SELECT 1 FROM semel_records WHERE {KEY} AND owner = :owner AND state IN (1, 2)"
RELEASE_FIRST = f"DELETE FROM semel_records WHERE {HELD} AND attempt = 1 RETURNING 1"
RELEASE_LATER = f"UPDATE semel_records SET owner = '', lease_until_ms = :now WHERE {HELD} RETURNING 1"
RESOLVE = f"{FINISH}, owner = '' WHERE {UNKNOWN} RETURNING 1"
RESOLVE_UNDONE = f"DELETE FROM semel_records WHERE {UNKNOWN} RETURNING 1"
COMPLETED = "CASE WHEN state <> 0 THEN lease_until_ms END"
SEEN = f"{KEY} AND owner = :owner AND attempt = :attempt AND created_ms = :created AND {COMPLETED} IS :completed"
REMOVE = f"DELETE FROM semel_records WHERE {SEEN} AND lease_until_ms <= :now RETURNING 1"
EXPIRE = f"UPDATE semel_records SET expires_ms = min(expires_ms, :now) WHERE {SEEN} AND state <> 0 RETURNING 1"
EMPTY = "UPDATE semel_records SET format = NULL, payload = NULL, expires_ms = expires_ms + refuse_ms, refuse_ms = 0"
PURGES = tuple(  # one for each index, and one for the results of keys that are only refused
    f"""{change} WHERE rowid IN (SELECT rowid FROM semel_records WHERE {which} LIMIT :limit) RETURNING 1"""
    for change, which in (
        ("DELETE FROM semel_records", f"state <> 0 AND {FINISHED_PAST_RETENTION}"),
        ("DELETE FROM semel_records", f"state = 0 AND {LAPSED_PAST_RETENTION}"),
        (EMPTY, "state <> 0 AND expires_ms <= :now AND refuse_ms > 0"),
    )
)
HOLDS = f"SELECT 1 FROM semel_records WHERE {HELD}"


def named(key: Key, **others: object) -> dict[str, object]:
    """What fills `KEY`."""
    return {"digest": number_of(key), "tenant": key.tenant, "scope": key.scope, "name": key.name, **others}


def read_several(keys: Sequence[Key], now_ms: int) -> Iterator[tuple[str, dict[str, int]]]:
    """What finds the rows of many keys, and perhaps of others with their digests. A statement costs more than a row."""
    for begin in range(0, len(keys), TOGETHER_MAX):
        numbers = list(map(number_of, keys[begin : begin + TOGETHER_MAX]))
        size = 1 << (len(numbers) - 1).bit_length()
        numbers += numbers[-1:] * (size - len(numbers))
        yield READ_SEVERAL[size], {"now": now_ms, **dict(zip(DIGESTS, numbers, strict=False))}


def _find(key: Key, now_ms: int) -> Script[Record | None]:
    rows = yield from do(Statement(READ, named(key, now=now_ms)))
    return to_record(rows[0]) if rows else None


def _read(call: Read, now_ms: int) -> Script[Record | None]:
    return (yield from _find(call.key, now_ms))


def _look(call: Look, now_ms: int) -> Script[Claimed | None]:
    return shown(call.claim, (yield from _find(call.claim.key, now_ms)), now_ms)


def shown(call: Claim, found: Record | None, now_ms: int) -> Claimed | None:
    """What a claim is told when it changes nothing, or None. `found` must not be past its retention."""
    if found is None:
        return None
    if found.result is not None:
        # As `model.claim` says; a fifth of the time of a lone replay less. The contract suite compares all replies.
        return Occupied(found, now_ms)
    kept, reply = model.claim(found, call, now_ms)
    return reply if kept is found else None


def _claim(call: Claim, now_ms: int) -> Script[Claimed]:
    given = named(call.key, now=now_ms, fingerprint=call.fingerprint, owner=call.owner)
    given |= {"lease": call.lease_ms, "retention": call.retention_ms}
    rows = yield from do(Statement(CLAIM, given))
    if not rows:
        rows = yield from do(Statement(TAKE, given | {"takeover": call.takeover}))
    if rows:
        return Acquired(Lease(call.key, call.owner, *rows[0]))
    found = yield from _find(call.key, now_ms)
    assert found is not None, "the same transaction has just met this record"
    if found.in_progress() and found.owner == call.owner and found.fingerprint == call.fingerprint:
        return Acquired(found.lease)
    return Occupied(found, now_ms)


def _renew(call: Renew, now_ms: int) -> Script[Lease | None]:
    rows = yield from do(
        Statement(RENEW, named(call.lease.key, now=now_ms, owner=call.lease.owner, lease=call.lease_ms))
    )
    return Lease(call.lease.key, call.lease.owner, *rows[0]) if rows else None


def _complete(call: Complete, now_ms: int) -> Script[bool]:
    given = named(call.lease.key, now=now_ms, owner=call.lease.owner)
    given |= _result(call.result, call.retention_ms, call.refuse_ms)
    if (yield from do(Statement(COMPLETE, given))):
        return True
    return bool((yield from do(Statement(COMPLETED_BEFORE, given))))


def _release(call: Release, now_ms: int) -> Script[bool]:
    given = named(call.lease.key, now=now_ms, owner=call.lease.owner)
    if (yield from do(Statement(RELEASE_FIRST, given))):
        return True
    return bool((yield from do(Statement(RELEASE_LATER, given))))


def _resolve(call: Resolve, now_ms: int) -> Script[bool]:
    given = named(call.key, now=now_ms, attempt=call.attempt, owner=call.owner)
    if call.result is None:
        return bool((yield from do(Statement(RESOLVE_UNDONE, given))))
    return bool((yield from do(Statement(RESOLVE, given | _result(call.result, call.retention_ms)))))


def _remove(call: Remove, now_ms: int) -> Script[bool]:
    given = named(call.key, now=now_ms, owner=call.owner, attempt=call.attempt)
    times = {"created": call.created_ms, "completed": call.completed_ms}
    return bool((yield from do(Statement(EXPIRE if call.expire else REMOVE, given | times))))


def _purge(call: Purge, now_ms: int) -> Script[int]:
    gone = 0
    for sql in PURGES:
        gone += len((yield from do(Statement(sql, {"now": now_ms, "limit": call.limit - gone}))))
    yield from purge_attempts(call.limit, now_ms)
    return gone


def _result(result: Result, retention_ms: int, refuse_ms: int = 0) -> dict[str, object]:
    return {
        "state": CODES[result.state],
        "format": SHORT_FORMATS.get(result.format, result.format),
        "payload": result.payload,
        "retention": retention_ms,
        "refuse": refuse_ms,
    }


def _for_each(step: Callable[[C, int], Script[R]]) -> Callable[[Sequence[C], int], Script[list[R]]]:
    """One after the other, so that calls on the same key see each other."""

    def script(calls: Sequence[C], now_ms: int) -> Script[list[R]]:
        replies: list[R] = []
        for call in calls:
            reply = yield from step(call, now_ms)
            replies.append(reply)
        return replies

    return script


claim, renew, complete, release = _for_each(_claim), _for_each(_renew), _for_each(_complete), _for_each(_release)
read, look, resolve, purge = _for_each(_read), _for_each(_look), _for_each(_resolve), _for_each(_purge)
remove, count = _for_each(_remove), _for_each(count_attempt)

SCRIPTS: Mapping[type, Callable[[Sequence[Any], int], Script[list[Any]]]] = {
    Claim: claim,
    Renew: renew,
    Complete: complete,
    Release: release,
    Read: read,
    Look: look,
    Resolve: resolve,
    Remove: remove,
    CountAttempt: count,
    Purge: purge,
}
