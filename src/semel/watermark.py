"""Watermarks: how far a projection has read each of its sources, moved in the projection's own transaction.

    with Session.begin() as session:
        if watermark("balances", session).advance("payments", event.sequence):
            apply(session, event)

An event that comes twice is applied once, because its number and what it changes are committed together.
"""

from __future__ import annotations

from typing import Literal, get_args

from semel.connections import Dialect
from semel.core.effects import Plan, do
from semel.database.runner import arun, run
from semel.database.tables import Insert, Query
from semel.errors import Misuse, SemelError
from semel.stores.sql.errors import Duplicate

Mode = Literal["strict", "monotone", "sparse"]
SPAN_MAX = 100_000
"""How far a sparse source may run ahead of its first missing number: all that lies between is kept."""
NAME_MAX = 255
CREATE = (
    """CREATE TABLE IF NOT EXISTS semel_watermarks (
    projection VARCHAR(255) NOT NULL, source VARCHAR(255) NOT NULL, position BIGINT NOT NULL,
    PRIMARY KEY (projection, source)
)""",
    """CREATE TABLE IF NOT EXISTS semel_watermarks_ahead (
    projection VARCHAR(255) NOT NULL, source VARCHAR(255) NOT NULL, position BIGINT NOT NULL,
    PRIMARY KEY (projection, source, position)
)""",
)
# By default 'A', 'a' and 'a ' are one name on MariaDB.
CREATE_MARIADB = tuple(f"{sql} ENGINE InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin" for sql in CREATE)
OF = "projection = $1 AND source = $2"
# Writes the row, so that a twin waits for the end of this transaction; says how far it was.
LOCK = """INSERT INTO semel_watermarks AS w (projection, source, position) VALUES ($1, $2, 0)
ON CONFLICT (projection, source) DO UPDATE SET position = w.position RETURNING position"""
LOCK_MARIADB = """INSERT INTO semel_watermarks (projection, source, position) VALUES ($1, $2, 0)
ON DUPLICATE KEY UPDATE position = position RETURNING position"""
RAISE = """INSERT INTO semel_watermarks AS w (projection, source, position) VALUES ($1, $2, $3)
ON CONFLICT (projection, source) DO UPDATE SET position = excluded.position WHERE w.position < excluded.position
RETURNING position"""
MOVE = f"UPDATE semel_watermarks SET position = $3 WHERE {OF}"  # noqa: S608
AHEAD = f"SELECT position FROM semel_watermarks_ahead WHERE {OF} ORDER BY position"  # noqa: S608
# MariaDB's snapshot may be older than the watermark: only a locking read sees what ran ahead since.
AHEAD_MARIADB = f"{AHEAD} FOR UPDATE"
REMEMBER = """INSERT INTO semel_watermarks_ahead (projection, source, position) VALUES ($1, $2, $3)
ON CONFLICT DO NOTHING RETURNING position"""
REMEMBER_MARIADB = REMEMBER.replace("ON CONFLICT DO NOTHING ", "")
FORGET = f"DELETE FROM semel_watermarks_ahead WHERE {OF} AND position <= $3"  # noqa: S608


class Gap(SemelError):
    """Events are missing: `expected` is the next one that may come. Nothing was moved."""

    def __init__(self, message: str, expected: int) -> None:
        super().__init__(message)
        self.expected = expected


class Watermark:
    """The positions of one projection, on one connection or session.

    - `strict`: numbers without gaps, in order. A repeat is skipped, a gap is an error.
    - `monotone`: numbers that grow. What is not greater is skipped, because a late event looks like a repeat.
    - `sparse`: numbers without gaps, in any order, each once. What ran ahead is kept until the gap is filled.
    """

    def __init__(self, projection: str, connection: object, mode: Mode = "strict") -> None:
        if mode not in get_args(Mode):
            raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}, not {mode!r}")
        _check_name("projection", projection)
        self._projection = projection
        self._connection = connection
        self._mode = mode

    def advance(self, source: str, sequence: int) -> bool:
        """True when this event is new and must be applied in this transaction; False when it was applied before."""
        return run(self._connection, lambda dialect: self._advance(source, sequence, dialect), together=True)

    async def aadvance(self, source: str, sequence: int) -> bool:
        """`advance` for a connection of tasks."""
        return await arun(self._connection, lambda dialect: self._advance(source, sequence, dialect), together=True)

    def position(self, source: str) -> int:
        """The number up to which everything was applied."""
        return run(self._connection, lambda _: self._position(source))

    async def aposition(self, source: str) -> int:
        """`position` for a connection of tasks."""
        return await arun(self._connection, lambda _: self._position(source))

    def create(self) -> None:
        """Create the tables, unless they are there. Put the statements of `CREATE` into your own migrations instead.

        MariaDB commits when a table is created, so there they are `CREATE_MARIADB`, and this refuses an open
        transaction.
        """
        run(self._connection, _create)

    async def acreate(self) -> None:
        """`create` for a connection of tasks."""
        await arun(self._connection, _create)

    def _position(self, source: str) -> Plan[int]:
        sql = f"SELECT position FROM semel_watermarks WHERE {OF}"  # noqa: S608
        rows = yield from do(Query(sql, [self._projection, source]))
        return rows[0]["position"] if rows else 0

    def _advance(self, source: str, sequence: int, dialect: Dialect) -> Plan[bool]:
        if sequence < 1:
            raise ValueError(f"sequence must be at least 1, not {sequence}: numbers count from 1")
        _check_name("source", source)
        on_mariadb = dialect is Dialect.MARIADB
        of = [self._projection, source]
        if self._mode == "monotone" and not on_mariadb:
            return bool((yield from do(Query(RAISE, [*of, sequence]))))
        [locked] = yield from do(Query(LOCK_MARIADB if on_mariadb else LOCK, of))
        position: int = locked["position"]
        if sequence <= position:
            return False
        if sequence == position + 1 or self._mode == "monotone":
            yield from self._move(of, sequence, AHEAD_MARIADB if on_mariadb else AHEAD)
            return True
        if self._mode == "strict":
            raise Gap(f"{source!r} is at {sequence}, {self._projection!r} has read up to {position}", position + 1)
        if sequence - position > SPAN_MAX:
            raise Gap(f"{source!r} is {sequence - position} numbers ahead, the limit is {SPAN_MAX}", position + 1)
        try:
            return bool((yield from do(Insert(Query(REMEMBER_MARIADB if on_mariadb else REMEMBER, [*of, sequence])))))
        except Duplicate:
            return False

    def _move(self, of: list[str], position: int, ahead: str) -> Plan[None]:
        """Move on, also over what has come before its turn."""
        if self._mode == "sparse":
            for row in (yield from do(Query(ahead, of))):
                if row["position"] != position + 1:
                    break
                position += 1
            yield from do(Query(FORGET, [*of, position]))
        yield from do(Query(MOVE, [*of, position]))


def watermark(projection: str, connection: object, *, mode: Mode = "strict") -> Watermark:
    """The watermark of `projection`, in the transaction of `connection`."""
    return Watermark(projection, connection, mode)


def _create(dialect: Dialect) -> Plan[None]:
    if dialect is Dialect.MARIADB and (yield from do(Query("SELECT 1 WHERE @@in_transaction"))):
        raise Misuse(
            "MariaDB commits the open transaction when a table is created: call create() before anything else on this "
            "connection, or put semel.watermark.CREATE_MARIADB into your migrations"
        )
    for sql in CREATE_MARIADB if dialect is Dialect.MARIADB else CREATE:
        yield from do(Query(sql))


def _check_name(field: str, name: str) -> None:
    """MariaDB cuts what is longer, unless it is strict: two names would be one."""
    if len(name) > NAME_MAX:
        raise ValueError(f"{field} must have at most {NAME_MAX} characters, not {len(name)}: give it a shorter name")
