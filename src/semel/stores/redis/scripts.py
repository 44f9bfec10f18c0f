"""What the store says to Redis: plans that yield commands. The decisions are in Lua (lua/*.lua), one script a batch.

Requests and replies are bounded: a script may answer fewer calls than it was given, and the rest is asked again. No
replay writes. In a cluster each record has its own script, and those for one node are one request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from struct import Struct
from typing import Any, NamedTuple

from semel.core import model
from semel.core.attempts import CountAttempt
from semel.core.copies import CopyCall
from semel.core.effects import Claim, Complete, Plan, Read, Release, Remove, Renew, Resolve
from semel.core.records import Acquired, Claimed, Key, Lease, Occupied, Record, Result
from semel.errors import RecordUnreadable, StoreError
from semel.stores.redis.commands import Lua, Word, has_changed, has_found
from semel.stores.redis.copies import answer_copies, copy_name
from semel.stores.redis.layout import FAILED, SUCCEEDED, answer, frame, name_of, to_record
from semel.stores.redis.spread import SlotOf, group, one_slot, together

CALLS_MAX = 128
"""Calls in one script. Redis does nothing else meanwhile: this is about a millisecond."""
REQUEST_MAX = 1_048_576
"""Bytes of answers in one script, unless a single one is larger."""
CALL = Struct(">IHB")
"""How every call begins: its size with this, and the sizes of frame and owner."""
TERMS = Struct(">QQ?")
ENDING = Struct(">QBQ")
SEEN = Struct(">QQQ?")
COMPLETION = Struct(">BQQ")

ATTEMPT, READ = Lua("attempt", confirms=has_changed), Lua("read")


@dataclass(frozen=True, slots=True)
class RedisScripts:
    """The calls of a store whose names begin with `prefix`; `ours` makes the store's error of a server's.

    A record that cannot be read is a reply like others, because it is the error of one caller, not of the batch; so is
    what the server refused for one key.
    """

    prefix: str
    ours: Callable[[Exception], StoreError]
    slot_of: SlotOf = one_slot

    def name_of(self, key: Key) -> bytes:
        return name_of(self.prefix.encode(), frame(key))

    def name_for(self, call: Any) -> bytes:
        """The Redis key that a call is about."""
        if isinstance(call, CopyCall):
            return copy_name(self.prefix, call)
        return self.name_of(call.lease.key if isinstance(call, Renew | Complete | Release) else call.key)

    def answer(self, calls: Sequence[Any], now_ms: int | None) -> Plan[list[Any]]:
        """Answer calls of one kind, each with its reply or its error."""
        if self.slot_of is one_slot or len(calls) == 1:
            return (yield from self._answer(calls, now_ms))
        replies: list[Any] = []
        while len(replies) < len(calls):
            some = list(_some(calls, len(replies)))
            groups = group(list(map(self.name_for, some)), self.slot_of)
            ends = yield from together([self._answer([some[at] for at in places], now_ms) for places in groups])
            answered: list[Any] = [None] * len(some)
            for places, end in zip(groups, ends, strict=True):
                for place, reply in zip(places, repeat(end) if isinstance(end, StoreError) else end, strict=False):
                    answered[place] = reply
            replies += answered
        return replies

    def _answer(self, calls: Sequence[Any], now_ms: int | None) -> Plan[list[Any]]:
        """Answer calls whose records may share a script."""
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
            words: list[Word] = [time_word(now_ms), b""]
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
            count = yield from ATTEMPT.run((name,), (time_word(now_ms), call.retention_ms, call.error.encode()))
            counts.append(int(count))
        return counts


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
    Claim: Kind(Lua("retention", "calls", "claim", "each", confirms=has_changed), _claim, _claimed),
    Renew: Kind(Lua("calls", "renew", "each", confirms=has_changed), _renew, _renewed),
    Complete: Kind(Lua("finish", "calls", "complete", "each", confirms=has_changed), _complete, _done),
    Release: Kind(Lua("disowned", "calls", "release", "each", confirms=has_changed), _release, _done),
    Resolve: Kind(Lua("finish", "disowned", "calls", "resolve", "each", confirms=has_changed), _resolve, _ended),
    Remove: Kind(Lua("calls", "remove", "each", confirms=has_changed), _remove, _ended),
    Read: Kind(Lua("read", confirms=has_found), _read, _found),
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


def time_word(now_ms: int | None) -> Word:
    return "" if now_ms is None else now_ms
