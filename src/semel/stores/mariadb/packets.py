"""Several statements as one round trip, and values as they stand in the text of a statement.

Text and bytes are written in hexadecimal: no quoting to get wrong, whatever `sql_mode` and character set are, and what
reaches the server is bytes, as the columns are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from semel.core.effects import Effect
from semel.stores.sql.statements import Rows

FRAME = ("START TRANSACTION", "COMMIT")
Value = str | bytes | int | None


class Packet(Effect[Sequence[Rows]], frozen=True):
    """Statements that are sent together. The reply has the rows of each. The first failure ends the packet."""

    sql: tuple[str, ...]


def packet(*sql: str) -> Packet:
    return Packet(sql)


def transaction(*sql: str) -> Packet:
    """All of them or none. The first row that another transaction holds is waited for, so mind their order."""
    begin, end = FRAME
    return Packet((begin, *sql, end))


def literal(value: Value) -> str:
    match value:
        case None:
            return "NULL"
        case int():  # and bool
            return str(int(value))
        case str():
            return f"x'{value.encode().hex()}'"
        case bytes():
            return f"x'{value.hex()}'"


def text(value: str | None) -> str:
    """Text for a column of text, which is found by its index so: as bytes it would be compared with every row."""
    return "NULL" if value is None else f"_utf8mb4 {literal(value)}"


def listed(values: Iterable[Value]) -> str:
    return ", ".join(map(literal, values))


def table(names: Sequence[str], rows: Iterable[Sequence[Value]]) -> str:
    """Rows of values as something to select from: the calls of a batch, so that a statement is asked once for all."""
    first, *others = rows
    named = ", ".join(f"{literal(value)} AS {name}" for name, value in zip(names, first, strict=True))
    return f"({' UNION ALL '.join([f'SELECT {named}', *(f'SELECT {listed(row)}' for row in others)])})"
