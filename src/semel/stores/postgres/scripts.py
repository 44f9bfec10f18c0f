"""The PostgreSQL store's logic: plans that yield statements, each for a list of calls.

Every statement is a transaction of its own and one round trip. Three rules hold throughout:

- What only looks never locks: a replay or an in-flight look writes nothing. Statements read a snapshot first, and what
  changes a row checks the row again when it has it.
- The snapshot may be old by the time a row is reached: a call that got no answer is asked once more, with a new one.
- Rows are reached in the order of their keys, so that two batches do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from semel.core.effects import Claim, Complete, Read, Release, Remove, Renew, Resolve, do
from semel.core.records import Acquired, Claimed, Key, Lease, Occupied, Record
from semel.errors import StoreUnavailable
from semel.store import Counts, Filter, Page
from semel.stores.postgres import inspection, queries
from semel.stores.postgres.schema import quoted
from semel.stores.sql.rows import CODES, IN_PROGRESS, to_record
from semel.stores.sql.statements import Rows, Script, Statement

C = TypeVar("C", Renew, Complete, Release)
Held = tuple[str, str, str, str]
"""A key and its owner: what renew, complete and release act on."""
ROUNDS_MAX = 20
"""How often a claim is asked again because its key changed hands in the same moment."""
PURGE_MAX = 1_000
"""How many rows one statement of a purge deletes: a claim of one of them waits no longer than that takes."""


class Scripts:
    """The scripts for the table in one PostgreSQL schema; "" is wherever the search path finds it."""

    def __init__(self, schema: str = "") -> None:
        table = f"{quoted(schema)}.{queries.TABLE}" if schema else queries.TABLE
        self._table = table
        self._claim = queries.claim(table)
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
            case other:
                raise TypeError(f"no store performs {other!r}")

    def claim(self, calls: Sequence[Claim], now_ms: int | None) -> Script[list[Claimed]]:
        replies: dict[int, Claimed] = {}
        waiting = sorted(enumerate(calls), key=lambda one: _parts(one[1].key))
        for _ in range(ROUNDS_MAX):
            fields = (
                (*_parts(call.key), call.fingerprint, call.owner, call.lease_ms, call.retention_ms, call.takeover)
                for _, call in waiting
            )
            rows = yield from do(Statement(self._claim, [*_arrays(fields), now_ms]))
            replies.update(_claimed(waiting, rows))
            waiting = [one for one in waiting if one[0] not in replies]
            if not waiting:
                return [replies[number] for number in range(len(calls))]
        raise StoreUnavailable(f"{waiting[0][1].key} changed hands {ROUNDS_MAX} times while it was being claimed")

    def renew(self, calls: Sequence[Renew], now_ms: int | None) -> Script[list[Lease | None]]:
        last = {held: (*held, call.lease_ms) for held, call in _in_order(calls).items()}
        leases, _ = yield from self._change(self._renew, last, now_ms)
        return [_renewed(call.lease, leases.get(_held(call.lease))) for call in calls]

    def complete(self, calls: Sequence[Complete], now_ms: int | None) -> Script[list[bool]]:
        first = {
            held: (*held, CODES[result.state], result.format, result.payload, call.retention_ms, call.refuse_ms)
            for held, call in _in_order(calls[::-1]).items()
            for result in (call.result,)
        }
        done, before = yield from self._change(self._complete, first, now_ms)
        return [_held(call.lease) in done or _held(call.lease) in before for call in calls]

    def release(self, calls: Sequence[Release], now_ms: int | None) -> Script[list[bool]]:
        done, _ = yield from self._change(self._release, {held: held for held in _in_order(calls)}, now_ms)
        # A repeat in the same batch finds nothing to give back.
        return [done.pop(_held(call.lease), None) is not None for call in calls]

    def read(self, calls: Sequence[Read], now_ms: int | None) -> Script[list[Record | None]]:
        wanted = dict.fromkeys(_parts(call.key) for call in calls)
        rows = yield from do(Statement(self._read, [*_arrays(wanted), now_ms]))
        records = {row[:3]: to_record(row) for row in rows}
        return [records.get(_parts(call.key)) for call in calls]

    def _change(
        self, sql: str, fields: dict[Held, tuple[Any, ...]], now_ms: int | None
    ) -> Script[tuple[dict[Held, tuple[Any, ...]], set[Held]]]:
        """Change rows for those who hold them; says for whom it did so, and whose were finished already.

        Who is not answered was superseded, or its row was changed in the same moment (by its own renewal, or by an
        earlier try of the same call), which only a new snapshot shows.
        """
        done: dict[Held, tuple[Any, ...]] = {}
        finished: set[Held] = set()
        for _ in range(ROUNDS_MAX):
            rows = yield from do(Statement(sql, [*_arrays(fields.values()), now_ms]))
            done.update((row[:4], row[4:]) for row in rows)
            missed = [held for held in fields if held not in done]
            if not missed:
                return done, finished
            owned = yield from do(Statement(self._owned, _arrays(missed)))
            finished.update(row[:4] for row in owned if row[4] != IN_PROGRESS)
            fields = {row[:4]: fields[row[:4]] for row in owned if row[4] == IN_PROGRESS}
            if not fields:
                return done, finished
        raise StoreUnavailable(f"{Key(*next(iter(fields))[:3])} changed {ROUNDS_MAX} times while its owner was writing")

    def resolve(self, calls: Sequence[Resolve], now_ms: int | None) -> Script[list[bool]]:
        """One after the other: operators and reconcilers resolve now and then, not in crowds."""
        replies: list[bool] = []
        for call in calls:
            named = [*_parts(call.key), call.attempt, call.owner]
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
            seen = [*_parts(call.key), call.attempt, call.owner, call.created_ms, call.completed_ms]
            sql = (queries.expire if call.expire else queries.remove)(self._table)
            replies.append(bool((yield from do(Statement(sql, [*seen, now_ms])))))
        return replies

    def watch(self, key: Key, owner: str, token: str) -> Script[bool]:
        """Ask to be notified with `token` when `owner` no longer holds `key`; False when that is so already."""
        return bool((yield from do(Statement(self._watch, [*_parts(key), owner, token]))))

    def purge(self, limit: int, now_ms: int | None) -> Script[int]:
        purged = 0
        while purged < limit:
            some = min(PURGE_MAX, limit - purged)
            ((gone,),) = yield from do(Statement(self._purge, [some, now_ms]))
            purged += gone
            if gone < some:
                break
        return purged

    def scan(self, filter: Filter, cursor: str | None, limit: int, now_ms: int | None) -> Script[Page]:
        return inspection.scan(self._table, filter, cursor, limit, now_ms)

    def counts(self, now_ms: int | None) -> Script[Counts]:
        return inspection.counts(self._table, now_ms)


def _claimed(calls: Sequence[tuple[int, Claim]], rows: Rows) -> dict[int, Claimed]:
    """What was granted comes back by key, what was there by the number of the call. Who lost a race finds neither."""
    there: dict[int, tuple[Record, int]] = {}
    granted: dict[Key, tuple[Record, int]] = {}
    for at, now_ms, _, *row in rows:
        record = to_record(tuple(row))
        if at is None:
            granted[record.key] = record, now_ms
        else:
            there[at] = record, now_ms
    replies: dict[int, Claimed] = {}
    for at, (number, call) in enumerate(calls, 1):
        if found := there.get(at) or granted.get(call.key):
            record, now_ms = found
            ours = record.in_progress() and record.owner == call.owner and record.fingerprint == call.fingerprint
            replies[number] = Acquired(record.lease) if ours else Occupied(record, now_ms)
    return replies


def _renewed(lease: Lease, row: tuple[Any, ...] | None) -> Lease | None:
    return None if row is None else Lease(lease.key, lease.owner, *row)


def _parts(key: Key) -> tuple[str, str, str]:
    return key.tenant, key.scope, key.name


def _held(lease: Lease) -> Held:
    return *_parts(lease.key), lease.owner


def _in_order(calls: Sequence[C]) -> dict[Held, C]:
    """The last call for each held key, in the order of the keys."""
    last = {_held(call.lease): call for call in calls}
    return {held: last[held] for held in sorted(last)}


def _arrays(rows: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
    """Calls as the arrays that a statement takes, one for each field."""
    return [list(column) for column in zip(*rows, strict=True)]
