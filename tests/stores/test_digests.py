"""Records are found by a digest of their key. It is part of what is stored, so it must never change."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel import Acquired, Key, Lease, Occupied, Result
from semel.core.effects import Claim, Complete, Effect, Read, Release, Renew
from semel.errors import RecordUnreadable
from semel.store import Filter
from semel.stores.memory import MemoryStore
from semel.stores.postgres.settings import PostgresSettings
from semel.stores.postgres.store import PostgresStore
from semel.stores.sql.digests import SIZE, TENANT_SIZE, digest_of, tenant_of
from semel.stores.sqlite.answers import Replied, value_of
from semel.stores.sqlite.store import SqliteStore
from semel.stores.url import StoreUrl
from semel.testing import ManualClock

FIRST, SECOND = Key("first", "s", "n"), Key("second", "s", "n")
ANSWER = Result("text", b"paid")


def test_a_digest_is_what_it_always_was() -> None:
    assert digest_of(Key("shop-1", "POST /pay", "order-1")).hex() == "7932c09bb1d03349c614833d4bfb82"
    assert digest_of(Key("", "", "ü")).hex() == "e3b0763797bc42fefddc2494d24699"


def test_a_digest_begins_with_its_tenant_s() -> None:
    assert {digest_of(Key("t", *parts))[:TENANT_SIZE] for parts in ("ab", "cd")} == {tenant_of("t")}
    assert len(digest_of(FIRST)) == SIZE


def test_no_part_of_a_key_imitates_another() -> None:
    spellings = [("ab", "c", "d"), ("a", "bc", "d"), ("a", "b", "cd"), ("", "abc", "d"), ("abc", "", "d")]
    assert len({digest_of(Key(*parts))[TENANT_SIZE:] for parts in spellings}) == len(spellings)


class TestDigestsInSqlite:
    """Keys of one digest are kept side by side, and each is what the model says, whatever happens to the others."""

    @pytest.fixture
    def one_digest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("scripts", "answers"):
            monkeypatch.setattr(f"semel.stores.sqlite.{module}.number_of", lambda key: 7)

    @pytest.mark.usefixtures("one_digest")
    @pytest.mark.parametrize("seed", range(40))
    def test_batches_on_one_digest_do_what_the_model_says(self, seed: int, tmp_path: Path) -> None:
        self.compare_with_the_model(seed, tmp_path)

    @pytest.mark.parametrize("seed", range(20))
    def test_batches_do_what_the_model_says(self, seed: int, tmp_path: Path) -> None:
        """Here most claims and completions need only their first statement, and no script."""
        self.compare_with_the_model(seed, tmp_path)

    def compare_with_the_model(self, seed: int, tmp_path: Path) -> None:
        drawn, clock = random.Random(seed), ManualClock()
        keys = [Key("t", "s", name) for name in "abc"]
        with MemoryStore(clock=clock) as model, SqliteStore(str(tmp_path / "one.db"), clock=clock) as store:
            for _ in range(40):
                clock.advance(drawn.choice((0, 0, 1, 50, 200)))
                calls = [any_call(drawn, drawn.choice(keys)) for _ in range(drawn.choice((1, 1, 2, 4)))]
                answers = store._database.get().writer.run(calls)
                assert answers == [Replied(model._call(call)) for call in calls]
                assert [store.get(key) for key in keys] == (there := [model.get(key) for key in keys])
                assert store._database.get().look([Read(key) for key in keys]) == [Replied(each) for each in there]

    @pytest.mark.usefixtures("one_digest")
    def test_a_place_that_is_free_again_is_not_a_second_one(self, tmp_path: Path) -> None:
        """The first goes while the second is being claimed by two: one of them has it."""
        first, second = Key("t", "s", "first"), Key("t", "s", "second")
        with SqliteStore(str(tmp_path / "one.db")) as store:
            run = store._database.get().writer.run
            [held] = map(value_of, run([claim_of(first, "a")]))
            answers = run([claim_of(second, "a"), Release(held.lease), claim_of(second, "b")])
            assert [type(value_of(answer)) for answer in answers] == [Acquired, bool, Occupied]
            assert [record.key for record in store.scan().records] == [second]


def claim_of(key: Key, owner: str, *, lease_ms: int = 10, retention_ms: int = 100, takeover: bool = False) -> Claim:
    return Claim(key, "f", owner, lease_ms, retention_ms, takeover)


def any_call(drawn: random.Random, key: Key) -> Effect[Any]:
    owner = drawn.choice("xyz")
    lease = Lease(key, owner, 1, 0)
    claims = [
        claim_of(key, owner, lease_ms=lease_ms, retention_ms=retention_ms, takeover=takeover)
        for lease_ms in (10, 100)
        for retention_ms in (100, 1_000)
        for takeover in (False, True)
    ]
    kinds: list[Effect[Any]] = [
        drawn.choice(claims),
        drawn.choice(claims),
        Complete(lease, drawn.choice((ANSWER, Result("http.1", b"no", ok=False))), drawn.choice((50, 500))),
        Renew(lease, 100),
        Release(lease),
        Release(lease),
    ]
    return drawn.choice(kinds)


class TestOneDigestInPostgres:
    """Two keys of one digest cannot both be kept. The second is refused, and never shown what is the first one's."""

    @pytest.fixture
    def store(self, postgres_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresStore]:
        one = digest_of(FIRST)
        monkeypatch.setattr("semel.stores.postgres.scripts.digest_of", lambda key: one)
        url = StoreUrl.parse(f"{postgres_url}?migrate=auto&schema=one_digest")
        with PostgresStore(PostgresSettings.of(url), clock=clock) as store:
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
