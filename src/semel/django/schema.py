"""A Django migration operation that applies a migration of the SQL stores: both can use the same tables."""

from __future__ import annotations

from typing import Any

from django.db.migrations.operations.base import Operation

from semel.store import Migratable
from semel.stores.open import open_store

VENDORS = ("sqlite", "postgresql")


class Apply(Operation):
    """Apply one numbered migration of the store. Does nothing on databases of other vendors: they keep no records."""

    reduces_to_sql = True
    reversible = False

    def __init__(self, number: int) -> None:
        self.number = number

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Nothing to do: there are no models."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        connection = schema_editor.connection
        if connection.vendor not in VENDORS or (not schema_editor.collect_sql and self._is_applied(connection)):
            return
        store = open_store(f"django://{connection.alias}")
        assert isinstance(store, Migratable)
        [migration] = [each for each in store.migrations() if each.number == self.number]
        for sql in migration.statements:
            schema_editor.execute(sql, params=None)

    def _is_applied(self, connection: Any) -> bool:
        """Whether the store's own `migrate` has applied it before."""
        if "semel_schema" not in connection.introspection.table_names():
            return False
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM semel_schema WHERE number = %s", [self.number])
            return cursor.fetchone() is not None

    def describe(self) -> str:
        return f"Apply migration {self.number} of semel's tables"
