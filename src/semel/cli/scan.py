"""How a command reads a store: its records page by page, which of them cannot be read, and the store's time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any

import click

from semel.codecs.terminal import visible
from semel.core.records import Record
from semel.runtime.clock import wall_ms
from semel.store import Filter, Inspectable, UnreadableRecord

PAGE = 200
TOLD_MAX = 5
UNREADABLE_MAX = 1_000


class RecordScan:
    """Reads records. One that cannot be read does not stop the command, which reports it instead.

    `now_ms` is the store's time when it gave the last page. It decides whether a lease has lapsed.
    """

    def __init__(self, store: Inspectable) -> None:
        self._store = store
        self._unreadable: dict[str, UnreadableRecord] = {}
        self.count = 0
        self.began_ms: int | None = None
        self._now_ms: int | None = None

    @property
    def now_ms(self) -> int:
        """The store's time; this machine's if the store has not told its own."""
        return wall_ms() if self._now_ms is None else self._now_ms

    def records(self, chosen: Filter) -> Iterator[Record]:
        """All records that match."""
        cursor: str | None = None
        while True:
            page = self._store.scan(chosen, cursor=cursor, limit=PAGE)
            self._now_ms = page.now_ms
            self.began_ms = self.now_ms if self.began_ms is None else self.began_ms
            for each in page.unreadable:
                self._add(each)
            yield from page.records
            cursor = page.cursor
            if cursor is None:
                return

    def _add(self, unreadable: UnreadableRecord) -> None:
        if unreadable.place not in self._unreadable:
            self.count += 1
            if len(self._unreadable) < UNREADABLE_MAX:
                self._unreadable[unreadable.place] = unreadable

    def unreadable_as_json(self) -> list[dict[str, Any]]:
        return [asdict(each) for each in self._unreadable.values()]

    def warn_unreadable(self) -> None:
        """Print a line to stderr for each of the first records that cannot be read."""
        for each in islice(self._unreadable.values(), TOLD_MAX):
            click.echo(f"Skipped, because it cannot be read: {visible(each.place)}: {visible(each.reason)}", err=True)
        if self.count > TOLD_MAX:
            click.echo(f"Skipped {self.count - TOLD_MAX} more that cannot be read.", err=True)
