"""What is PostgreSQL's own: batches with repeats, statements that only look, plans that hold, poolers recognised."""

import asyncio
from collections.abc import Iterator
from typing import Any, TypeVar

import psycopg
import pytest

from semel import Acquired, Key, Lease, Occupied, Result, open_async_store
from semel.core.effects import Claim, Complete, Read, Release, Renew
from semel.runtime.drive import drive
from semel.stores.postgres.aio import AsyncPostgresStore
from semel.stores.postgres.sessions import PostgresLink
from semel.stores.postgres.settings import PostgresSettings
from semel.stores.postgres.store import PostgresStore
from semel.stores.sql.statements import Script, Statement
from semel.stores.url import StoreUrl

T = TypeVar("T")
ANSWER = Result("text", b"paid")
HOUR_MS = 3_600_000


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with PostgresStore(settings(postgres_url)) as store:
        yield store


def settings(url: str, **options: object) -> PostgresSettings:
    return PostgresSettings.of(
        StoreUrl.parse(f"{url}?migrate=auto" + "".join(f"&{name}={value}" for name, value in options.items()))
    )


def batch(store: PostgresStore, *calls: Any) -> list[Any]:
    return store._run(store._scripts.answer(calls, None))


def claim(
    name: str, owner: str = "a", fingerprint: str = "1.same", *, lease_ms: int = 60_000, takeover: bool = False
) -> Claim:
    return Claim(Key("batches", "s", name), fingerprint, owner, lease_ms, HOUR_MS, takeover)


def test_of_many_claims_of_one_key_in_one_batch_one_wins(store: PostgresStore) -> None:
    replies = batch(store, *(claim("one", f"owner {number}") for number in range(50)))
    assert [type(reply) for reply in replies] == [Acquired] + [Occupied] * 49
    assert {reply.record.owner for reply in replies[1:]} == {"owner 0"}


def test_of_many_take_overs_of_one_key_in_one_batch_one_wins(store: PostgresStore) -> None:
    batch(store, claim("lapsed", lease_ms=1))
    replies: list[Any] = []
    while not any(isinstance(reply, Acquired) for reply in replies):
        replies = batch(store, *(claim("lapsed", f"owner {number}", takeover=True) for number in range(20)))
    (winner,) = (reply.lease for reply in replies if isinstance(reply, Acquired))
    assert winner.attempt == 2
    assert {reply.record.owner for reply in replies if isinstance(reply, Occupied)} == {winner.owner}


def test_a_take_over_is_for_those_in_the_batch_who_may(store: PostgresStore) -> None:
    """Who may not is told what was there before."""
    old = batch(store, claim("some may", lease_ms=1))[0].lease
    replies: list[Any] = []
    while not any(isinstance(reply, Acquired) for reply in replies):
        replies = batch(
            store,
            claim("some may", "b"),
            claim("some may", "c", "1.other", takeover=True),
            claim("some may", "d", takeover=True),
        )
    patient, mistaken, winner = replies
    assert (winner.lease.owner, winner.lease.attempt) == ("d", 2)
    assert patient.record.owner == mistaken.record.owner == old.owner


def test_who_comes_too_late_to_take_over_claims_again(store: PostgresStore) -> None:
    """Between what a claim sees and what it takes, another one takes it."""
    batch(store, claim("late", lease_ms=1))
    while (seen := batch(store, claim("late", "b"))[0]).record.lease_until_ms > seen.now_ms:
        pass
    asked: list[str] = []
    with store._connections.get()._borrowed() as link:

        def perform(statement: Any) -> Any:
            asked.append(statement.sql)
            if statement.sql == store._scripts._take and asked.count(statement.sql) == 1:
                (other,) = batch(store, claim("late", "b", takeover=True))
                assert isinstance(other, Acquired)
            return link.perform(statement)

        (reply,) = drive(store._scripts.answer([claim("late", "c", takeover=True)], None), perform)
    assert isinstance(reply, Occupied)
    assert (reply.record.owner, reply.record.attempt) == ("b", 2)
    assert asked == [store._scripts._claim, store._scripts._take, store._scripts._claim]


def test_the_same_claim_twice_in_one_batch_is_one_claim(store: PostgresStore) -> None:
    first, again, other = batch(store, claim("twice"), claim("twice"), claim("twice", fingerprint="1.other"))
    assert first == again
    assert isinstance(first, Acquired)
    assert isinstance(other, Occupied)


def test_repeats_of_the_other_calls_in_one_batch(store: PostgresStore) -> None:
    granted = batch(store, *(claim(name) for name in ("complete", "release", "renew")))
    done, gone, kept = (reply.lease for reply in granted)
    stale = Lease(done.key, "nobody we know", 1, 0)
    assert batch(
        store,
        Complete(done, ANSWER, HOUR_MS),
        Complete(stale, ANSWER, HOUR_MS),
        Complete(done, Result("x", b"2"), HOUR_MS),
    ) == [
        True,
        False,
        True,
    ]
    assert batch(store, Release(gone), Release(gone)) == [True, False]
    shorter, longer = batch(store, Renew(kept, 1_000), Renew(kept, 90_000))
    assert shorter == longer
    assert longer.until_ms > kept.until_ms
    completed, released, again = batch(store, Read(done.key), Read(gone.key), Read(done.key))
    assert completed.result == ANSWER
    assert released is None
    assert again == completed


def test_a_large_batch_answers_in_order(store: PostgresStore) -> None:
    names = [f"{number * 7919 % 1000:03}" for number in range(1000)]
    assert [reply.lease.key.name for reply in batch(store, *map(claim, names))] == names
    assert [record.key.name for record in batch(store, *(Read(claim(name).key) for name in names))] == names


def statements(script: Script[T], link: PostgresLink) -> tuple[T, list[str]]:
    asked: list[str] = []

    def perform(statement: Any) -> Any:
        assert isinstance(statement, Statement)
        asked.append(statement.sql)
        return link.perform(statement)

    return drive(script, perform), asked


def test_every_call_is_one_round_trip_and_looking_writes_nothing(store: PostgresStore) -> None:
    """A transaction that wrote or locked a row has a number; one that looked has none."""
    first, second = claim("trips"), claim("trips", "b")
    store.get(first.key)
    with store._connections.get()._borrowed() as link:

        def trips(call: Any, *, writes: bool) -> Any:
            with link.transaction():
                (reply,), asked = statements(store._scripts.answer([call], None), link)
                assert len(asked) == 1
                row = link.execute("SELECT pg_current_xact_id_if_assigned() IS NOT NULL").fetchone()
                assert row == (writes,)
            return reply

        lease = trips(first, writes=True).lease
        assert isinstance(trips(second, writes=False), Occupied)  # in flight
        trips(first, writes=False)  # its own claim again
        trips(Renew(lease, 60_000), writes=True)
        trips(Complete(lease, ANSWER, HOUR_MS), writes=True)
        assert trips(second, writes=False).record.result == ANSWER  # a replay
        trips(Read(first.key), writes=False)


def test_plans_made_for_an_empty_table_look_keys_up(postgres_url: str) -> None:
    """VACUUM knows that there is nothing, and the planner believes it: any walk over the whole table looks cheap."""
    lease = Lease(claim("p").key, "a", 1, 0)
    calls = [claim("p"), Read(lease.key), Complete(lease, ANSWER, 1), Renew(lease, 1), Release(lease)]
    with PostgresStore(settings(postgres_url, schema="emptied")) as store:
        store.get(lease.key)
        with store._connections.get()._borrowed() as link:
            link.execute("VACUUM ANALYZE emptied.semel_records")
            firsts: list[Any] = [next(store._scripts.answer([call], None)) for call in calls]
            owned = Statement(store._scripts._owned, [[b"d"], ["o"]])
            take = Statement(store._scripts._take, firsts[0].params)
            for statement in (*firsts, owned, take):
                rows = link.execute(f"EXPLAIN {statement.sql}".encode(), statement.params).fetchall()
                plan = "\n".join(line for (line,) in rows)
                assert "Seq Scan" not in plan, plan
                assert plan.count("Index Scan using semel_records_pkey") == plan.count("Index Cond") == 1, plan


def test_a_result_that_the_socket_does_not_take_at_once(postgres_url: str) -> None:
    large = Result("bytes", bytes(range(256)) * 4_096 * 24)

    async def use() -> None:
        async with AsyncPostgresStore(settings(postgres_url)) as store:
            claimed = await store._call(claim("large"))
            assert isinstance(claimed, Acquired)
            assert await store.complete(claimed.lease, large, retention_ms=HOUR_MS)
            again = await store._call(claim("large", "b"))
            assert isinstance(again, Occupied)
            assert again.record.result == large

    asyncio.run(use())


def test_a_pooler_is_recognised(postgres_url: str, pgbouncer_url: str) -> None:
    for url, direct in ((postgres_url, True), (pgbouncer_url, False)):
        with PostgresLink.open(settings(url)) as link:
            assert link.direct is direct


def test_batches_in_opposite_order_do_not_wait_for_each_other(postgres_url: str) -> None:
    """With rows locked in the order of arrival, this deadlocks within a few rounds."""

    async def cross() -> None:
        one, other = (AsyncPostgresStore(settings(postgres_url)) for _ in range(2))
        for number in range(30):
            claims = [claim(f"cross {number} {at}", lease_ms=1) for at in range(20)]
            await one._send(claims)
            there = [claim(call.key.name, "x", takeover=True) for call in claims]
            back = [claim(call.key.name, "y", takeover=True) for call in reversed(claims)]
            replies = await asyncio.gather(one._send(there), other._send(back))
            winners = [reply.lease.key for some in replies for reply in some if isinstance(reply, Acquired)]
            assert len(winners) == len(set(winners))
        await one.close()
        await other.close()

    asyncio.run(cross())
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone() == (0,)


def test_an_async_store_outlives_its_event_loop(postgres_url: str) -> None:
    store = open_async_store(f"{postgres_url}?migrate=auto")

    async def use() -> bool:
        reply = await store.claim(
            Key("loops", "s", "n"), "1.same", owner="a", lease_ms=60_000, retention_ms=HOUR_MS, takeover=False
        )
        return isinstance(reply, Acquired)

    async def last() -> bool:
        try:
            return await use()
        finally:
            await store.close()

    assert asyncio.run(use())
    assert asyncio.run(last())


def test_counts_of_a_large_table_are_estimated(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page is sampled with the same chance, so the estimate varies: here by 4 %, and 30 % of it are allowed."""
    with psycopg.connect(postgres_url, autocommit=True) as link:
        link.execute("DROP SCHEMA IF EXISTS estimated CASCADE")
        link.execute("CREATE SCHEMA estimated")
    with PostgresStore(settings(postgres_url, schema="estimated")) as store:
        store.get(claim("counts").key)
        with store._connections.get()._borrowed() as link:
            link.execute(
                "INSERT INTO estimated.semel_records "
                "SELECT n::text::bytea, 0, 0, 4102444800000, 0, 1, 1, false, 'many', 's', n::text, 'f', 'a', 'x', '' "
                "FROM generate_series(1, 20000) n"
            )
            ((pages,),) = link.execute("SELECT pg_relation_size('estimated.semel_records') / 8192").fetchall()
        monkeypatch.setattr("semel.stores.postgres.operate.SAMPLE_PAGES", pages * 3 // 4)
        counts = store.counts()
    assert not counts.exact
    assert 14_000 < counts.succeeded < 26_000
