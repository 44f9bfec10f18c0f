"""Event sequences: a stream is a column and a number in a table of yours, unique together."""

from __future__ import annotations

from collections.abc import Sequence

from semel.core.effects import Plan, do
from semel.database.changes import check_unique, delete_row, insert_or_find
from semel.database.tables import Lock, Table, Values
from semel.errors import SemelError


class StreamConflict(SemelError):
    """Other events are at that place of the stream, or it does not reach so far. `sequence` is where."""

    def __init__(self, message: str, sequence: int) -> None:
        super().__init__(message)
        self.sequence = sequence


def append(
    table: Table, stream: object, events: Sequence[Values], expected: int, columns: tuple[str, str]
) -> Plan[int]:
    """Put `events` behind the event with the number `expected`; says the number of the last one.

    The same events at the same place are a repeat, and fine; they are compared in the database, by the types of its
    columns. Others are a conflict, and nothing is left of ours.
    """
    if expected < 0:
        raise ValueError(f"expected must be the number of the last event that was seen, or 0, not {expected}")
    if expected > 0 and not (yield from do(table.find(_place(columns, stream, expected), Lock.SHARED))):
        raise StreamConflict(f"stream {stream!r} has no event {expected} yet: read it again", expected)
    made: list[int] = []
    for sequence, event in enumerate(events, expected + 1):
        whole = {**_place(columns, stream, sequence), **event}
        row, created = yield from insert_or_find(table, whole, columns, whole)
        if created:
            made.append(sequence)
            same = made[0] == expected + 1  # or this list is longer than the one of the first time: not its repeat
            if len(made) == 1:
                yield from check_unique(table, columns)
        else:
            same = not made and row is not None
        if not same:
            for ours in made:  # a caller that catches the conflict and commits must not keep a part
                yield from delete_row(table, _place(columns, stream, ours))
            raise StreamConflict(f"stream {stream!r} has other events from {expected + 1} on: read it again", sequence)
    return expected + len(events)


def _place(columns: tuple[str, str], stream: object, sequence: int) -> Values:
    return dict(zip(columns, (stream, sequence), strict=True))
