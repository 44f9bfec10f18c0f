"""Records are found by a digest of their key. It is part of what is stored, so it must never change."""

from collections.abc import Iterator

import pytest

from semel import Acquired, Key, Result
from semel.errors import RecordUnreadable
from semel.store import Filter
from semel.stores.postgres import PostgresStore, Settings
from semel.stores.sql.digests import SIZE, digest_of, tenant_of
from semel.stores.url import StoreUrl
from semel.testing import ManualClock

FIRST, SECOND = Key("first", "s", "n"), Key("second", "s", "n")
ANSWER = Result("text", b"paid")


def test_a_digest_is_what_it_always_was() -> None:
    assert digest_of(Key("shop-1", "POST /pay", "order-1")).hex() == "79326cc09bb1d03349c614833d4bfb"
    assert digest_of(Key("", "", "ü")).hex() == "e3b0c4763797bc42fefddc2494d246"


def test_a_digest_begins_with_its_tenant_s() -> None:
    assert digest_of(Key("t", "a", "b"))[:3] == digest_of(Key("t", "c", "d"))[:3] == tenant_of("t")
    assert len(digest_of(FIRST)) == SIZE


def test_no_part_of_a_key_imitates_another() -> None:
    spellings = [("ab", "c", "d"), ("a", "bc", "d"), ("a", "b", "cd"), ("", "abc", "d"), ("abc", "", "d")]
    assert len({digest_of(Key(*parts))[3:] for parts in spellings}) == len(spellings)


class TestOneDigestInPostgres:
    """Two keys of one digest cannot both be kept. The second is refused, and never shown what is the first one's."""

    @pytest.fixture
    def store(self, postgres_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresStore]:
        one = digest_of(FIRST)
        monkeypatch.setattr("semel.stores.postgres.scripts.digest_of", lambda key: one)
        url = StoreUrl.parse(f"{postgres_url}?migrate=auto&schema=one_digest")
        with PostgresStore(Settings.of(url), clock=clock) as store:
            store.purge(limit=100)
            yield store

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    def claim(self, store: PostgresStore, key: Key, *, retention_ms: int = 1_000) -> Acquired:
        owner = f"{key.tenant}'s"
        claimed = store.claim(key, "f", owner=owner, lease_ms=1_000, retention_ms=retention_ms, takeover=True)
        assert isinstance(claimed, Acquired)
        return claimed

    def test_the_second_is_refused(self, store: PostgresStore) -> None:
        lease = self.claim(store, FIRST).lease
        with pytest.raises(RecordUnreadable, match=r"first.* has the digest of .*second"):
            self.claim(store, SECOND)
        assert store.complete(lease, ANSWER, retention_ms=1_000)
        for ask in (lambda: self.claim(store, SECOND), lambda: store.get(SECOND)):
            with pytest.raises(RecordUnreadable, match="another name"):
                ask()
        found = store.get(FIRST)
        assert found is not None
        assert found.result == ANSWER

    def test_the_second_does_not_take_over_what_lapsed(self, store: PostgresStore, clock: ManualClock) -> None:
        lease = self.claim(store, FIRST, retention_ms=10_000).lease
        clock.advance(5_000)
        with pytest.raises(RecordUnreadable, match="another name"):
            self.claim(store, SECOND)
        assert store.complete(lease, ANSWER, retention_ms=1_000)

    def test_past_the_retention_of_the_first_the_place_is_the_second_s(
        self, store: PostgresStore, clock: ManualClock
    ) -> None:
        assert store.complete(self.claim(store, FIRST).lease, ANSWER, retention_ms=1_000)
        clock.advance(1_000)
        assert store.complete(self.claim(store, SECOND).lease, ANSWER, retention_ms=1_000)
        assert [record.key for record in store.scan(Filter(tenant="first")).records] == []
        assert store.get(SECOND) is not None
        with pytest.raises(RecordUnreadable):
            store.get(FIRST)
