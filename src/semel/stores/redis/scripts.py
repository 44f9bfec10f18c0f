"""What the store says to Redis: plans that yield commands. The decisions are in Lua (lua/*.lua), one script a batch.

Requests and replies are bounded: a script may answer fewer calls than it was given, and the rest is asked again. No
replay writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, NamedTuple

from semel.core import model
from semel.core.attempts import CountAttempt
from semel.core.copies import CopyCall
from semel.core.effects import Claim, Complete, Plan, Read, Release, Remove, Renew, Resolve, do
from semel.core.records import Acquired, Claimed, Key, Lease, Occupied, Record, Result
from semel.errors import RecordUnreadable, StoreError
from semel.store import Counts, Filter, Page, UnreadableRecord
from semel.stores.redis.commands import Command, Lua, Word
from semel.stores.redis.copies import answer_copies
from semel.stores.redis.layout import FAILED, SUCCEEDED, answer, frame, name_of, to_record

CALLS_MAX = 128
"""Calls in one script. Redis does nothing else meanwhile: this is about a millisecond."""
REQUEST_MAX = 1_048_576
"""Bytes of answers in one script, unless a single one is larger."""
SCAN_COUNT = 500
CALL = Struct(">IHB")
"""How every call begins: its size with this, and the sizes of frame and owner."""
TERMS = Struct(">QQ?")
ENDING = Struct(">QBQ")
SEEN = Struct(">QQQ?")
COMPLETION = Struct(">BQQ")

ATTEMPT = Lua("attempt")
READ, PURGE, COUNT = Lua("read"), Lua("retention", "look", "purge"), Lua("retention", "look", "count")


@dataclass(frozen=True, slots=True)
class RedisScripts:
    """The calls of a store whose names begin with `prefix`; `ours` makes the store's error of a server's.

    A record that cannot be read is a reply like others, because it is the error of one caller, not of the batch; so is
    what the server refused for one key.
    """

    prefix: str
    ours: Callable[[Exception], StoreError]

    def name_of(self, key: Key) -> bytes:
        return name_of(self.prefix.encode(), frame(key))

    def answer(self, calls: Sequence[Any], now_ms: int | None) -> Plan[list[Any]]:
        """Answer calls of one kind, each with its reply or its error."""
        if isinstance(calls[0], CountAttempt):
            return (yield from self._count_attempts(calls, now_ms))
        if isinstance(calls[0], CopyCall):
            return (yield from answer_copies(self.prefix, calls))
        kind = KINDS[type(calls[0])]
        replies: list[Any] = []
        prefix = self.prefix.encode()
        while len(replies) < len(calls):
            names: list[bytes] = []
            told: list[bytes] = []
            words: list[Word] = [_time(now_ms), b""]
            for call in _some(calls, len(replies)):
                key, owner, rest, data = kind.tell(call)
                if data is not None:
                    words.append(data)
                    rest += len(words).to_bytes(2)
                framed, who = frame(key), owner.encode()
                names.append(name_of(prefix, framed))
                size = CALL.size + len(framed) + len(who) + len(rest)
                told += (CALL.pack(size, len(framed), len(who)), framed, who, rest)
            words[1] = b"".join(told)
            seen_ms, *found = yield from kind.lua.run(names, words)
            for call, each in zip(calls[len(replies) :], found, strict=False):
                try:
                    replies.append(self.ours(each) if isinstance(each, Exception) else kind.reply(call, each, seen_ms))
                except RecordUnreadable as error:
                    replies.append(error)
        return replies

    def _count_attempts(self, calls: Sequence[CountAttempt], now_ms: int | None) -> Plan[list[int]]:
        """One script for each: failures are rare, and a batch of them may be about one message."""
        counts: list[int] = []
        for call in calls:
            name = name_of(f"{self.prefix}:attempts".encode(), frame(call.key))
            count = yield from ATTEMPT.run((name,), (_time(now_ms), call.retention_ms, call.error.encode()))
            counts.append(int(count))
        return counts

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
        unreadable: dict[str, UnreadableRecord] = {}
        [began_ms] = yield from READ.run((), (_time(now_ms),))

        def page(cursor: str | None) -> Page:
            return Page(tuple(found.values()), cursor, tuple(unreadable.values()), began_ms)

        while True:
            after, names = yield from self._page(place)
            names = [name for name in names if name > passed]
            while names:
                seen_ms, *values = yield from READ.run(names, (_time(now_ms),))
                for name, value in zip(names, values, strict=False):
                    shown = self._shown(name, value, filter, seen_ms)
                    fresh = isinstance(shown, Record) and shown.key not in found
                    if (fresh or isinstance(shown, UnreadableRecord)) and len(found) + len(unreadable) == limit:
                        return page(f"{place}.{passed.decode()}")
                    if isinstance(shown, UnreadableRecord):
                        unreadable[shown.place] = shown
                    elif shown is not None:
                        found[shown.key] = shown
                    passed = name
                names = names[len(values) :]
            place, passed = after, b""
            if place == 0:
                return page(None)

    def _shown(self, name: bytes, value: Any, filter: Filter, now_ms: int) -> Record | UnreadableRecord | None:
        """What a page shows of one value. One that cannot be read is shown, too, and hides no other."""
        try:
            if isinstance(value, Exception):
                raise self.ours(value)
            record = None if value is None else to_record(value)
        except RecordUnreadable as error:
            return UnreadableRecord(name.decode("utf-8", "backslashreplace"), str(error))
        return record if record is not None and filter.matches(record, now_ms) else None

    def counts(self, now_ms: int | None) -> Plan[Counts]:
        """Look at the first bytes of every record: Redis has no index that could be asked."""
        totals, place = [0] * 5, 0
        while True:
            place, names = yield from self._page(place)
            if names:
                totals = [a + b for a, b in zip(totals, (yield from COUNT.run(names, (_time(now_ms),))), strict=True)]
            if place == 0:
                break
        in_progress, unknown, succeeded, failed, unreadable = totals
        return Counts(in_progress, unknown, succeeded, failed, unreadable=unreadable)

    def _page(self, cursor: int) -> Plan[tuple[int, list[bytes]]]:
        """One step of SCAN, which may return a name twice."""
        words = ("SCAN", cursor, "MATCH", f"{self.prefix}:{{*", "COUNT", SCAN_COUNT)
        after, names = yield from do(Command(words))
        return int(after), sorted(set(names))


Told = tuple[Key, str, bytes, bytes | None]
"""Key, owner, the rest, and the answer if such a call has one: it is a word of its own, being large."""


class Kind(NamedTuple):
    """The script for calls of one kind, how they are told to it, and how its reply is read."""

    lua: Lua
    tell: Callable[[Any], Told]
    reply: Callable[[Any, Any, int], Any]


def _claim(call: Claim) -> Told:
    terms = TERMS.pack(call.lease_ms, call.retention_ms, call.takeover)
    return call.key, call.owner, call.fingerprint.encode() + terms, None


def _claimed(call: Claim, found: Any, now_ms: int) -> Claimed:
    if isinstance(found, bytes):
        return Occupied(to_record(found, call.key), now_ms)
    return Acquired(Lease(call.key, call.owner, *found))


def _renew(call: Renew) -> Told:
    return call.lease.key, call.lease.owner, call.lease_ms.to_bytes(8), None


def _renewed(call: Renew, found: Any, _: int) -> Lease | None:
    key, owner = call.lease.key, call.lease.owner
    return None if found is None else Lease(key, owner, *_readable(found, key))


def _complete(call: Complete) -> Told:
    terms = COMPLETION.pack(_code(call.result), call.retention_ms, call.refuse_ms)
    return call.lease.key, call.lease.owner, terms, answer(call.result)


def _code(result: Result) -> int:
    return SUCCEEDED if result.ok else FAILED


def _release(call: Release) -> Told:
    return call.lease.key, call.lease.owner, b"", None


def _resolve(call: Resolve) -> Told:
    code, data = (0, b"") if call.result is None else (_code(call.result), answer(call.result))
    return call.key, call.owner, ENDING.pack(call.attempt, code, call.retention_ms), data


def _remove(call: Remove) -> Told:
    seen = SEEN.pack(call.attempt, call.created_ms, call.completed_ms or 0, call.expire)
    return call.key, call.owner, seen, None


def _read(call: Read) -> Told:
    return call.key, "", b"", None


def _found(call: Read, found: bytes | None, now_ms: int) -> Record | None:
    return None if found is None else model.read(to_record(found, call.key), now_ms)


def _done(call: Complete | Release, found: Any, _: int) -> bool:
    return bool(_readable(found, call.lease.key))


def _ended(call: Resolve | Remove, found: Any, _: int) -> bool:
    return bool(_readable(found, call.key))


def _readable(found: Any, key: Key) -> Any:
    """What a script decided. A value instead means that it could not read it, and reading it here says why."""
    if isinstance(found, bytes):
        to_record(found, key)
        raise RecordUnreadable(f"the record of {key} cannot be read")
    return found


KINDS: dict[type, Kind] = {
    Claim: Kind(Lua("retention", "calls", "claim", "each"), _claim, _claimed),
    Renew: Kind(Lua("calls", "renew", "each"), _renew, _renewed),
    Complete: Kind(Lua("finish", "calls", "complete", "each"), _complete, _done),
    Release: Kind(Lua("disowned", "calls", "release", "each"), _release, _done),
    Resolve: Kind(Lua("finish", "disowned", "calls", "resolve", "each"), _resolve, _ended),
    Remove: Kind(Lua("calls", "remove", "each"), _remove, _ended),
    Read: Kind(READ, _read, _found),
}


def _some(calls: Sequence[Any], start: int) -> Iterator[Any]:
    """As many calls from `start` on as one script should get."""
    size = 0
    for call in calls[start : start + CALLS_MAX]:
        if type(call) is Complete:
            if size and size + len(call.result.payload) > REQUEST_MAX:
                return
            size += len(call.result.payload)
        yield call


def _time(now_ms: int | None) -> Word:
    return "" if now_ms is None else now_ms


def _place(cursor: str | None) -> tuple[int, bytes]:
    if cursor is None:
        return 0, b""
    if not (match := re.fullmatch(r"(\d{1,20})\.([\x21-\x7e]*)", cursor)):
        raise ValueError(f"{cursor!r} is not a cursor that scan returned")
    return int(match[1]), match[2].encode()
