"""The MariaDB store's logic: plans that yield packets of statements, each packet one round trip for a list of calls.

Four rules hold throughout:

- What only looks never locks: a replay or an in-flight look writes nothing.
- Every packet that changes rows is one transaction, or one statement. So nothing is left half done, and a packet that
  the server rolled back for the sake of others may be sent again.
- Whether a call did something is read from the row's owner, in the same transaction.
- Rows are reached in the order of their digests, so that two batches rarely wait for each other.

What is rare (a take-over, a resolution, a removal) is decided by `core.model` itself, on the row as it was read. It is
written only if the row is still the same; otherwise it is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, TypeVar

from semel.core import model
from semel.core.attempts import CountAttempt
from semel.core.effects import Claim, Complete, Read, Release, Remove, Renew, Resolve, do
from semel.core.records import Claimed, Key, Lease, Record
from semel.errors import StoreMisconfigured, StoreUnavailable
from semel.stores.mariadb import queries
from semel.stores.mariadb.attempts import count_attempt, purge_attempts
from semel.stores.mariadb.packets import Value, packet, transaction
from semel.stores.sql.digests import digest_of
from semel.stores.sql.rows import CODES, IN_PROGRESS, checked, to_record
from semel.stores.sql.statements import Rows, Script

Held = tuple[bytes, str]
"""A key's digest and its owner: what renew, complete and release act on."""
Found = tuple[Record, int]
"""A record, and the time at which it was read."""
Change = TypeVar("Change", Resolve, Remove)
ROUNDS_MAX = 20
"""How often a call is asked again because its key changed hands in the same moment."""
PURGE_MAX = 1_000
"""How many rows one transaction of a purge deletes: a claim of one of them waits no longer than that takes."""
PAYLOADS_MAX = 2_000_000
"""How many bytes of results go into one packet, as long as there are several: packets have a limit (16 MB)."""


def answer(calls: Sequence[Any], now_ms: int | None) -> Script[list[Any]]:
    """The script for calls of one kind."""
    match calls[0]:
        case Claim():
            return claim(calls, now_ms)
        case Renew():
            return renew(calls, now_ms)
        case Complete():
            return complete(calls, now_ms)
        case Release():
            return release(calls, now_ms)
        case Read():
            return read(calls, now_ms)
        case Resolve():
            return _one_by_one(calls, now_ms, model.resolve)
        case Remove():
            return _one_by_one(calls, now_ms, model.remove)
        case CountAttempt():
            return count_attempts(calls, now_ms)
        case other:
            raise TypeError(f"no store performs {other!r}")


def claim(calls: Sequence[Claim], now_ms: int | None) -> Script[list[Claimed]]:
    replies: dict[int, Claimed] = {}
    waiting = sorted(((digest_of(call.key), number, call) for number, call in enumerate(calls)), key=itemgetter(0, 1))
    taken: dict[bytes, tuple[Record, Record]] = {}
    for _ in range(ROUNDS_MAX):
        taking = [queries.replace(digest, old, new) for digest, (old, new) in taken.items()]
        inserting = queries.insert([_inserted(digest, call) for digest, _, call in waiting], now_ms)
        selecting = queries.select(_once(digest for digest, _, _ in waiting), now_ms)
        found = _found((yield from do(packet(*taking, inserting, selecting)))[-1])
        taken.clear()
        for digest, number, call in waiting:
            if (there := found.get(digest)) is not None:
                old, now = checked(there[0], call.key), there[1]
                new, reply = model.claim(old, call, now)
                if new is old:
                    replies[number] = reply
                else:
                    taken.setdefault(digest, (old, new))
        waiting = [each for each in waiting if each[1] not in replies]
        if not waiting:
            return [replies[number] for number in range(len(calls))]
    raise _restless(waiting[0][2].key)


def renew(calls: Sequence[Renew], now_ms: int | None) -> Script[list[Lease | None]]:
    given = [_held(call.lease) for call in calls]
    last = dict(zip(given, calls, strict=True))
    changing = queries.renew([(*held, last[held].lease_ms) for held in sorted(last)], now_ms)
    _, _, rows, _ = yield from do(transaction(changing, queries.holders(_digests(last))))
    ours = _ours(rows)
    return [_renewed(call.lease, ours.get(held)) for held, call in zip(given, calls, strict=True)]


def complete(calls: Sequence[Complete], now_ms: int | None) -> Script[list[bool]]:
    given = [_held(call.lease) for call in calls]
    first = dict(zip(given[::-1], calls[::-1], strict=True))
    done: set[Held] = set()
    for some in _by_size(first):
        changing = queries.complete([_completed(held, first[held]) for held in some], now_ms)
        _, _, rows, _ = yield from do(transaction(changing, queries.holders(_digests(some))))
        done.update(held for held, (state, *_) in _ours(rows).items() if state != IN_PROGRESS)
    return [held in done for held in given]


def release(calls: Sequence[Release], now_ms: int | None) -> Script[list[bool]]:
    given = [_held(call.lease) for call in calls]
    asked = sorted(set(given))
    changing = queries.release(asked, now_ms)
    _, rows, *_ = yield from do(transaction(queries.holders(_digests(asked), lock=True), *changing))
    held_before = {held for held, (state, *_) in _ours(rows).items() if state == IN_PROGRESS}
    # A repeat in the same batch finds nothing to give back.
    return [held in held_before and given.index(held) == number for number, held in enumerate(given)]


def read(calls: Sequence[Read], now_ms: int | None) -> Script[list[Record | None]]:
    digests = [digest_of(call.key) for call in calls]
    [rows] = yield from do(packet(queries.select(_once(sorted(digests)), now_ms)))
    found = _found(rows)
    return [_shown(found.get(digest), call.key) for digest, call in zip(digests, calls, strict=True)]


def count_attempts(calls: Sequence[CountAttempt], now_ms: int | None) -> Script[list[int]]:
    """One after the other: two calls of a batch may be about one message."""
    counts: list[int] = []
    for call in calls:
        count = yield from count_attempt(call, now_ms)
        counts.append(count)
    return counts


def purge(limit: int, now_ms: int | None) -> Script[int]:
    """Lock and delete are two round trips of one transaction: what is locked by others is left for the next purge."""
    purged = 0
    while purged < limit:
        some = min(PURGE_MAX, limit - purged)
        _, past = yield from do(packet("START TRANSACTION", queries.past_retention(some, now_ms)))
        gone = [digest for digest, refused in past if not refused]
        emptied = [digest for digest, refused in past if refused]
        changes = ((queries.delete, gone), (queries.empty, emptied))
        yield from do(packet(*(change(digests) for change, digests in changes if digests), "COMMIT"))
        purged += len(past)
        if len(past) < some:
            break
    with suppress(StoreMisconfigured):  # a user without rights on this table counts no attempts either
        yield from purge_attempts(min(PURGE_MAX, limit), now_ms)
    return purged


def _one_by_one(
    calls: Sequence[Change],
    now_ms: int | None,
    decide: Callable[[Record | None, Change, int], tuple[Record | None, bool]],
) -> Script[list[bool]]:
    """One after the other: operators and reconcilers resolve and remove now and then, not in crowds."""
    replies: list[bool] = []
    for call in calls:
        reply = yield from _change(call, now_ms, decide)
        replies.append(reply)
    return replies


def _change(
    call: Change, now_ms: int | None, decide: Callable[[Record | None, Change, int], tuple[Record | None, bool]]
) -> Script[bool]:
    digest = digest_of(call.key)
    for _ in range(ROUNDS_MAX):
        [rows] = yield from do(packet(queries.select([digest], now_ms)))
        there = _found(rows).get(digest)
        if there is None:
            return False
        old = checked(there[0], call.key)
        new, may = decide(old, call, there[1])
        if not may:
            return False
        _, same, *_ = yield from do(transaction(queries.lock(digest, old), queries.replace(digest, old, new)))
        if same:
            return True
    raise _restless(call.key)


def _restless(key: Key) -> StoreUnavailable:
    return StoreUnavailable(f"{key} changed hands {ROUNDS_MAX} times while it was being asked for")


def _inserted(digest: bytes, call: Claim) -> tuple[Value, ...]:
    key = call.key
    texts = (key.tenant, key.scope, key.name, call.fingerprint, call.owner)
    return (digest, *texts, call.lease_ms, call.retention_ms)


def _completed(held: Held, call: Complete) -> tuple[Value, ...]:
    result = call.result
    return (*held, CODES[result.state], result.format, result.payload, call.retention_ms, call.refuse_ms)


def _by_size(calls: Mapping[Held, Complete]) -> Iterator[list[Held]]:
    """The calls in the order of their digests, in portions of which each fits into a packet."""
    some: list[Held] = []
    size = 0
    for held in sorted(calls):
        size += len(calls[held].result.payload)
        if some and size > PAYLOADS_MAX:
            yield some
            some, size = [], len(calls[held].result.payload)
        some.append(held)
    yield some


def _found(rows: Rows) -> dict[bytes, Found]:
    return {digest: (to_record(queries.readable(row)), now_ms) for digest, now_ms, *row in rows}


def _shown(found: Found | None, key: Key) -> Record | None:
    return None if found is None else model.read(checked(found[0], key), found[1])


def _ours(rows: Rows) -> dict[Held, tuple[Any, ...]]:
    """State, attempt and end of the lease, by digest and owner."""
    return {(digest, owner.decode(errors="replace")): tuple(rest) for digest, owner, *rest in rows}


def _renewed(lease: Lease, row: tuple[Any, ...] | None) -> Lease | None:
    if row is None or row[0] != IN_PROGRESS:
        return None
    return Lease(lease.key, lease.owner, *row[1:])


def _held(lease: Lease) -> Held:
    return digest_of(lease.key), lease.owner


def _digests(these: Mapping[Held, object] | Sequence[Held]) -> list[bytes]:
    return _once(digest for digest, _ in sorted(these))


def _once(digests: Iterator[bytes] | Sequence[bytes]) -> list[bytes]:
    return list(dict.fromkeys(digests))
