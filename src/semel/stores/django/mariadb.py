"""The MariaDB store's scripts on Django's connection: each statement by itself, in a transaction that Django begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from semel.core.effects import Effect, T, do
from semel.core.outbox import OutboxCall
from semel.errors import StoreMisconfigured
from semel.store import Counts, Filter, Migration, Page
from semel.stores.mariadb import operate, outbox, schema, scripts
from semel.stores.mariadb.packets import FRAME, Packet
from semel.stores.mariadb.versions import refuse_server
from semel.stores.sql.lost import LostBackends
from semel.stores.sql.statements import Script, Statement

SHOWN = "django://"
SESSION = "SELECT VERSION(), @@tx_isolation, @@sql_mode"
THREADS = "SELECT id FROM information_schema.processlist WHERE id IN ({})"


class DjangoMariadbEngine:
    """What the store sends as one packet, Django's connection sends as statements."""

    transactional = True

    def __init__(self) -> None:
        self._lost = LostBackends()

    def start(self, *, begun: bool) -> Script[None]:
        """Look at the session's settings, which are Django's defaults unless the project has changed them."""
        [(told, isolation, mode)] = yield from do(Statement(SESSION))
        refuse_server(told, SHOWN)
        if isolation != "READ-COMMITTED":
            raise StoreMisconfigured(
                f"the connection's isolation level is {isolation}: the store needs READ COMMITTED, Django's default. "
                'Take "isolation_level" out of the OPTIONS of this database, or give the store a mariadb:// URL'
            )
        if "STRICT_" not in mode:
            raise StoreMisconfigured(
                f"sql_mode of the connection is {mode!r}: without strict mode the server cuts what is too long. Set "
                '"init_command": "SET sql_mode=\'STRICT_TRANS_TABLES\'" in the OPTIONS of this database'
            )

    def process_of(self, connection: Any) -> str:
        return str(connection.thread_id())  # PyMySQL and mysqlclient alike, without a statement

    def lose(self, process: str) -> None:
        self._lost.add(process)

    def doubts(self, before: frozenset[str] | None) -> Script[frozenset[str]]:
        known = self._lost.names()
        named = sorted(known | (before or frozenset()))
        if not named:
            return frozenset()
        rows = yield from do(Statement(THREADS.format(", ".join(str(int(name)) for name in named))))
        alive = frozenset(str(thread) for (thread,) in rows)
        self._lost.forget(known - alive)
        return alive if before is None else alive & before

    def answer(self, call: Effect[Any], now_ms: int | None) -> Script[Any]:
        if isinstance(call, OutboxCall):
            return (yield from unpacked(outbox.answer(call, now_ms)))
        [reply] = yield from unpacked(scripts.answer([call], now_ms))
        return reply

    def look(self, call: Effect[Any], now_ms: int | None) -> Script[Any] | None:
        return None  # its claim writes nothing when it is not granted

    def purge(self, limit: int, now_ms: int | None) -> Script[int]:
        return unpacked(scripts.purge(limit, now_ms))

    def scan(self, filter: Filter, cursor: str | None, limit: int, now_ms: int | None) -> Script[Page]:
        return unpacked(operate.scan(filter, cursor, limit, now_ms))

    def counts(self, now_ms: int | None) -> Script[Counts]:
        return unpacked(operate.counts(now_ms))

    def migrations(self) -> Sequence[Migration]:
        return schema.MIGRATIONS

    def migrate(self) -> Script[list[int]]:
        return schema.apply_alone(SHOWN)

    def for_django(self, statement: Statement) -> tuple[str, Mapping[str, Any]]:
        raise TypeError("values stand in the text of MariaDB's statements")


def unpacked(script: Script[T]) -> Script[T]:
    """A script whose packets are asked statement by statement. What begins and ends a transaction is Django's."""
    given: Any = None
    while True:
        try:
            effect = script.send(given)
        except StopIteration as stop:
            value: T = stop.value
            return value
        if not isinstance(effect, Packet):
            given = yield from do(effect)
            continue
        given = []
        for sql in effect.sql:
            given.append(() if sql in FRAME else (yield from do(Statement(sql))))
