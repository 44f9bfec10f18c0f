"""What changed in a store since it was read last. No store reports all of its changes.

A store with few records is read as a whole each time. Of a larger one, only records created since the last
time and records that were unfinished then are read: a finished record can only be deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice

import click
from msgspec.structs import replace as record_with

from semel.cli.options import OpenedStore
from semel.cli.scan import RecordScan
from semel.core.records import Key, Record
from semel.errors import RecordUnreadable
from semel.store import Filter, seen_as

LATE_MS = 10_000
"""A new record is found up to this long after its creation: its transaction may commit that much later."""
Seen = tuple[str, int, int | None]
"""What makes a change worth a line: another state, attempt or completion. A renewal does not."""
Sight = dict[Key, tuple[Seen, Record]]


@dataclass(frozen=True, slots=True)
class RecordChange:
    what: str
    record: Record
    seen_ms: int


class Changes:
    """Compares each reading with the one before. Each reads at most `limit` records and says what that leaves out."""

    def __init__(self, opened: OpenedStore, chosen: Filter, limit: int) -> None:
        self._opened = opened
        self._chosen = chosen
        self._limit = limit
        self._before: Sight = {}
        self._is_large = False
        self._began_ms = self._since_ms = 0
        self._told: set[str] = set()

    def begin(self) -> list[RecordChange]:
        """Read the store for the first time: what is there already."""
        scan = self._scan()
        found = self._read(scan, scan.records(self._chosen))
        changes = [RecordChange(seen[0], record, scan.now_ms) for seen, record in islice(found.values(), self._limit)]
        if self._is_beyond(found):
            self._tell_large()
            unfinished = (replace(self._chosen, state=state) for state in ("in_progress", "unknown"))
            followed = self._read(scan, chain.from_iterable(map(scan.records, unfinished)))
            if self._is_beyond(followed):
                self._tell(f"More than {self._limit} are unfinished: what becomes of the others is not shown.")
            found = followed
        self._keep(found, scan)
        self._began_ms = scan.began_ms or scan.now_ms
        scan.warn_unreadable()
        return changes

    def read_again(self) -> list[RecordChange]:
        """What is new, in another state, or gone since the last time."""
        scan = self._scan()
        if not self._is_large:
            after = self._read(scan, scan.records(self._chosen))
            if not self._is_beyond(after):
                changes = list(self._compare(after, set(self._before), scan.now_ms))
                self._keep(after, scan)
                return changes
            self._tell_large()
        unfinished = {key for key, (seen, _) in self._before.items() if seen[0] in ("in_progress", "unknown")}
        after = self._read_new(scan)
        after |= self._read(scan, self._get(unfinished - after.keys()))
        changes = list(self._compare(after, unfinished, scan.now_ms))
        self._keep(after, scan)
        return changes

    def _scan(self) -> RecordScan:
        return RecordScan(self._opened.inspectable)

    def _is_beyond(self, found: Sight) -> bool:
        return len(found) > self._limit

    def _read(self, scan: RecordScan, records: Iterator[Record]) -> Sight:
        """What the records are compared by, for one record more than the limit if there are more."""
        return {
            record.key: (_signature(record, scan.now_ms), record_with(record, result=None))
            for record in islice(records, self._limit + 1)
        }

    def _read_new(self, scan: RecordScan) -> Sight:
        """Records created since the last time, and a while before it. Only new ones count towards the limit."""
        found: Sight = {}
        new = 0
        since_ms = max(self._began_ms, self._since_ms, 1)
        for record in scan.records(replace(self._chosen, created_from_ms=since_ms)):
            if record.key not in self._before:
                new += 1
                if new > self._limit:
                    continue
            found[record.key] = _signature(record, scan.now_ms), record_with(record, result=None)
        if new > self._limit:
            self._tell(f"More than {self._limit} keys were new at once: some are shown late, or never; raise --limit.")
        return found

    def _get(self, keys: set[Key]) -> Iterator[Record]:
        for key in keys:
            try:
                record = self._opened.store.get(key)
            except RecordUnreadable:
                record = self._before[key][1]  # it is there, and that is all that is known
            if record is not None:
                yield record

    def _compare(self, after: Sight, may_be_gone: set[Key], now_ms: int) -> Iterator[RecordChange]:
        for key, (seen, record) in after.items():
            if key not in self._before or self._before[key][0] != seen:
                yield RecordChange(seen[0], record, now_ms)
        for key in self._before:
            if key in may_be_gone and key not in after:
                yield RecordChange("gone", self._before[key][1], now_ms)

    def _keep(self, found: Sight, scan: RecordScan) -> None:
        self._before = found
        if scan.began_ms is not None:
            self._since_ms = scan.began_ms - LATE_MS

    def _tell_large(self) -> None:
        self._is_large = True
        self._tell(
            f"More than {self._limit} records match, so they are not all read each time: new keys are shown, and what "
            "becomes of unfinished ones, but not that a finished record goes. Raise --limit, or choose more narrowly."
        )

    def _tell(self, text: str) -> None:
        """Print a note to stderr, once."""
        if text not in self._told:
            self._told.add(text)
            click.echo(text, err=True)


def _signature(record: Record, now_ms: int) -> Seen:
    return seen_as(record, now_ms), record.attempt, record.completed_ms
