"""Lists, counts and the purge, for operators. Redis has no index to ask, so they walk through all records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from semel.core.effects import Plan, do
from semel.core.records import Key, Record
from semel.errors import RecordUnreadable, StoreError
from semel.store import Counts, Filter, Page, UnreadableRecord
from semel.stores.redis.commands import Command, Lua, Nodes
from semel.stores.redis.layout import to_record
from semel.stores.redis.scripts import READ, time_word
from semel.stores.redis.spread import SlotOf, one_slot, run
from semel.stores.redis.walk import Walk, read_cursor, write_cursor

SCAN_COUNT = 500
READ_MAX = 32
"""Records that are read in one step if each has a script of its own: their answers may be large."""
PURGE, COUNT = Lua("retention", "look", "purge"), Lua("retention", "look", "count")


@dataclass(frozen=True, slots=True)
class RedisOperators:
    """What operators ask of a store whose names begin with `prefix`."""

    prefix: str
    ours: Callable[[Exception], StoreError]
    slot_of: SlotOf = one_slot

    def purge(self, limit: int, now_ms: int | None, walk: Walk) -> Plan[tuple[int, Walk]]:
        """Delete up to `limit` records past retention, from `walk` on: how many, and where to go on next time."""
        gone, whole = 0, walk == Walk()
        while gone < limit:
            here, after, names = yield from self._page(walk)
            gone += yield from self._purge(names, limit - gone, now_ms)
            if gone == limit:  # this page may hold more
                return gone, here
            walk = after or Walk()
            if after is None and whole:
                break
            whole = whole or after is None
        return gone, walk

    def _purge(self, names: list[bytes], limit: int, now_ms: int | None) -> Plan[int]:
        """Several scripts cannot share one limit, so they get no more names than that."""
        gone = 0
        while names and gone < limit:
            some = len(names) if self.slot_of is one_slot else limit - gone
            replies = yield from run(PURGE, names[:some], (time_word(now_ms), limit - gone), self.slot_of)
            gone += sum(reply for _, reply in replies)
            names = names[some:]
        return gone

    def scan(self, filter: Filter, cursor: str | None, limit: int, now_ms: int | None) -> Plan[Page]:
        """A page in the order of SCAN, and by name within one step of it, so that a page may end inside a step."""
        walk, passed = read_cursor(cursor)
        found: dict[Key, Record] = {}
        unreadable: dict[str, UnreadableRecord] = {}
        [began_ms] = yield from READ.run((), (time_word(now_ms),))

        def page(cursor: str | None) -> Page:
            return Page(tuple(found.values()), cursor, tuple(unreadable.values()), began_ms)

        while True:
            here, after, names = yield from self._page(walk)
            if (here.node, here.place) != (walk.node, walk.place):  # the walk had to begin a pass again
                passed = b""
            names = [name for name in names if name > passed]
            while names:
                values, seen_ms = yield from self._read(names, now_ms)
                for name, value in zip(names, values, strict=False):
                    shown = self._shown(name, value, filter, seen_ms)
                    fresh = isinstance(shown, Record) and shown.key not in found
                    if (fresh or isinstance(shown, UnreadableRecord)) and len(found) + len(unreadable) == limit:
                        return page(write_cursor(here, passed))
                    if isinstance(shown, UnreadableRecord):
                        unreadable[shown.place] = shown
                    elif shown is not None:
                        found[shown.key] = shown
                    passed = name
                names = names[len(values) :]
            passed = b""
            if after is None:
                return page(None)
            walk = after

    def _read(self, names: list[bytes], now_ms: int | None) -> Plan[tuple[list[Any], int]]:
        """The values of the first of `names`, as many as fit into a reply, and when they were read."""
        some = names if self.slot_of is one_slot else names[:READ_MAX]
        values: dict[int, Any] = {}
        seen_ms = 0
        for places, (read_ms, *found) in (yield from run(READ, some, (time_word(now_ms),), self.slot_of)):
            seen_ms = max(seen_ms, read_ms)
            values.update(zip(places, found, strict=False))
        whole = next((place for place in range(len(some)) if place not in values), len(some))
        return [values[place] for place in range(whole)], seen_ms

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
        totals = [0] * 5
        walk: Walk | None = Walk()
        while walk is not None:
            _, walk, names = yield from self._page(walk)
            if names:
                for _, found in (yield from run(COUNT, names, (time_word(now_ms),), self.slot_of)):
                    totals = [a + b for a, b in zip(totals, found, strict=True)]
        in_progress, unknown, succeeded, failed, unreadable = totals
        return Counts(in_progress, unknown, succeeded, failed, unreadable=unreadable)

    def _page(self, walk: Walk) -> Plan[tuple[Walk, Walk | None, list[bytes]]]:
        """One step of SCAN, which may return a name twice: where the walk is, where it goes on, and the names here."""
        nodes = yield from do(Nodes())
        here, node = walk.turn(nodes)
        words = ("SCAN", here.place, "MATCH", f"{self.prefix}:{{*", "COUNT", SCAN_COUNT)
        after, found = yield from do(Command(words, node=node.address))
        names = sorted(name for name in set(found) if here.slots >> self.slot_of(name) & 1)
        return here, here.after(int(after), nodes), names
