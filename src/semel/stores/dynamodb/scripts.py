"""What the store says to DynamoDB: plans that yield requests.

Each call begins with the one conditional write that is nearly always right. If its condition does not hold, nothing
was done, and the refusal carries the item. Then the model decides (`core.model`), and what it changes is written if the
item is still the one that it saw. A write whose reply was lost is not repeated here: its caller repeats the call, and
the owner in the item tells what became of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from semel.core import model
from semel.core.attempts import CountAttempt
from semel.core.effects import Claim, Complete, Effect, Plan, Read, Release, Remove, Renew, Resolve, do
from semel.core.records import Claimed, Key, Lease, Occupied, Record
from semel.errors import RecordUnreadable, StoreUnavailable
from semel.stores.dynamodb import queries
from semel.stores.dynamodb.attempts import count_attempt
from semel.stores.dynamodb.layout import (
    RESULT,
    Item,
    digest_of,
    item_of,
    number,
    number_in,
    part_names,
    parts_of,
    result_item,
    text,
    to_record,
    ttl_of,
)
from semel.stores.dynamodb.queries import ConditionFailed, Request, Requests

T = TypeVar("T")
TRIES_MAX = 20
"""How often a call decides anew because another one was faster. One of them succeeds each time."""
Step = Callable[[Record | None, Any, int], tuple[Record | None, T]]
STEPS: dict[type[Effect[Any]], Step[Any]] = {Resolve: model.resolve, Remove: model.remove}


@dataclass(frozen=True, slots=True)
class DynamodbScripts:
    """The calls of a store. `margin_ms` is how far the clock of another caller may be from this one's."""

    margin_ms: int = 0
    read_first: bool = False

    def answer(self, call: Any, now_ms: int) -> Plan[Any]:
        match call:
            case Claim():
                return (yield from self._claim(call, now_ms))
            case Complete():
                return (yield from self._complete(call, now_ms))
            case Renew():
                return (yield from self._renew(call, now_ms))
            case Release():
                return (yield from self._release(call, now_ms))
            case Read():
                return (yield from self._read(call, now_ms))
            case CountAttempt():
                return (yield from count_attempt(call, now_ms))
            case _:
                return (yield from self._decide(STEPS[type(call)], call, now_ms))

    def _claim(self, call: Claim, now_ms: int) -> Plan[Claimed]:
        found: Item | None = None
        if not self.read_first:
            record, granted = model.claim(None, call, now_ms)
            reply = yield from do(queries.put_if_free(record, now_ms, self.margin_ms))
            if not isinstance(reply, ConditionFailed):
                return granted
            found = reply.item
        return (yield from self._decide(model.claim, call, now_ms, found))

    def _renew(self, call: Renew, now_ms: int) -> Plan[Lease | None]:
        owner, until_ms = call.lease.owner, now_ms + call.lease_ms
        reply = yield from do(queries.extend(digest_of(call.key), owner, until_ms))
        if not isinstance(reply, ConditionFailed):
            return Lease(call.key, owner, number_in(reply["Attributes"], "attempt"), until_ms)
        return (yield from self._decide(model.renew, call, now_ms, reply.item))

    def _complete(self, call: Complete, now_ms: int) -> Plan[bool]:
        digest, owner, result = digest_of(call.key), call.lease.owner, call.result
        expires_ms = now_ms + call.retention_ms
        forget_ms = expires_ms + call.refuse_ms
        yield from _put_parts(digest, owner, result, forget_ms)
        reply = yield from do(
            queries.finish(
                digest,
                owner,
                {
                    "state": text(result.state.value),
                    "lease_until_ms": number(now_ms),
                    "expires_ms": number(expires_ms),
                    "refuse_ms": number(call.refuse_ms),
                    "forget_ms": number(forget_ms),
                    "ttl": ttl_of(forget_ms),
                    **result_item(digest, owner, result),
                },
            )
        )
        if not isinstance(reply, ConditionFailed):
            return True
        return (yield from self._decide(model.complete, call, now_ms, reply.item))

    def _release(self, call: Release, now_ms: int) -> Plan[bool]:
        reply = yield from do(queries.delete_if_first(digest_of(call.key), call.lease.owner))
        if not isinstance(reply, ConditionFailed):
            return True
        return (yield from self._decide(model.release, call, now_ms, reply.item))

    def _read(self, call: Read, now_ms: int) -> Plan[Record | None]:
        item = yield from _read_item(digest_of(call.key))
        record = model.read(to_record(item, call.key), now_ms) if item else None
        return record and (yield from whole(record, item))

    def _decide(self, step: Step[T], call: Any, now_ms: int, found: Item | None = None) -> Plan[T]:
        """Let the model decide about the item, and write what it says if nothing happened meanwhile."""
        key: Key = call.key
        for _ in range(TRIES_MAX):
            item = (yield from _read_item(digest_of(key))) if found is None else found
            old = self.seen_by(call, to_record(item, key)) if item else None
            new, reply = step(old, call, now_ms)
            if new is old:
                return (yield from _told(reply, item))
            written = yield from _write(old, new, item)
            if not isinstance(written, ConditionFailed):
                return reply
            found = written.item
        raise StoreUnavailable(f"{key} was changed {TRIES_MAX} times while one call was deciding about it")

    def seen_by(self, call: Effect[Any] | None, record: Record) -> Record:
        """The record with a lease that is over for another caller only when it is over by any clock."""
        is_own = isinstance(call, Claim) and call.owner == record.owner
        if is_own or not self.margin_ms or not record.in_progress():
            return record
        return replace(record, lease_until_ms=record.lease_until_ms + self.margin_ms)


def unchanged_write(new: Record | None, seen: Item, result: Item | None = None) -> Request:
    """Make `new` of the item `seen`, unless that has changed; `result` has the attributes of its result."""
    if new is None:
        return queries.delete_if_unchanged(seen["digest"]["S"], seen)
    return queries.put_if_unchanged(item_of(new) | dict(result or {}), seen)


def _write(old: Record | None, new: Record | None, seen: Item) -> Plan[Any]:
    result: Item = {}
    if new is not None and new.result is not None:
        if old is not None and new.result is old.result:
            result = {name: seen[name] for name in RESULT if name in seen}
        else:
            digest, owner = digest_of(new.key), old.owner if old else new.owner  # what an operator found out has none
            yield from _put_parts(digest, owner, new.result, new.expires_ms + new.refuse_ms)
            result = result_item(digest, owner, new.result)
    return (yield from do(unchanged_write(new, seen, result)))


def whole(record: Record, item: Item) -> Plan[Record]:
    """The record with the whole payload of its result."""
    names = part_names(item)
    if not names or record.result is None:
        return record
    replies = yield from do(Requests([queries.read(name) for name in names]))
    try:
        payload = b"".join(reply["Item"]["payload"]["B"] for reply in replies)
    except KeyError:
        raise RecordUnreadable(f"a part of the result of {record.key} is missing") from None
    return replace(record, result=replace(record.result, payload=payload))


def _told(reply: T, item: Item) -> Plan[T]:
    if not isinstance(reply, Occupied):
        return reply
    shown = Occupied((yield from whole(reply.record, item)), reply.now_ms)
    return cast(T, shown)


def _read_item(digest: str) -> Plan[Item]:
    """The item as every write before has left it; empty if there is none."""
    reply = yield from do(queries.read(digest))
    item: Item = reply.get("Item", {})
    return item


def _put_parts(digest: str, owner: str, result: Any, forget_ms: int) -> Plan[None]:
    """A large result is there before the record names it. What no record names later, DynamoDB deletes."""
    parts = [queries.put(item) for item in parts_of(digest, owner, result, forget_ms)]
    if parts:
        yield from do(Requests(parts))
