"""Finishing abandoned flows, as a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from semel.core.effects import Effect, Plan, do
from semel.core.records import Key
from semel.errors import InProgress
from semel.flow.course import Course
from semel.flow.definition import Life
from semel.store import Filter, Page, UnreadableRecord

PAGE = 100


class Scan(Effect[Page], frozen=True):
    """Look for records."""

    filter: Filter
    cursor: str | None
    limit: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """What `recover` did: the flows that it finished, and why others could not be finished."""

    ended: tuple[Key, ...] = ()
    left: tuple[tuple[Key, Exception], ...] = ()
    unreadable: tuple[UnreadableRecord, ...] = ()
    """Records that were skipped because they cannot be read: of this flow or, where the store cannot tell, of any."""


def recover_flows(scope: str, course: Callable[[Key], Course[Any, Any]], limit: int) -> Plan[Recovered]:
    """Take over abandoned flows. One that cannot be finished now does not count, so it does not block the others."""
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    ended: list[Key] = []
    left: list[tuple[Key, Exception]] = []
    unreadable: list[UnreadableRecord] = []
    cursor: str | None = None
    while True:
        page = yield from do(Scan(Filter(state="unknown", scope=scope), cursor, PAGE))
        unreadable += page.unreadable
        for record in page.records:
            if len(ended) == limit:
                return Recovered(tuple(ended), tuple(left), tuple(unreadable))
            try:
                yield from course(record.key).resume(Life(record.key, record.fingerprint))
                ended.append(record.key)
            except InProgress:  # another process was faster
                continue
            except Exception as error:
                left.append((record.key, error))
        cursor = page.cursor
        if cursor is None:
            return Recovered(tuple(ended), tuple(left), tuple(unreadable))
