"""Listing, counting and purging, for operators. DynamoDB has no index for it: each of them reads the whole table.

What was written a moment ago may be missing: reads that wait for it cost twice as much. The items that are no records
(parts of large results, counts of attempts) are passed over.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from semel.core import model
from semel.core.effects import Plan, do
from semel.core.records import Record
from semel.errors import RecordUnreadable
from semel.store import Clock, Counts, Filter, Page, UnreadableRecord, seen_as
from semel.stores.dynamodb import queries
from semel.stores.dynamodb.layout import ATTEMPTS, PART, Item, number_in, to_record
from semel.stores.dynamodb.queries import ConditionFailed, Request, Requests
from semel.stores.dynamodb.scripts import DynamodbScripts, unchanged_write, whole

CURSOR = re.compile(r"[A-Za-z0-9_-]{43}|(attempts|part):[A-Za-z0-9_-]{43}(:\d+)?")
LOOK_MIN = 100
AT_ONCE = 25
"""How many deletions are under way together."""


def scan(filter: Filter, cursor: str | None, limit: int, clock: Clock) -> Plan[Page]:
    """A page in the order of the digests' hashes, which is DynamoDB's."""
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    if cursor is not None and not CURSOR.fullmatch(cursor):
        raise ValueError(f"{cursor!r} is not a cursor that scan returned")
    now_ms = clock()
    found: list[Record] = []
    unreadable: list[UnreadableRecord] = []
    after = cursor
    while True:
        items, further = yield from _page(after, max(limit, LOOK_MIN))
        for item in items:
            after = item["digest"]["S"]
            try:
                record = to_record(item) if _is_record(item) else None
                if record is not None and filter.matches(record, now_ms):
                    found.append((yield from whole(record, item)))
            except RecordUnreadable as error:
                unreadable.append(UnreadableRecord(after, str(error)))
            if len(found) + len(unreadable) == limit:
                is_end = item is items[-1] and further is None
                return Page(tuple(found), None if is_end else after, tuple(unreadable), now_ms)
        after = further
        if after is None:
            return Page(tuple(found), None, tuple(unreadable), now_ms)


def counts(clock: Clock) -> Plan[Counts]:
    now_ms = clock()
    seen: Counter[str] = Counter()
    after: str | None = None
    while True:
        items, after = yield from _page(after, with_results=False)
        for item in filter(_is_record, items):
            try:
                record = to_record(item)
            except RecordUnreadable:
                seen["unreadable"] += 1
            else:
                if not record.past_retention(now_ms):
                    seen[seen_as(record, now_ms)] += 1
        if after is None:
            return Counts(
                seen["in_progress"],
                seen["unknown"],
                seen["succeeded"],
                seen["failed"],
                unreadable=seen["unreadable"],
            )


def purge(scripts: DynamodbScripts, limit: int, now_ms: int) -> Plan[int]:
    """Delete up to `limit` records past retention, unless one is claimed again meanwhile."""
    gone, after = 0, None
    while gone < limit:
        items, after = yield from _page(after)
        extra = [_extra(item, now_ms) for item in items if not _is_record(item) and _is_forgotten(item, now_ms)]
        yield from _all(extra)
        due = [request for item in items if _is_record(item) for request in _purge(scripts, item, now_ms)]
        while due and gone < limit:
            some = due[: min(AT_ONCE, limit - gone)]
            del due[: len(some)]
            replies = yield from do(Requests(some))
            gone += sum(not isinstance(reply, ConditionFailed) for reply in replies)
        if after is None:
            break
    return gone


def _purge(scripts: DynamodbScripts, item: Item, now_ms: int) -> Iterator[Request]:
    """What the model has to say about one record. One that cannot be read stays."""
    try:
        old = scripts.seen_by(None, to_record(item))
    except RecordUnreadable:
        return
    new, forgotten = model.purge(old, now_ms)
    if forgotten:
        yield unchanged_write(new, item)


def _all(requests: Sequence[Request]) -> Plan[None]:
    for start in range(0, len(requests), AT_ONCE):
        yield from do(Requests(requests[start : start + AT_ONCE]))


def _page(
    after: str | None, limit: int = queries.PAGE, *, with_results: bool = True
) -> Plan[tuple[list[Item], str | None]]:
    reply = yield from do(queries.scan(after, limit, with_results=with_results))
    last = reply.get("LastEvaluatedKey")
    return reply["Items"], last["digest"]["S"] if last else None


def _is_record(item: Item) -> bool:
    return not item["digest"]["S"].startswith((ATTEMPTS, PART))


def _is_forgotten(item: Item, now_ms: int) -> bool:
    return number_in(item, "forget_ms") <= now_ms


def _extra(item: Item, now_ms: int) -> Request:
    return queries.delete_if_forgotten(item["digest"]["S"], now_ms)
