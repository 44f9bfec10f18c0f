"""Django's connection of this thread, for one short transaction of our own; and what its errors mean."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DatabaseFailure
from django.db import connections, transaction
from django.utils.connection import ConnectionDoesNotExist

from semel.core.effects import Effect
from semel.errors import StoreMisconfigured, StoreUnavailable
from semel.runtime.drive import drive
from semel.stores.django.engines import DjangoEngine, engine_for
from semel.stores.sql import migrations
from semel.stores.sql.statements import Rows, Script, Statement

T = TypeVar("T")
MIGRATE = "run manage.py migrate semel"


class Lender:
    """Runs scripts on the connection that Django has for the alias in the calling thread."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._engine: DjangoEngine | None = None
        self._checked = False
        self._opened_in: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._inherited: list[Any] = []

    @property
    def engine(self) -> DjangoEngine:
        if self._engine is None:
            self._engine = engine_for(self._django_s().vendor, self.alias)
        return self._engine

    def run(self, script: Script[T], *, alone: bool = False, hand_back: bool = False) -> T:
        """Run `script`, in one transaction if `alone`; `hand_back` closes a connection that only this call needed."""
        was_open = self._django_s().connection is not None  # before it is asked anything, which opens it
        connection = self._connection()
        process = "" if connection.connection is None else self.engine.process_of(connection.connection)
        with self._errors(connection, process):
            try:
                self._check(connection)
                with self._transaction() if alone else nullcontext():
                    return drive(script, self._runner(connection))
            finally:
                if hand_back and not was_open and not connection.in_atomic_block:
                    connection.close()

    def migrate(self) -> list[int]:
        """Apply what is missing without Django's book of migrations, which finds it done."""
        connection = self._connection()
        # SQLite's script takes the write lock, and so begins, by itself.
        begin = nullcontext() if self.engine.transactional else self._transaction()
        with self._errors(connection), begin:
            return drive(self.engine.migrate(), self._runner(connection))

    def _transaction(self) -> AbstractContextManager[None]:
        """One that is never part of another: `durable` is Django's own promise of that."""
        made: Any = transaction.atomic(using=self.alias, durable=True)
        begun: AbstractContextManager[None] = made
        return begun

    def _connection(self) -> Any:
        """The connection, if it may be used now, and in this process."""
        connection = self._django_s()
        with self._errors(connection):  # it may have to be opened first
            _refuse_transactions_of_others(connection)
        if connection.connection is not None and self._opened_in.setdefault(connection, os.getpid()) != os.getpid():
            self._inherited.append(connection.connection)  # the parent's socket: neither used nor closed here
            connection.connection = None
        self._opened_in[connection] = os.getpid()
        return connection

    def _django_s(self) -> Any:
        try:
            return connections[self.alias]
        except ConnectionDoesNotExist:
            known = ", ".join(f"django://{alias}" for alias in connections)
            raise StoreMisconfigured(f"DATABASES has no alias {self.alias!r}; there are {known}") from None
        except ImproperlyConfigured as error:
            reason = " ".join(str(error).split())
            raise StoreMisconfigured(
                f"django://{self.alias} needs Django's settings: set DJANGO_SETTINGS_MODULE, or give the database's "
                f"URL. Django says: {reason}"
            ) from None

    def _check(self, connection: Any) -> None:
        if not self._checked:
            run = self._runner(connection)
            drive(migrations.check(self.engine.migrations(), f"django://{self.alias}"), run)
            drive(self.engine.start(begun=connection.in_atomic_block), run)
            self._checked = True

    def _runner(self, connection: Any) -> Callable[[Effect[Any]], Rows]:
        def run(statement: Effect[Any]) -> Rows:
            assert isinstance(statement, Statement)
            with connection.cursor() as cursor:
                if statement.params:
                    cursor.execute(*self.engine.for_django(statement))
                else:
                    cursor.execute(statement.sql)
                rows: Rows = [] if cursor.description is None else cursor.fetchall()
                return rows

        return run

    @contextmanager
    def _errors(self, connection: Any, process: str = "") -> Iterator[None]:
        """The one place where an error of Django's becomes one of ours. A connection that saw one is not used again."""
        try:
            yield
        except DatabaseFailure as error:
            missing = self._tables_are_missing(connection)
            if not connection.in_atomic_block:
                connection.close()
                if process:
                    self.engine.lose(process)
            if missing:
                raise StoreMisconfigured(f"django://{self.alias}: there are no tables of semel; {MIGRATE}") from error
            raise StoreUnavailable(
                f"django://{self.alias}: {' '.join(str(error).split()) or type(error).__name__}"
            ) from error

    def _tables_are_missing(self, connection: Any) -> bool:
        try:
            return "semel_schema" not in connection.introspection.table_names()
        except DatabaseFailure:
            return False


def _refuse_transactions_of_others(connection: Any) -> None:
    """A record in the application's transaction would be rolled back with the work, and unseen until the end of it."""
    if connection.in_atomic_block:
        if connection.atomic_blocks and connection.atomic_blocks[-1]._from_testcase:
            return
        raise StoreMisconfigured(
            f"the connection {connection.alias!r} is inside transaction.atomic: a record there would be rolled back "
            "with the work. Move what opens the transaction inside (ATOMIC_REQUESTS does that for views), "
            "or give the store a database of its own"
        )
    if not connection.get_autocommit():
        raise StoreMisconfigured(
            f"the connection {connection.alias!r} is not in autocommit mode: records would wait for your commit. "
            f"Set DATABASES[{connection.alias!r}]['AUTOCOMMIT'] = True, or give the store a database of its own"
        )
