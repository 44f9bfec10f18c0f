"""The MariaDB store, both faces, against the contract."""

from collections.abc import Callable
from contextlib import closing

import pymysql
import pytest

from semel import Key, open_async_store, open_store
from semel.store import AsyncStore, Clock, Store
from semel.testing import AsyncStoreContract, StoreContract
from servers.mariadb import arguments

pytestmark = pytest.mark.timeout(400)


class OnMariadb:
    url: str
    parity_examples = 20

    @pytest.fixture(autouse=True)
    def place(self, mariadb_url: str) -> None:
        self.url = mariadb_url

    def spoil(self, key: Key) -> Callable[[], object]:
        def change(sql: str) -> None:
            with closing(pymysql.connect(**arguments(self.url), autocommit=True)) as connection:
                cursor = connection.cursor()
                assert cursor.execute(f"{sql} WHERE tenant = %s AND name = %s", (key.tenant, key.name)) == 1

        change("UPDATE semel_records SET state = 7")
        return lambda: change("DELETE FROM semel_records")


class TestMariadbStore(OnMariadb, StoreContract):
    def open(self, clock: Clock | None) -> Store:
        return open_store(self.url, clock=clock)


class TestAsyncMariadbStore(OnMariadb, AsyncStoreContract):
    def open(self, clock: Clock | None) -> AsyncStore:
        return open_async_store(self.url, clock=clock)
