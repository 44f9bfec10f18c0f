"""The outboxes of the stores: equal to the model, whatever is asked, and right when something is in the way."""

import asyncio
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from semel import StoreMisconfigured, StoreUnavailable, open_async_store, open_store
from semel.core import outbox_model
from semel.core.effects import Effect
from semel.core.outbox import (
    AddMessage,
    CountMessages,
    DeadMessage,
    DiscardMessages,
    FailedMessage,
    ListMessages,
    MessageState,
    OutboxCounts,
    OutboxFilter,
    PurgeMessages,
    RedriveMessages,
    SettleMessages,
    TakeMessages,
    Taken,
    UnreadableMessage,
)
from semel.core.outbox_model import Outbox
from semel.store import AsyncOutboxed, Outboxed
from semel.stores.mariadb import outbox as mariadb_outbox
from semel.stores.mariadb.driver import MariadbLink
from semel.stores.mariadb.settings import MariadbSettings
from semel.stores.postgres.outbox import PostgresOutbox
from semel.stores.sql.messages import LOOK_AGAIN_MS
from semel.stores.sql.statements import Statement
from semel.stores.url import StoreUrl
from semel.testing.clock import ManualClock
from stores.outboxes import (
    COLUMNS,
    LEASE_MS,
    Ask,
    MariadbPlace,
    Place,
    PostgresPlace,
    SqlitePlace,
    message,
    names,
    open_asking,
    open_async_asking,
    place_of,
    publish_all,
    take,
)
from waiting import until

pytestmark = pytest.mark.timeout(300)
EXAMPLES = int(os.environ.get("SEMEL_PARITY_EXAMPLES", "30"))
PHASES = [Phase.generate] if "CI" in os.environ else [Phase.generate, Phase.shrink]
"""A seeded fault need not be made small, which takes a server minutes."""
Open = Callable[..., tuple[Ask, Callable[[], None]]]
FACES: dict[str, Open] = {"sync": open_asking, "async": open_async_asking}
LIST_ALL = ListMessages(OutboxFilter(), 1_000)


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(request.param, request, tmp_path)


@pytest.fixture(params=["postgres", "mariadb"])
def server_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(request.param, request, tmp_path)


@pytest.fixture(params=list(FACES))
def ask(request: pytest.FixtureRequest, place: Place, clock: ManualClock) -> Iterator[Ask]:
    asking, close = FACES[request.param](place.url, clock)
    yield asking
    close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000)


owners = st.sampled_from("abc")
keys = st.sampled_from([None, "k", "l"])
few = st.integers(1, 4)
ticks = st.integers(1, 12)
some = st.lists(st.integers(0, 9), max_size=5, unique=True)
states = st.sampled_from([None, *MessageState])


class History(RuleBasedStateMachine):
    """One history of an outbox that is empty in the beginning. Messages are named by their place in the history."""

    def __init__(self, place: Place, ask: Ask, clock: ManualClock) -> None:
        super().__init__()
        self.place, self.ask, self.clock = place, ask, clock
        self.model, self.numbers, self.holes, self.added = Outbox(), [1], list[int](), 0

    @initialize()
    def empty(self) -> None:
        self.place.sql("DELETE FROM semel_outbox")

    def both(self, call: Effect[Any]) -> Any:
        reply = self.ask(call)
        self.model, expected = outbox_model.answer(self.model, call, self.clock.now_ms)
        assert reply == expected, f"{call} at {self.clock.now_ms}: the store says {reply}, the model {expected}"
        return reply

    def of(self, places: list[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.numbers[each % len(self.numbers)] for each in places))

    @rule(key=keys, topic=st.sampled_from(["orders", "bills"]))
    def add(self, key: str | None, topic: str) -> None:
        self.added += 1
        one = message(f"m{self.added}", key, topic=topic, headers={"trace": str(self.added)})
        [sequence] = self.place.add(one, now_ms=self.clock.now_ms)
        self.model, _ = outbox_model.show(self.model, sequence, one, self.clock.now_ms)
        self.numbers.append(sequence)

    @rule()
    def begin_to_add(self) -> None:
        [sequence] = self.place.add(message("held back"), now_ms=self.clock.now_ms)
        self.place.sql("DELETE FROM semel_outbox WHERE id = 'held back'")
        self.holes.append(sequence)

    @rule(key=keys)
    def commit_late(self, key: str | None) -> None:
        if self.holes:
            self.added += 1
            sequence, one = self.holes.pop(0), message(f"late{self.added}", key)
            self.place.insert_late(sequence, one, self.clock.now_ms)
            self.model, _ = outbox_model.show(self.model, sequence, one, self.clock.now_ms)
            self.numbers.append(sequence)

    @rule(owner=owners, count=few, lease_ms=ticks, by_key=st.booleans() | st.just(True), dead_block=st.booleans())
    def take(self, owner: str, count: int, lease_ms: int, by_key: bool, dead_block: bool) -> None:
        self.both(TakeMessages(owner, count, lease_ms, by_key, dead_block))

    @rule(owner=owners, published=some, failed=some, dead=some, untried=some, delay_ms=st.integers(0, 9))
    def settle(self, owner: str, published: Any, failed: Any, dead: Any, untried: Any, delay_ms: int) -> None:
        seen: set[int] = set()

        def fresh(places: list[int]) -> list[int]:
            found = [each for each in self.of(places) if each not in seen]
            seen.update(found)
            return found

        self.both(
            SettleMessages(
                owner,
                tuple(fresh(published)),
                tuple(FailedMessage(each, "busy", delay_ms) for each in fresh(failed)),
                tuple(DeadMessage(each, "too large") for each in fresh(dead)),
                tuple(fresh(untried)),
            )
        )

    @rule(owner=owners)
    def publish_what_is_held(self, owner: str) -> None:
        held = [each.sequence for each in self.model.in_order() if each.owner == owner]
        self.both(SettleMessages(owner, published=tuple(held)))

    @rule(older_ms=st.integers(0, 9), limit=few)
    def purge(self, older_ms: int, limit: int) -> None:
        """Which of those that were published at the same time are purged first is the store's choice."""
        call = PurgeMessages(older_ms, limit)
        gone = self.ask(call)
        kept = {each.sequence for each in self.ask(LIST_ALL).entries}
        before = self.model
        _, expected = outbox_model.answer(before, call, self.clock.now_ms)
        left = [each for each in before.in_order() if each.sequence not in kept]
        assert gone == expected == len(left)
        oldest = sorted(each.settled_ms for each in before.of_state(MessageState.PUBLISHED))
        assert sorted(each.settled_ms for each in left) == oldest[:gone]
        assert all(each.state is MessageState.PUBLISHED for each in left)
        self.model = before.but(gone=left)

    @rule(places=some)
    def redrive(self, places: list[int]) -> None:
        self.both(RedriveMessages(self.of(places)))

    @rule(places=some)
    def discard(self, places: list[int]) -> None:
        self.both(DiscardMessages(self.of(places)))

    @rule(state=states, key=keys, topic=st.sampled_from([None, "bills"]), limit=few, after=st.integers(0, 5), old=ticks)
    def show(self, state: Any, key: Any, topic: Any, limit: int, after: int, old: int) -> None:
        wanted = OutboxFilter(state, topic, key, id_prefix="m" if after % 2 else "", older_than_ms=old - 1)
        self.both(ListMessages(wanted, limit, min(self.numbers) - 1 + after))

    @rule(by_ms=ticks)
    def wait(self, by_ms: int) -> None:
        self.clock.advance(by_ms)

    @invariant()
    def is_equal(self) -> None:
        self.both(LIST_ALL)
        self.both(CountMessages())


class TestParity:
    def test_every_history_reads_as_the_model_s(self, place: Place, ask: Ask, clock: ManualClock) -> None:
        class HistoryHere(History):
            def __init__(self) -> None:
                super().__init__(place, ask, clock)

        run_state_machine_as_test(
            HistoryHere,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=30,
                deadline=None,
                database=None,
                report_multiple_bugs=False,
                phases=PHASES,
                suppress_health_check=list(HealthCheck),
            ),
        )


class TestReading:
    """What cannot be read is named and kept, and what comes after it waits."""

    def test_a_waiting_message_with_unreadable_headers(self, place: Place, ask: Ask, clock: ManualClock) -> None:
        place.add(*(message(name, name[0]) for name in ("a1", "a2", "b1", "a3")), now_ms=clock.now_ms)
        place.sql("UPDATE semel_outbox SET headers = 'not JSON' WHERE id = 'a2'")
        assert names(take(ask)) == ["a1", "b1"]
        page = ask(LIST_ALL)
        assert [each.message.id for each in page.entries] == ["a1", "b1", "a3"]
        [named] = page.unreadable
        assert isinstance(named, UnreadableMessage)
        assert "its headers are no JSON object of texts: upgrade semel" in named.reason
        assert ask(CountMessages()).waiting == 4

        publish_all(ask, "first", [Taken(each.sequence, each.message) for each in page.entries[:2]])
        assert names(take(ask, "second")) == []
        place.sql("UPDATE semel_outbox SET headers = '{}' WHERE id = 'a2'")
        clock.advance(LOOK_AGAIN_MS)
        taken = take(ask, "second")
        assert names(taken) == ["a2", "a3"]
        assert [each.message.attempt for each in taken] == [1, 1]

    def test_a_state_that_this_version_does_not_know(self, place: Place, ask: Ask, clock: ManualClock) -> None:
        place.add(*(message(name, name[0]) for name in ("a1", "a2", "b1")), now_ms=clock.now_ms)
        place.sql("UPDATE semel_outbox SET state = 7 WHERE id = 'a1'")
        assert names(take(ask)) == ["b1"]
        page = ask(ListMessages(OutboxFilter(state=MessageState.DEAD), 10))
        assert (len(page.entries), len(page.unreadable)) == (0, 1)
        assert "upgrade semel" in page.unreadable[0].reason
        assert ask(CountMessages()) == OutboxCounts(2, 0, 0, 0, 1)
        clock.advance(10)
        assert ask(PurgeMessages(0, 10)) == 0
        assert ask(DiscardMessages((page.unreadable[0].sequence,))) == 0

    def test_pages_count_what_cannot_be_read(self, place: Place, ask: Ask) -> None:
        place.add(*(message(f"m{number}") for number in range(5)))
        place.sql("UPDATE semel_outbox SET state = 7 WHERE id IN ('m0', 'm3')")
        first = ask(ListMessages(OutboxFilter(), 3))
        second = ask(ListMessages(OutboxFilter(), 3, first.after))
        assert [len(first.entries), len(first.unreadable), len(second.entries), len(second.unreadable)] == [2, 1, 1, 1]
        assert second.after is None


class TestCallsOfOthers:
    def test_a_bad_call_is_refused_before_the_store_is_asked(self, ask: Ask) -> None:
        with pytest.raises(ValueError, match="count must be between"):
            ask(TakeMessages("o", 0, 1))
        with pytest.raises(TypeError, match=r"within\(connection\)\.publish"):
            ask(AddMessage(message("m")))


class TestPurge:
    def test_published_rows_beside_live_traffic(self, place: Place) -> None:
        """A batch of a purge is bounded, waiting messages stay, and a relay is not kept waiting."""
        total, live = 100_000, 500
        values = "1, 1, 'p' || g, 'orders', NULL, 'text/plain', '{}', $1, 1, 1"
        if isinstance(place, SqlitePlace):
            numbers = f"WITH RECURSIVE n (g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM n WHERE g < {total})"
            source = "n"
        elif isinstance(place, MariadbPlace):
            numbers, source = "", f"(SELECT seq AS g FROM seq_1_to_{total}) n"
            values = values.replace("'p' || g", "CONCAT('p', g)")
        else:
            numbers, source = "", f"generate_series(1, {total}) g"
        columns = f"{', '.join(COLUMNS)}, state, settled_ms"
        place.sql(f"{numbers} INSERT INTO semel_outbox ({columns}) SELECT {values} FROM {source}", b"x" * 100)
        place.add(*(message(f"m{number}", f"k{number % 7}") for number in range(live)))
        asks = [open_asking(place.url) for _ in range(2)]
        (ask, close), (purging, close_purging) = asks
        worst_ms, batches = 0.0, list[int]()

        def purge() -> None:
            while not batches or batches[-1]:
                batches.append(purging(PurgeMessages(1_000, 1_000)))

        purger = threading.Thread(target=purge)
        purger.start()
        seen: list[str] = []
        while purger.is_alive() or len(seen) < live:
            began = time.monotonic()
            taken = take(ask, f"relay {len(seen)}", 5)
            worst_ms = max(worst_ms, 1_000 * (time.monotonic() - began))
            seen += names(taken)
            publish_all(ask, f"relay {len(seen) - len(taken)}", taken)
        purger.join()
        counts = ask(CountMessages())
        close()
        close_purging()
        assert sum(batches) >= total
        assert max(batches) <= 1_000
        assert counts == OutboxCounts(0, total + live - sum(batches), 0, None)
        assert sorted(seen) == sorted(f"m{number}" for number in range(live))
        assert worst_ms < 2_000, f"a take waited {worst_ms:.0f} ms"


class TestTransactions:
    def test_a_commit_that_comes_late_is_published(self, server_place: Place) -> None:
        place = server_place
        ask, close = open_asking(place.url)
        with place.connected() as execute:
            place.insert(execute, message("late"))
            place.add(message("early"))
            assert publish_all(ask, "first", take(ask)) == 1
            assert take(ask, "second") == ()
        assert names(take(ask, "third")) == ["late"]
        close()

    def test_a_take_does_not_wait_for_another_one(self, server_place: Place) -> None:
        """Another relay is in the middle of its take: it has locked the first messages, and says nothing."""
        place = server_place
        place.add(*(message(f"{key}-{number}", key) for key in "ab" for number in range(30)), message("x"))
        ask, close = open_asking(place.url)
        with place.connected() as execute:
            execute("SELECT 1 FROM semel_outbox WHERE id IN ('a-0', 'b-2') FOR UPDATE")
            assert names(take(ask, "second", 3)) == ["b-0", "b-1", "x"]
            assert names(take(ask, "third", 3)) == []
        assert names(take(ask, "fourth", 3)) == ["a-0", "a-1", "a-2"]
        close()

    def test_a_message_that_was_taken_since_the_snapshot(self, postgres_url: str) -> None:
        """Whoever has the lock takes the first message while another take stands between its snapshot and its locks."""
        place = PostgresPlace(postgres_url)
        place.add(message("a-0", "a"), message("a-1", "a"))
        ask, close = open_asking(place.url)
        slow = PostgresOutbox().answer(TakeMessages("slow", 10, LEASE_MS), None)
        statement = next(slow)
        assert isinstance(statement, Statement)
        sql = statement.sql.replace(
            "AND o.available_ms <= (SELECT now_ms FROM moment)\n    ORDER BY o.sequence LIMIT $8",
            "AND o.available_ms <= (SELECT now_ms FROM moment) AND pg_advisory_xact_lock_shared(7) IS NOT NULL\n"
            "    ORDER BY o.sequence LIMIT $8",
        )
        assert "pg_advisory_xact_lock_shared" in sql
        found: list[Any] = []
        with place.connected() as gate:
            gate("SELECT pg_advisory_xact_lock(7)")
            thread = threading.Thread(target=lambda: found.extend(place.sql(sql, *statement.params)))
            thread.start()
            until(lambda: gate("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))
            assert names(take(ask, "quick", 1)) == ["a-0"]
        thread.join()
        assert [row[1] for row in found] == [None]
        close()

    def test_a_message_that_was_taken_between_the_steps_of_a_take(self, mariadb_url: str) -> None:
        """On MariaDB, where the steps are statements: another relay takes the first message between them."""
        place = MariadbPlace(mariadb_url)
        place.add(message("a-0", "a"), message("a-1", "a"), message("b-0", "b"))
        ask, close = open_asking(place.url)
        slow = mariadb_outbox.answer(TakeMessages("slow", 10, LEASE_MS), None)
        link = MariadbLink.open(MariadbSettings.of(StoreUrl.parse(place.url)), time.monotonic() + 30)
        reply = link.perform(next(slow))
        assert names(take(ask, "quick", 1)) == ["a-0"]
        assert names(finish(slow, reply, link.perform)) == ["b-0"]
        link.close()
        close()


def finish(script: Any, reply: Any, perform: Callable[[Any], Any]) -> Any:
    """What a script gives that has got its first reply already."""
    try:
        while True:
            reply = perform(script.send(reply))
    except StopIteration as stop:
        return stop.value


class TestFailures:
    def test_tables_without_the_second_migration_are_refused(self, postgres_url: str) -> None:
        place = PostgresPlace(postgres_url)
        place.sql("DELETE FROM semel_schema WHERE number = 2")
        with closing(open_store(place.url)) as store:
            assert isinstance(store, Outboxed)
            with pytest.raises(
                StoreMisconfigured, match="the schema has version 1, this semel needs 2; run `semel mig"
            ):
                store.outbox(CountMessages())
        place.sql("INSERT INTO semel_schema VALUES (2, 'messages', 1)")

    def test_a_server_that_is_away(self) -> None:
        nowhere = ("postgresql://127.0.0.1:1/nothing", "mariadb://127.0.0.1:1/nothing")
        for opened, url in itertools.product((open_asking, open_async_asking), nowhere):
            ask, close = opened(url)
            with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1"):
                ask(CountMessages())
            close()

    def test_a_damaged_file_does_not_hide_other_messages(self, tmp_path: Path) -> None:
        place = SqlitePlace(tmp_path / "semel.db")
        place.add(message("m1"), message("m2"))
        place.sql("UPDATE semel_outbox SET headers = CAST(x'ff' AS TEXT) WHERE id = 'm1'")
        ask, close = open_asking(place.url)
        assert names(take(ask)) == ["m2"]
        assert "bytes where there should be text" in ask(LIST_ALL).unreadable[0].reason
        close()

    def test_a_relay_that_is_killed_holds_its_messages_until_its_lease_ends(self, place: Place) -> None:
        place.add(*(message(f"m{number}", "k") for number in range(3)))
        victim = subprocess.Popen([sys.executable, "-c", TAKER, place.url], stdout=subprocess.PIPE, text=True)
        assert victim.stdout is not None
        assert victim.stdout.readline() == "3\n"
        victim.kill()
        victim.wait()
        victim.stdout.close()
        ask, close = open_asking(place.url)
        assert names(take(ask, "early")) == []
        taken = until(lambda: take(ask, "second"))
        assert names(taken) == ["m0", "m1", "m2"]
        assert {each.message.attempt for each in taken} == {1}
        assert ask(SettleMessages("victim", published=(1, 2, 3))) == 0
        assert publish_all(ask, "second", taken) == 3
        close()


TAKER = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from stores.outboxes import open_asking, take
ask, close = open_asking(sys.argv[1])
print(len(take(ask, "victim", lease_ms=3_000)), flush=True)
time.sleep(60)
"""


class TestWaiting:
    @pytest.mark.parametrize("kind", ["sqlite", "postgres", "pgbouncer"])
    def test_a_message_wakes_a_relay_and_nothing_else_holds_it_up(
        self, kind: str, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        place = place_of(kind, request, tmp_path)
        url = request.getfixturevalue("pgbouncer_url") if kind == "pgbouncer" else place.url

        async def waits() -> tuple[float, float]:
            store = open_async_store(url)
            assert isinstance(store, AsyncOutboxed)
            loop = asyncio.get_running_loop()
            for _ in range(2):  # the first ones may wake early
                began = loop.time()
                await store.wait_for_messages(400)
            idle_s, began = loop.time() - began, loop.time()
            waiting = asyncio.ensure_future(store.wait_for_messages(5_000 if kind != "pgbouncer" else 300))
            await asyncio.sleep(0.05)
            await asyncio.to_thread(announce, place)
            await waiting
            await store.close()
            return idle_s, loop.time() - began

        idle_s, woken_s = asyncio.run(waits())
        assert 0.3 < idle_s < 2.5
        assert woken_s < 2.5

    def test_a_lost_listener_only_means_to_poll(self, postgres_url: str) -> None:
        place = PostgresPlace(postgres_url)

        async def waits() -> list[float]:
            store = open_async_store(place.url)
            assert isinstance(store, AsyncOutboxed)
            loop, times = asyncio.get_running_loop(), list[float]()
            await store.wait_for_messages(2_000)
            place.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
            for _ in range(3):
                began = loop.time()
                await store.wait_for_messages(200)
                times.append(loop.time() - began)
            await store.close()
            return times

        assert all(each < 1.5 for each in asyncio.run(waits()))


def announce(place: Place) -> None:
    with place.connected() as execute:
        place.insert(execute, message("new"))
        if isinstance(place, PostgresPlace):
            execute("SELECT pg_notify('semel_outbox', '')")


def test_a_redriven_message_has_all_its_attempts(place: Place, ask: Ask) -> None:
    [sequence] = place.add(message("m1"))
    take(ask)
    assert ask(SettleMessages("first", dead=(DeadMessage(sequence, "too large"),))) == 1
    assert ask(RedriveMessages((sequence,))) == 1
    [taken] = take(ask)
    assert taken.message.attempt == 1


def test_a_dead_message_holds_back_its_key_only_if_it_is_to_block(place: Place, ask: Ask, clock: ManualClock) -> None:
    first, _ = place.add(message("m1", "k"), message("m2", "k"), now_ms=clock.now_ms)
    assert names(ask(TakeMessages("first", 1, LEASE_MS))) == ["m1"]
    assert ask(SettleMessages("first", dead=(DeadMessage(first, "too large"),))) == 1
    assert names(ask(TakeMessages("second", 10, LEASE_MS, dead_block=True))) == []
    assert names(ask(TakeMessages("second", 10, LEASE_MS))) == ["m2"]


def test_what_was_published_just_now_is_not_purged(place: Place, ask: Ask, clock: ManualClock) -> None:
    place.add(message("m1"), now_ms=clock.now_ms)
    publish_all(ask, "first", take(ask))
    clock.advance(999)
    assert ask(PurgeMessages(1_000, 10)) == 0
    clock.advance(1)
    assert ask(PurgeMessages(1_000, 10)) == 1


def test_a_message_that_was_given_back_has_used_no_attempt(place: Place, ask: Ask, clock: ManualClock) -> None:
    [sequence] = place.add(message("m1"), now_ms=clock.now_ms)
    for _ in range(2):
        [taken] = take(ask)
        assert taken.message.attempt == 1
        assert ask(SettleMessages("first", untried=(sequence,))) == 1
