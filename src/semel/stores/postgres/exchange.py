"""One question and its answer on a connection, through psycopg's own generators but past its cursors.

A cursor converts, describes and remembers more than our statements need: that was half of what a call cost here.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import generators
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

from semel.stores.postgres.arrays import packed
from semel.stores.sql.statements import Rows, Statement

GOOD = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class Exchange:
    """Asks statements whose parameters are lists (and the time): batches of calls. Both faces drive its generators."""

    def __init__(self, pgconn: PGconn) -> None:
        self.prepares = False
        self._pgconn = pgconn
        self._reader = Transformer()
        self._names: dict[str, bytes] = {}

    @staticmethod
    def takes(statement: Statement) -> bool:
        params = statement.params
        return isinstance(params, list) and bool(params) and isinstance(params[0], list)

    def ask(self, statement: Statement) -> PQGen[Rows]:
        given = [packed(value) for value in statement.params]
        formats = [Format.BINARY] * len(given)
        if self.prepares:
            name = self._names.get(statement.sql) or (yield from self._prepared(statement.sql))
            self._pgconn.send_query_prepared(name, given, formats, Format.BINARY)
        else:
            self._pgconn.send_query_params(statement.sql.encode(), given, None, formats, Format.BINARY)
        result = _good((yield from generators.execute(self._pgconn)))
        self._reader.set_pgresult(result)
        rows = self._reader.load_rows(0, result.ntuples, tuple)
        self._reader.set_pgresult(None)  # an idle connection keeps nobody's answers
        return rows

    def _prepared(self, sql: str) -> PQGen[bytes]:
        name = b"semel_%d" % len(self._names)
        self._pgconn.send_prepare(name, sql.encode())
        _good((yield from generators.execute(self._pgconn)))
        self._names[sql] = name
        return name


def _good(results: Sequence[PGresult]) -> PGresult:
    for result in results:
        if result.status not in GOOD:
            raise error_from_result(result)
    return results[-1]
