"""What the store says to Redis: plans that yield commands. The decisions are in Lua (lua/*.lua), one script a batch.

Requests and replies are bounded: a script may answer fewer calls than it was given, and the rest is asked again. No
replay writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, TypeVar

from semel.core import model
from semel.core.effects import Claim, Complete, Plan, Read, Release, Remove, Renew, Resolve, do
from semel.core.records import Acquired, Claimed, Key, Lease, Occupied, Record
from semel.errors import RecordUnreadable
from semel.store import Counts, Filter, Page
from semel.stores.redis.commands import Command, Lua, Word
from semel.stores.redis.layout import CODES, answer, frame, name_of, short, to_record

CALLS_MAX = 128
"""Calls in one script. Redis does nothing else meanwhile: this is about a millisecond."""
REQUEST_MAX = 1_048_576
"""Bytes of answers in one script, unless a single one is larger."""
SCAN_COUNT = 500
CLAIM_REST = Struct(">QQ?")
ENDING = Struct(">BQ")
SEEN = Struct(">QQQ?")
COMPLETION = Struct(">BQQ")

C = TypeVar("C")
R = TypeVar("R")

CLAIM, RENEW, COMPLETE, RELEASE, READ = (Lua(name) for name in ("claim", "renew", "complete", "release", "read"))
RESOLVE, REMOVE, PURGE, COUNT = (Lua(name) for name in ("resolve", "remove", "purge", "count"))


@dataclass(frozen=True, slots=True)
class Scripts:
    """The calls of a store whose names begin with `prefix`.

    A record that cannot be read is a reply like others, because it is the error of one caller, not of the batch.
    """

    prefix: str

    def answer(self, calls: Sequence[Any], now_ms: int | None) -> Plan[Sequence[Any]]:
        """Answer calls of one kind."""
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
            case _:
                raise TypeError(f"no store performs {calls[0]!r}")

    def claim(self, calls: Sequence[Claim], now_ms: int | None) -> Plan[list[Claimed | RecordUnreadable]]:
        def words(call: Claim) -> bytes:
            rest = CLAIM_REST.pack(call.lease_ms, call.retention_ms, call.takeover)
            return short(call.fingerprint) + short(call.owner) + rest

        def reply(call: Claim, found: Any, now_ms: int) -> Claimed:
            if isinstance(found, bytes):
                return Occupied(to_record(found, call.key), now_ms)
            return Acquired(Lease(call.key, call.owner, *found))

        return (yield from self._ask(CLAIM, calls, words, reply, now_ms))

    def renew(self, calls: Sequence[Renew], now_ms: int | None) -> Plan[list[Lease | RecordUnreadable | None]]:
        def words(call: Renew) -> bytes:
            return short(call.lease.owner) + call.lease_ms.to_bytes(8)

        def reply(call: Renew, found: Any, _: int) -> Lease | None:
            return None if found is None else Lease(call.lease.key, call.lease.owner, *_readable(found, call.lease.key))

        return (yield from self._ask(RENEW, calls, words, reply, now_ms))

    def complete(self, calls: Sequence[Complete], now_ms: int | None) -> Plan[list[bool | RecordUnreadable]]:
        def words(call: Complete) -> bytes:
            rest = COMPLETION.pack(CODES[call.result.state], call.retention_ms, call.refuse_ms)
            return short(call.lease.owner) + rest + answer(call.result)

        return (yield from self._ask(COMPLETE, calls, words, _done, now_ms))

    def release(self, calls: Sequence[Release], now_ms: int | None) -> Plan[list[bool | RecordUnreadable]]:
        return (yield from self._ask(RELEASE, calls, lambda call: short(call.lease.owner), _done, now_ms))

    def read(self, calls: Sequence[Read], now_ms: int | None) -> Plan[list[Record | RecordUnreadable | None]]:
        def reply(call: Read, found: bytes | None, now_ms: int) -> Record | None:
            return None if found is None else model.read(to_record(found, call.key), now_ms)

        return (yield from self._ask(READ, calls, lambda call: b"", reply, now_ms))

    def resolve(self, calls: Sequence[Resolve], now_ms: int | None) -> Plan[list[bool | RecordUnreadable]]:
        def words(call: Resolve) -> bytes:
            code, data = (0, b"") if call.result is None else (CODES[call.result.state], answer(call.result))
            return short(call.owner) + call.attempt.to_bytes(8) + ENDING.pack(code, call.retention_ms) + data

        return (yield from self._ask(RESOLVE, calls, words, _done, now_ms))

    def remove(self, calls: Sequence[Remove], now_ms: int | None) -> Plan[list[bool | RecordUnreadable]]:
        def words(call: Remove) -> bytes:
            return short(call.owner) + SEEN.pack(call.attempt, call.created_ms, call.completed_ms or 0, call.expire)

        return (yield from self._ask(REMOVE, calls, words, _done, now_ms))

    def purge(self, limit: int, now_ms: int | None, cursor: int) -> Plan[tuple[int, int]]:
        """Delete up to `limit` records past retention, from `cursor` on: how many, and where to go on next time."""
        gone, whole = 0, cursor == 0
        while gone < limit:
            after, names = yield from self._page(cursor)
            if names:
                gone += yield from PURGE.run(names, (_time(now_ms), limit - gone))
            if gone == limit:  # this page may hold more
                break
            cursor = after
            if cursor == 0 and whole:
                break
            whole = whole or cursor == 0
        return gone, cursor

    def scan(self, filter: Filter, cursor: str | None, limit: int, now_ms: int | None) -> Plan[Page]:
        """A page in the order of SCAN, and by name within one step of it, so that a page may end inside a step."""
        place, passed = _place(cursor)
        found: dict[Key, Record] = {}
        while True:
            after, names = yield from self._page(place)
            names = [name for name in names if name > passed]
            while names:
                seen_ms, *values = yield from READ.run(names, (_time(now_ms),))
                for name, value in zip(names, values, strict=False):
                    record = None if value is None else to_record(value)
                    if record and filter.matches(record, seen_ms) and record.key not in found:
                        if len(found) == limit:
                            return Page(tuple(found.values()), f"{place}.{passed.decode()}")
                        found[record.key] = record
                    passed = name
                names = names[len(values) :]
            place, passed = after, b""
            if place == 0:
                return Page(tuple(found.values()), None)

    def counts(self, now_ms: int | None) -> Plan[Counts]:
        """Look at the first bytes of every record: Redis has no index that could be asked."""
        totals, place = [0] * 5, 0
        while True:
            place, names = yield from self._page(place)
            if names:
                totals = [a + b for a, b in zip(totals, (yield from COUNT.run(names, (_time(now_ms),))), strict=True)]
            if place == 0:
                break
        if totals[4]:
            raise RecordUnreadable(
                f"{totals[4]} keys under {self.prefix}: are stored in a form that this version of semel does not know"
            )
        in_progress, unknown, succeeded, failed, _ = totals
        return Counts(in_progress, unknown, succeeded, failed)

    def _page(self, cursor: int) -> Plan[tuple[int, list[bytes]]]:
        """One step of SCAN, which may return a name twice."""
        words = ("SCAN", cursor, "MATCH", f"{self.prefix}:{{*", "COUNT", SCAN_COUNT)
        after, names = yield from do(Command(words))
        return int(after), sorted(set(names))

    def _ask(
        self,
        lua: Lua,
        calls: Sequence[C],
        words: Callable[[C], bytes],
        reply: Callable[[C, Any, int], R],
        now_ms: int | None,
    ) -> Plan[list[R | RecordUnreadable]]:
        replies: list[R | RecordUnreadable] = []
        while len(replies) < len(calls):
            names: list[bytes] = []
            arguments: list[Word] = [_time(now_ms)]
            for call in _some(calls, len(replies)):
                framed = frame(_key(call))
                names.append(name_of(self.prefix, framed))
                arguments.append(len(framed).to_bytes(2) + framed + words(call))
            seen_ms, *found = yield from lua.run(names, arguments)
            for call, each in zip(calls[len(replies) :], found, strict=False):
                try:
                    replies.append(reply(call, each, seen_ms))
                except RecordUnreadable as error:
                    replies.append(error)
        return replies


def _some(calls: Sequence[C], start: int) -> Iterator[C]:
    """As many calls from `start` on as one script should get."""
    size = 0
    for call in calls[start : start + CALLS_MAX]:
        if isinstance(call, Complete):
            if size and size + len(call.result.payload) > REQUEST_MAX:
                return
            size += len(call.result.payload)
        yield call


def _key(call: Any) -> Key:
    key: Key = call.key if isinstance(call, Claim | Read | Resolve | Remove) else call.lease.key
    return key


def _time(now_ms: int | None) -> Word:
    return "" if now_ms is None else now_ms


def _readable(found: Any, key: Key) -> Any:
    """What a script decided. A value instead means that it could not read it, and reading it here says why."""
    if isinstance(found, bytes):
        to_record(found, key)
        raise RecordUnreadable(f"the record of {key} cannot be read")
    return found


def _done(call: Any, found: Any, _: int) -> bool:
    return bool(_readable(found, _key(call)))


def _place(cursor: str | None) -> tuple[int, bytes]:
    if cursor is None:
        return 0, b""
    if not (match := re.fullmatch(r"(\d{1,20})\.([\x21-\x7e]*)", cursor)):
        raise ValueError(f"{cursor!r} is not a cursor that scan returned")
    return int(match[1]), match[2].encode()
