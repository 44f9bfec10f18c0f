"""Calls of one key that share a batch on MariaDB."""

from contextlib import closing

from semel import Key
from semel.core.effects import Release
from semel.stores.mariadb import scripts
from semel.stores.mariadb.settings import MariadbSettings
from semel.stores.mariadb.store import MariadbStore
from semel.stores.url import StoreUrl
from semel.testing.calls import claim, granted


class TestMariadbStoreBatches:
    def test_a_repeated_release_finds_nothing_to_give_back(self, mariadb_url: str) -> None:
        with closing(MariadbStore(MariadbSettings.of(StoreUrl.parse(mariadb_url)))) as store:
            store.migrate()
            lease = granted(claim(store, Key("t", "s", "k"), "owner"))
            assert store._run(scripts.release([Release(lease)] * 2, None)) == [True, False]
