"""`within(connection)`: a store bound to your transaction."""

from __future__ import annotations

from typing import Any, TypeVar, Unpack, overload

from semel.codecs.seal import Seal
from semel.connections import driver_for
from semel.core.records import Key
from semel.runtime.arguments import check_options
from semel.runtime.options import block_key
from semel.stores.sql.seal import check_seal
from semel.transaction.blocks import TransactionBlock
from semel.transaction.settings import TransactionOptions, TransactionSettings

R = TypeVar("R")


class Bound:
    """A store bound to one connection or session. It holds nothing, so make one whenever you need it."""

    def __init__(self, connection: object, *, schema: str = "", seal: Seal | None = None) -> None:
        check_seal(seal)
        self._driver = driver_for(connection, schema)
        self._seal = seal

    @overload
    def operation(
        self,
        key: str | Key,
        *,
        returns: type[R],
        scope: str = ...,
        tenant: str = ...,
        fingerprint: object = ...,
        **options: Unpack[TransactionOptions],
    ) -> TransactionBlock[R]: ...
    @overload
    def operation(
        self,
        key: str | Key,
        *,
        scope: str = ...,
        tenant: str = ...,
        fingerprint: object = ...,
        **options: Unpack[TransactionOptions],
    ) -> TransactionBlock[object]: ...
    def operation(
        self,
        key: str | Key,
        *,
        returns: Any = object,
        scope: str | None = None,
        tenant: str = "",
        fingerprint: object = None,
        **options: Unpack[TransactionOptions],
    ) -> TransactionBlock[Any]:
        """A block whose writes and whose record are committed together, or not at all.

        `scope` says what is done: it separates blocks that are given the same keys. `fingerprint` is any data that
        identifies the call: a repeat with another one is refused. `returns` is the type of `op.result` where that is
        more than plain data.
        """
        check_options(options, TransactionOptions, self.operation)
        named = block_key(key, tenant, scope)
        return TransactionBlock(
            self._driver, named, fingerprint, TransactionSettings[Any].of(returns, options), seal=self._seal
        )


def within(connection: object, *, schema: str = "", seal: Seal | None = None) -> Bound:
    """Bind to the transaction of `connection`: of psycopg, asyncpg, sqlite3, aiosqlite, SQLAlchemy or Django.

    The records are those of the ordinary store of that database. `schema` is the PostgreSQL schema of its tables, if
    the search path does not find them. `seal` is the one of that database's sealed store, if results are sealed.
    """
    return Bound(connection, schema=schema, seal=seal)
