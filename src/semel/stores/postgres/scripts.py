"""The PostgreSQL store's logic: plans that yield statements, each for a list of calls.

Every statement is a transaction of its own and one round trip. Three rules hold throughout:

- What only looks never locks: a replay or an in-flight look writes nothing. Statements read a snapshot first, and what
  changes a row checks the row again when it has it.
- The snapshot may be old by the time a row is reached: a call that got no answer is asked once more, with a new one.
- Rows are reached in the order of their digests, so that two batches do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any

from semel.core.attempts import CountAttempt
from semel.core.effects import Claim, Complete, Doubts, Read, Release, Remove, Renew, Resolve, do
from semel.core.records import Acquired, Claimed, Key, Lease, Occupied, Record, State
from semel.errors import StoreMisconfigured, StoreUnavailable
from semel.store import Counts, Filter, Page
from semel.stores.postgres import attempts, doubts, operate, queries
from semel.stores.postgres.schema import quoted
from semel.stores.sql.digests import digest_of
from semel.stores.sql.lost import LostBackends
from semel.stores.sql.rows import CODES, IN_PROGRESS, checked, to_record
from semel.stores.sql.statements import Rows, Script, Statement

Asked = tuple[bytes, int, Claim]
"""A claim, after the digest of its key and its number in the batch."""
Held = tuple[bytes, str]
"""A key's digest and its owner: what renew, complete and release act on."""
ROUNDS_MAX = 20
"""How often a claim is asked again because its key changed hands in the same moment."""
PURGE_MAX = 1_000
"""How many rows one statement of a purge deletes: a claim of one of them waits no longer than that takes."""


class PostgresScripts:
    """The scripts for the table in one PostgreSQL schema; "" is wherever the search path finds it."""

    def __init__(self, schema: str = "") -> None:
        table = f"{quoted(schema)}.{queries.TABLE}" if schema else queries.TABLE
        self._table = table
        self._attempts = f"{quoted(schema)}.{attempts.TABLE}" if schema else attempts.TABLE
        self._claim = queries.claim(table)
        self._take = queries.take(table)
        self._renew = queries.renew(table)
        self._complete = queries.complete(table)
        self._owned = queries.owned(table)
        self._release = queries.release(table)
        self._read = queries.read(table)
        self._watch = queries.watch(table)
        self._purge = queries.purge(table)

    def answer(self, calls: Sequence[Any], now_ms: int | None) -> Script[list[Any]]:
        """The script for calls of one kind."""
        match calls[0]:
            case Claim():
                return self.claim(calls, now_ms)
            case Renew():
                return self.renew(calls, now_ms)
            case Complete():
                return self.complete(calls, now_ms)
            case Release():
                return self.release(calls, now_ms)
            case Read():
                return self.read(calls, now_ms)
            case Resolve():
                return self.resolve(calls, now_ms)
            case Remove():
                return self.remove(calls, now_ms)
            case CountAttempt():
                return self.count_attempts(calls, now_ms)
            case other:
                raise TypeError(f"no store performs {other!r}")

    def claim(self, calls: Sequence[Claim], now_ms: int | None) -> Script[list[Claimed]]:
        replies: dict[int, Claimed] = {}
        waiting = sorted((digest_of(call.key), number, call) for number, call in enumerate(calls))
        for _ in range(ROUNDS_MAX):
            rows = yield from do(Statement(self._claim, [*_claims(waiting), now_ms]))
            if open := [waiting[row[0] - 1] for row in rows if row[3]]:
                taken = yield from do(Statement(self._take, [*_claims(open), now_ms]))
                rows = [*(row for row in rows if not row[3]), *taken]
            replies.update(_claimed(waiting, rows))
            if len(replies) == len(calls):
                return [replies[number] for number in range(len(calls))]
            waiting = [one for one in waiting if one[1] not in replies]
        raise StoreUnavailable(f"{waiting[0][2].key} changed hands {ROUNDS_MAX} times while it was being claimed")

    def renew(self, calls: Sequence[Renew], now_ms: int | None) -> Script[list[Lease | None]]:
        given = [_held(call.lease) for call in calls]
        last = dict(zip(given, calls, strict=True))
        fields = {held: (*held, last[held].lease_ms) for held in sorted(last)}
        leases, _ = yield from self._change(self._renew, calls, fields, now_ms)
        return [_renewed(call.lease, leases.get(held)) for held, call in zip(given, calls, strict=True)]

    def complete(self, calls: Sequence[Complete], now_ms: int | None) -> Script[list[bool]]:
        given = [_held(call.lease) for call in calls]
        first = dict(zip(given[::-1], calls[::-1], strict=True))
        fields = {
            held: (*held, CODES[result.state], result.format, result.payload, call.retention_ms, call.refuse_ms)
            for held, call in sorted(first.items(), key=itemgetter(0))
            for result in (call.result,)
        }
        done, before = yield from self._change(self._complete, calls, fields, now_ms)
        return [held in done or held in before for held in given]

    def release(self, calls: Sequence[Release], now_ms: int | None) -> Script[list[bool]]:
        given = [_held(call.lease) for call in calls]
        fields = {held: held for held in sorted(set(given))}
        done, _ = yield from self._change(self._release, calls, fields, now_ms)
        # A repeat in the same batch finds nothing to give back.
        return [done.pop(held, None) is not None for held in given]

    def read(self, calls: Sequence[Read], now_ms: int | None) -> Script[list[Record | None]]:
        rows = yield from do(Statement(self._read, [[digest_of(call.key) for call in calls], now_ms]))
        found = {number: checked(to_record(tuple(row)), calls[number - 1].key) for number, *row in rows}
        return [found.get(number) for number in range(1, len(calls) + 1)]

    def _change(
        self,
        sql: str,
        calls: Sequence[Renew | Complete | Release],
        fields: Mapping[Held, tuple[Any, ...]],
        now_ms: int | None,
    ) -> Script[tuple[dict[Held, list[Any]], set[Held]]]:
        """Change rows for those who hold them; says for whom it did so, and whose were finished already.

        Who is not answered was superseded, or its row was changed in the same moment (by its own renewal, or by an
        earlier try of the same call), which only a new snapshot shows.
        """
        done: dict[Held, list[Any]] = {}
        finished: set[Held] = set()
        for _ in range(ROUNDS_MAX):
            asked = list(fields)
            rows = yield from do(Statement(sql, [*_arrays(fields.values()), now_ms]))
            done.update((asked[number - 1], changed) for number, *changed in rows)
            if len(rows) == len(asked):
                return done, finished
            missed = [held for held in asked if held not in done]
            owned = yield from do(Statement(self._owned, _arrays(missed)))
            states = {missed[number - 1]: state for number, state in owned}
            finished.update(held for held, state in states.items() if state != IN_PROGRESS)
            fields = {held: fields[held] for held, state in states.items() if state == IN_PROGRESS}
            if not fields:
                return done, finished
        key = next(call.lease.key for call in calls if _held(call.lease) in fields)
        raise StoreUnavailable(f"{key} changed {ROUNDS_MAX} times while its owner was writing")

    def resolve(self, calls: Sequence[Resolve], now_ms: int | None) -> Script[list[bool]]:
        """One after the other: operators and reconcilers resolve now and then, not in crowds."""
        replies: list[bool] = []
        for call in calls:
            named = [digest_of(call.key), call.attempt, call.owner]
            if call.result is None:
                rows = yield from do(Statement(queries.resolve_nothing_done(self._table), [*named, now_ms]))
            else:
                values = [CODES[call.result.state], call.result.format, call.result.payload, call.retention_ms]
                rows = yield from do(Statement(queries.resolve(self._table), [*named, *values, now_ms]))
            replies.append(bool(rows))
        return replies

    def remove(self, calls: Sequence[Remove], now_ms: int | None) -> Script[list[bool]]:
        replies: list[bool] = []
        for call in calls:
            seen = [digest_of(call.key), call.attempt, call.owner, call.created_ms, call.completed_ms]
            sql = (queries.expire if call.expire else queries.remove)(self._table)
            replies.append(bool((yield from do(Statement(sql, [*seen, now_ms])))))
        return replies

    def count_attempts(self, calls: Sequence[CountAttempt], now_ms: int | None) -> Script[list[int]]:
        """One after the other: two calls of a batch may be about one message."""
        counts: list[int] = []
        for call in calls:
            count = yield from attempts.count_attempt(self._attempts, call, now_ms)
            counts.append(count)
        return counts

    def watch(self, key: Key, owner: str) -> Script[bool]:
        """Ask to be notified of its digest when `owner` no longer holds `key`; False when that is so already."""
        return bool((yield from do(Statement(self._watch, [digest_of(key), owner]))))

    def doubts(self, calls: Sequence[Doubts], lost: LostBackends) -> Script[list[frozenset[str]]]:
        return doubts.doubts(self._table, calls, lost)

    def purge(self, limit: int, now_ms: int | None) -> Script[int]:
        purged = 0
        while purged < limit:
            some = min(PURGE_MAX, limit - purged)
            ((gone,),) = yield from do(Statement(self._purge, [some, now_ms]))
            purged += gone
            if gone < some:
                break
        with suppress(StoreMisconfigured):  # a user without rights on this table counts no attempts either
            yield from attempts.purge_attempts(self._attempts, min(PURGE_MAX, limit), now_ms)
        return purged

    def scan(self, filter: Filter, cursor: str | None, limit: int, now_ms: int | None) -> Script[Page]:
        return operate.scan(self._table, filter, cursor, limit, now_ms)

    def counts(self, now_ms: int | None) -> Script[Counts]:
        return operate.counts(self._table, now_ms)


def _claimed(calls: Sequence[Asked], rows: Rows) -> dict[int, Claimed]:
    """What was there comes back by the call's number, what was granted by its digest. Who lost a race finds neither."""
    first = {digest: call for digest, _, call in reversed(calls)}
    there: dict[int, tuple[Record, int]] = {}
    granted: dict[bytes, tuple[Record, int]] = {}
    for row in rows:
        at, digest, now_ms, _, tenant = row[:5]
        if at is not None:
            there[at] = to_record(row[4:]), now_ms
        elif tenant is not None:
            granted[bytes(digest)] = to_record(row[4:]), now_ms
        else:
            granted[bytes(digest)] = _inserted(first[bytes(digest)], now_ms), now_ms
    replies: dict[int, Claimed] = {}
    for at, (digest, number, call) in enumerate(calls, 1):
        if found := there.get(at) or granted.get(digest):
            record, now_ms = checked(found[0], call.key), found[1]
            ours = record.in_progress() and record.owner == call.owner and record.fingerprint == call.fingerprint
            replies[number] = Acquired(record.lease) if ours else Occupied(record, now_ms)
    return replies


def _claims(calls: Sequence[Asked]) -> list[list[Any]]:
    return _arrays(
        (
            digest,
            call.key.tenant,
            call.key.scope,
            call.key.name,
            call.fingerprint,
            call.owner,
            call.lease_ms,
            call.retention_ms,
            call.takeover,
        )
        for digest, _, call in calls
    )


def _inserted(call: Claim, now_ms: int) -> Record:
    """The record that the statement made for the first call of a key."""
    until_ms, expires_ms = now_ms + call.lease_ms, now_ms + call.retention_ms
    return Record(call.key, call.fingerprint, State.IN_PROGRESS, call.owner, 1, now_ms, until_ms, expires_ms)


def _renewed(lease: Lease, row: list[Any] | None) -> Lease | None:
    return None if row is None else Lease(lease.key, lease.owner, *row)


def _held(lease: Lease) -> Held:
    return digest_of(lease.key), lease.owner


def _arrays(rows: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
    """Calls as the arrays that a statement takes, one for each field."""
    return [list(column) for column in zip(*rows, strict=True)]
