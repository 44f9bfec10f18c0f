"""What differs between the databases of a Django project: whose scripts are run, and how they are spelt for Django."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from semel.clock import wall_ms
from semel.core.effects import Effect, do
from semel.errors import StoreMisconfigured
from semel.store import Counts, Filter, Migration, Page
from semel.stores.sql import migrations
from semel.stores.sql.statements import Script, Statement

NUMBERED = re.compile(r"\$([0-9]+)")
NAMED = re.compile(r"(?<![:\w]):([a-z_]+)")


class Engine(Protocol):
    """The scripts of one kind of database. `transactional`: those that write need a transaction around them."""

    transactional: bool

    def answer(self, call: Effect[Any], now_ms: int | None) -> Script[Any]: ...
    def look(self, call: Effect[Any], now_ms: int | None) -> Script[Any] | None: ...
    def purge(self, limit: int, now_ms: int | None) -> Script[int]: ...
    def scan(self, filter: Filter, cursor: str | None, limit: int, now_ms: int | None) -> Script[Page]: ...
    def counts(self, now_ms: int | None) -> Script[Counts]: ...
    def migrations(self) -> Sequence[Migration]: ...
    def migrate(self) -> Script[list[int]]: ...
    def for_django(self, statement: Statement) -> tuple[str, Mapping[str, Any]]: ...


class SqliteEngine:
    """Every script that writes begins with a write, so that it waits for its turn also after Django's plain `BEGIN`."""

    transactional = True

    def __init__(self) -> None:
        from semel.stores.sqlite import inspection, schema, scripts

        self._inspection, self._schema, self._scripts = inspection, schema, scripts

    def answer(self, call: Effect[Any], now_ms: int | None) -> Script[Any]:
        [reply] = yield from self._scripts.SCRIPTS[type(call)]([call], _given(now_ms))
        return reply

    def look(self, call: Effect[Any], now_ms: int | None) -> Script[Any] | None:
        look = self._scripts.look_first(call)
        return None if look is None else self.answer(look, now_ms)

    def purge(self, limit: int, now_ms: int | None) -> Script[int]:
        return int((yield from self.answer(self._scripts.Purge(limit), now_ms)))

    def scan(self, filter: Filter, cursor: str | None, limit: int, now_ms: int | None) -> Script[Page]:
        return self._inspection.scan(filter, cursor, limit, _given(now_ms))

    def counts(self, now_ms: int | None) -> Script[Counts]:
        return self._inspection.counts(_given(now_ms))

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


class PostgresEngine:
    """Every statement is a transaction by itself."""

    transactional = False

    def __init__(self) -> None:
        try:
            from semel.stores.postgres import schema, scripts
        except ImportError as error:
            raise StoreMisconfigured(
                f"the store on Django's PostgreSQL connection needs {error.name}, which is not installed: "
                "pip install 'semel[django,postgres]'"
            ) from error
        self._schema, self._scripts = schema, scripts.Scripts()

    def answer(self, call: Effect[Any], now_ms: int | None) -> Script[Any]:
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


ENGINES: Mapping[str, type[SqliteEngine] | type[PostgresEngine]] = {
    "sqlite": SqliteEngine,
    "postgresql": PostgresEngine,
}


def engine_for(vendor: str, alias: str) -> Engine:
    if vendor not in ENGINES:
        raise StoreMisconfigured(
            f"DATABASES[{alias!r}] is {vendor}; django:// keeps records in {' and '.join(ENGINES)} only. "
            "Name another alias (django://alias) or give the store a URL of its own"
        )
    return ENGINES[vendor]()


def _given(now_ms: int | None) -> int:
    return wall_ms() if now_ms is None else now_ms
