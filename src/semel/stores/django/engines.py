"""What differs between the databases of a Django project: whose scripts are run, and how they are spelt for Django."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from semel.core.effects import Doubts, Effect, do
from semel.core.outbox import OutboxCall
from semel.errors import StoreMisconfigured
from semel.runtime.clock import wall_ms
from semel.store import Clock, Counts, Filter, Migration, Page
from semel.stores.django.mariadb import DjangoMariadbEngine
from semel.stores.sql import migrations
from semel.stores.sql.statements import Script, Statement

NUMBERED = re.compile(r"\$([0-9]+)")
NAMED = re.compile(r"(?<![:\w]):([a-z_]+)")


class DjangoEngine(Protocol):
    """The scripts of one kind of database. `transactional`: those that write need a transaction around them."""

    transactional: bool

    def start(self, *, begun: bool) -> Script[None]:
        """What the first call needs before it, once. `begun`: in the transaction of a test."""
        ...

    def process_of(self, connection: Any) -> str:
        """The server's process behind a connection of the driver's. Of a broken one the driver does not know it."""
        ...

    def lose(self, process: str) -> None:
        """The connection to this process is given up; what was asked on it may still be carried out."""
        ...

    def doubts(self, before: frozenset[str] | None) -> Script[frozenset[str]]: ...
    def answer(self, call: Effect[Any], now_ms: int | None) -> Script[Any]: ...
    def look(self, call: Effect[Any], now_ms: int | None) -> Script[Any] | None: ...
    def purge(self, limit: int, now_ms: int | None) -> Script[int]: ...
    def scan(self, filter: Filter, cursor: str | None, limit: int, now_ms: int | None) -> Script[Page]: ...
    def counts(self, now_ms: int | None) -> Script[Counts]: ...
    def migrations(self) -> Sequence[Migration]: ...
    def migrate(self) -> Script[list[int]]: ...
    def for_django(self, statement: Statement) -> tuple[str, Mapping[str, Any]]: ...


class DjangoSqliteEngine:
    """Every script that writes begins with a write, so that it waits for its turn also after Django's plain `BEGIN`."""

    transactional = True

    def __init__(self) -> None:
        from semel.stores.sqlite import clock, operate, outbox, schema, scripts

        self._inspection, self._schema, self._scripts, self._file_clock = operate, schema, scripts, clock
        self._outbox = outbox
        self._clock: Clock = wall_ms

    def start(self, *, begun: bool) -> Script[None]:
        """Find the clock of the file, which all processes of the machine share, and which does not jump."""
        if (found := (yield from self._file_clock.find_clock())) is None:
            if not begun:
                yield from do(Statement("BEGIN IMMEDIATE"))
            found = yield from self._file_clock.make_clock()
            if not begun:
                yield from do(Statement("COMMIT"))
        self._clock = found

    def process_of(self, connection: Any) -> str:
        return ""

    def lose(self, process: str) -> None:
        """What was not committed never will be."""

    def doubts(self, before: frozenset[str] | None) -> Script[frozenset[str]]:
        yield from ()
        return frozenset()

    def answer(self, call: Effect[Any], now_ms: int | None) -> Script[Any]:
        if isinstance(call, (OutboxCall, self._outbox.LookForMessages)):
            return (yield from self._outbox.answer(call, self._given(now_ms)))
        [reply] = yield from self._scripts.SCRIPTS[type(call)]([call], self._given(now_ms))
        return reply

    def look(self, call: Effect[Any], now_ms: int | None) -> Script[Any] | None:
        look = self._scripts.look_first(call) or self._outbox.look_for_messages(call)
        return None if look is None else self.answer(look, now_ms)

    def purge(self, limit: int, now_ms: int | None) -> Script[int]:
        return int((yield from self.answer(self._scripts.Purge(limit), now_ms)))

    def scan(self, filter: Filter, cursor: str | None, limit: int, now_ms: int | None) -> Script[Page]:
        return (yield from self._inspection.scan(filter, cursor, limit, self._given(now_ms)))

    def counts(self, now_ms: int | None) -> Script[Counts]:
        return (yield from self._inspection.counts(self._given(now_ms)))

    def migrations(self) -> Sequence[Migration]:
        return self._schema.MIGRATIONS

    def migrate(self) -> Script[list[int]]:
        """Takes the write lock first, so that who comes second finds it done."""
        yield from do(Statement("BEGIN IMMEDIATE"))
        applied = yield from migrations.apply(self._schema.MIGRATIONS)
        yield from do(Statement("COMMIT"))
        return applied

    def for_django(self, statement: Statement) -> tuple[str, Mapping[str, Any]]:
        assert isinstance(statement.params, Mapping)
        return NAMED.sub(r"%(\1)s", statement.sql.replace("%", "%%")), statement.params

    def _given(self, now_ms: int | None) -> int:
        return self._clock() if now_ms is None else now_ms


class DjangoPostgresEngine:
    """Every statement is a transaction by itself."""

    transactional = False

    def __init__(self) -> None:
        try:
            from semel.stores.postgres import outbox, schema, scripts
            from semel.stores.sql.lost import LostBackends
        except ImportError as error:
            raise StoreMisconfigured(
                f"the store on Django's PostgreSQL connection needs {error.name}, which is not installed: "
                "pip install 'semel[django,postgres]'"
            ) from error
        self._schema, self._scripts, self._lost = schema, scripts.PostgresScripts(), LostBackends()
        self._outbox = outbox.PostgresOutbox()

    def start(self, *, begun: bool) -> Script[None]:
        yield from ()

    def process_of(self, connection: Any) -> str:
        return str(connection.info.backend_pid)  # psycopg and psycopg2 alike, without a statement

    def lose(self, process: str) -> None:
        """Behind a pooler the number is the pooler's, so that it names no process."""
        self._lost.add(process)
        self._lost.add("")

    def doubts(self, before: frozenset[str] | None) -> Script[frozenset[str]]:
        [found] = yield from self._scripts.doubts([Doubts(before)], self._lost)
        return found

    def answer(self, call: Effect[Any], now_ms: int | None) -> Script[Any]:
        if isinstance(call, OutboxCall):
            return (yield from self._outbox.answer(call, now_ms))
        [reply] = yield from self._scripts.answer([call], now_ms)
        return reply

    def look(self, call: Effect[Any], now_ms: int | None) -> Script[Any] | None:
        return None  # its claim writes nothing when it is not granted

    def purge(self, limit: int, now_ms: int | None) -> Script[int]:
        return self._scripts.purge(limit, now_ms)

    def scan(self, filter: Filter, cursor: str | None, limit: int, now_ms: int | None) -> Script[Page]:
        return self._scripts.scan(filter, cursor, limit, now_ms)

    def counts(self, now_ms: int | None) -> Script[Counts]:
        return self._scripts.counts(now_ms)

    def migrations(self) -> Sequence[Migration]:
        return self._schema.MIGRATIONS

    def migrate(self) -> Script[list[int]]:
        return self._schema.migrate("")

    def for_django(self, statement: Statement) -> tuple[str, Mapping[str, Any]]:
        assert not isinstance(statement.params, Mapping)
        given = {f"p{number}": value for number, value in enumerate(statement.params, 1)}
        return NUMBERED.sub(r"%(p\1)s", statement.sql.replace("%", "%%")), given


ENGINES: Mapping[str, Callable[[], DjangoEngine]] = {
    "sqlite": DjangoSqliteEngine,
    "postgresql": DjangoPostgresEngine,
    "mysql": DjangoMariadbEngine,
}


def engine_for(vendor: str, alias: str) -> DjangoEngine:
    if vendor not in ENGINES:
        raise StoreMisconfigured(
            f"DATABASES[{alias!r}] is {vendor}; django:// keeps records in SQLite, PostgreSQL and MariaDB only. "
            "Name another alias (django://alias) or give the store a URL of its own"
        )
    return ENGINES[vendor]()
