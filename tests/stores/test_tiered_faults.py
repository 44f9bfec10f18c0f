"""The tiered store when Redis or its database fails: copies answer when they may, and the database decides the rest."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from semel import Acquired, Key, Lease, Occupied, Result, StoreUnavailable, open_async_store, open_store
from semel.codecs.sealed import Sealed
from semel.core.copies import TICKET_MS
from semel.core.records import Claimed
from semel.store import Migratable, Removable, Resolvable, Store, Watchable
from semel.stores.redis.copies import PUT
from semel.stores.tiered.store import TieredStore
from semel.testing import BlockingStore, Fault, FaultProxy
from semel.testing.proxy import ProxyExchange
from servers.postgres import PostgresServer
from servers.redis import RedisServer
from stores.redis_cases import server, sync_store
from stores.tiered_cases import copy_at_once, counted_answers, tiered_url
from waiting import until

KEY = Key("shop", "POST /payments", "order")
RESULT = Result("raw", b"\x00\xffanswer")
DAY_MS = 86_400_000
FAR_MS = 30_000
"""A front time-out that no test reaches by chance."""


def claim(store: Store, key: Key = KEY, owner: str = "another", fingerprint: str = "f", **changes: Any) -> Claimed:
    given = {"lease_ms": 30_000, "retention_ms": DAY_MS, "takeover": False, **changes}
    return store.claim(key, fingerprint, owner=owner, **given)


def granted(claimed: Claimed) -> Lease:
    assert isinstance(claimed, Acquired), claimed
    return claimed.lease


def finish(store: Store, key: Key = KEY, result: Result = RESULT, **changes: Any) -> None:
    assert store.complete(granted(claim(store, key, "owner")), result, **{"retention_ms": DAY_MS, **changes})


def replayed(store: Store, key: Key = KEY) -> Result:
    claimed = claim(store, key)
    assert isinstance(claimed, Occupied), claimed
    assert claimed.record.result is not None
    assert claimed.record.answers(claimed.now_ms)
    return claimed.record.result


def key(number: int) -> Key:
    return Key("shop", "POST /payments", f"order-{number}")


def removable(store: Store) -> Removable:
    assert isinstance(store, Removable)
    return store


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> None:
    copy_at_once(monkeypatch)


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/records.db"


@pytest.fixture
def clean(redis_url: str) -> Iterator[Any]:
    """The driver itself, on an empty front."""
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
        yield client


@pytest.fixture(params=["threads", "tasks"])
def opened(request: pytest.FixtureRequest, clean: Any, redis_url: str, file_url: str) -> Iterator["Opened"]:
    """Opens handles of one face on one front and one file, which are closed at the end."""
    handles: list[Store] = []

    def open_one(front: str = redis_url, back: str = file_url, **options: object) -> Store:
        url = tiered_url(front, back, **{"front_timeout_ms": FAR_MS, **options})
        handles.append(open_store(url) if request.param == "threads" else BlockingStore(open_async_store(url)))
        return handles[-1]

    yield open_one
    for handle in handles:
        handle.close()


def warmed(store: Store) -> Store:
    """It knows the time in the database: it has seen a repeat."""
    finish(store, key(0))
    replayed(store, key(0))
    return store


Opened = Callable[..., Store]


class TestCopies:
    pytestmark = pytest.mark.usefixtures("copied")

    def test_are_the_database_s_record_in_every_part(self, opened: Opened) -> None:
        store = warmed(opened())
        finish(store, refuse_ms=60_000)
        with counted_answers() as answers:
            found = claim(store)
        assert answers == {"succeeded": 1}
        assert isinstance(found, Occupied)
        assert found.record == store.get(KEY)
        assert abs(found.now_ms - time.time() * 1000) < 60_000

    def test_are_made_of_results_when_they_are_completed_while_repeats_come(self, opened: Opened, clean: Any) -> None:
        store = opened()
        finish(store)
        assert clean.dbsize() == 0, "the time in the database is not known yet"
        assert replayed(store) == RESULT
        assert clean.dbsize() == 1
        finish(store, key(2))
        assert clean.dbsize() == 2

    def test_of_results_are_not_made_while_hardly_any_is_repeated(self, opened: Opened, clean: Any) -> None:
        store = warmed(opened())
        for number in range(1, 30):
            finish(store, key(number))
        copied = clean.dbsize()
        assert copied < 15
        finish(store, key(30))
        assert clean.dbsize() == copied
        for _ in range(5):
            assert replayed(store, key(30)) == RESULT
        finish(store, key(31))
        assert clean.dbsize() == copied + 2

    def test_are_made_of_repeats_only_if_that_was_chosen(self, opened: Opened, clean: Any) -> None:
        store = warmed(opened(eager=False))
        finish(store)
        assert clean.dbsize() == 1
        for _ in range(2):
            assert replayed(store) == RESULT
        assert clean.dbsize() == 2

    @pytest.mark.parametrize(
        ("retention_ms", "most_ms"), [(DAY_MS, 60_000), (50_000, 50_000 - TICKET_MS), (TICKET_MS, 0)]
    )
    def test_live_no_longer_than_their_records(
        self, opened: Opened, clean: Any, retention_ms: int, most_ms: int
    ) -> None:
        store = warmed(opened())
        clean.flushdb()
        finish(store, retention_ms=retention_ms)
        lives_ms = [clean.pttl(name) for name in clean.keys("*") if clean.get(name)[:1] != b"\0"]
        assert len(lives_ms) == (1 if most_ms else 0)
        assert all(most_ms - 10_000 < life_ms <= most_ms for life_ms in lives_ms)

    def test_of_large_answers_are_not_made(self, opened: Opened) -> None:
        store, large = warmed(opened()), Result("raw", b"x" * 300_000)
        finish(store, result=large)
        with counted_answers() as answers:
            assert replayed(store) == large
        assert not answers

    def test_that_cannot_be_read_are_none(self, opened: Opened, clean: Any) -> None:
        """A newer version's, or damaged: the database answers."""
        store = warmed(opened())
        clean.flushdb()
        finish(store)
        [name] = clean.keys("*")
        whole = clean.get(name)
        for spoilt in (b"\x02" + whole[1:], whole[:-1], b"", b"hello"):
            clean.set(name, spoilt)
            assert replayed(store) == RESULT
        clean.delete(name)
        clean.lpush(name, "a list")
        assert replayed(store) == RESULT

    def test_of_another_key_are_none(self, opened: Opened, clean: Any) -> None:
        """As if two keys shared one digest."""
        store = warmed(opened())
        clean.flushdb()
        finish(store)
        [name] = clean.keys("*")
        finish(store, key(2), Result("raw", b"another answer"))
        [other] = set(clean.keys("*")) - {name}
        clean.copy(other, name, replace=True)
        assert replayed(store) == RESULT

    def test_of_two_databases_never_meet(self, opened: Opened, file_url: str) -> None:
        one, two = warmed(opened()), warmed(opened(back=f"{file_url}.two"))
        finish(one, result=Result("raw", b"one"))
        finish(two, result=Result("raw", b"two"))
        assert (replayed(one), replayed(two)) == (Result("raw", b"one"), Result("raw", b"two"))

    def test_are_shared_by_those_who_give_the_database_one_name(self, opened: Opened, file_url: str) -> None:
        link = Path(file_url.removeprefix("sqlite:///") + ".link")
        link.symlink_to(file_url.removeprefix("sqlite:///"))
        one = warmed(opened(name="shop"))
        two = opened(back=f"sqlite:///{link}", name="shop")
        replayed(two, key(0))
        finish(one)
        with counted_answers() as answers:
            assert replayed(two) == RESULT
        assert answers == {"succeeded": 1}

    def test_are_sealed_if_the_store_is(self, opened: Opened, clean: Any) -> None:
        inner = warmed(opened())
        store = Sealed(inner, keys={"one": bytes(32)})
        clean.flushdb()
        finish(store)
        [name] = clean.keys("*")
        assert b"answer" not in clean.get(name)
        with counted_answers() as answers:
            assert replayed(store) == RESULT
        assert answers == {"succeeded": 1}

    def test_beside_records_of_a_redis_store_are_no_records(self, opened: Opened, redis_url: str, clean: Any) -> None:
        store = warmed(opened())
        finish(store)
        with sync_store(redis_url) as beside:
            assert beside.get(KEY) is None
            assert beside.scan().records == ()

    def test_answer_while_the_database_is_away(self, redis_url: str, private_postgres: PostgresServer) -> None:
        """That is the proof that replays do not ask the database. What is not copied fails closed."""
        database = private_postgres.create_database("tiered")
        url = tiered_url(redis_url, f"{database}?timeout_ms=300", front_timeout_ms=FAR_MS, name="away")
        store = open_store(url)
        assert isinstance(store, TieredStore)
        with store:
            assert isinstance(store, Migratable)
            store.migrate()
            warmed(store)
            finish(store)
            private_postgres.pause()
            assert [replayed(store) for _ in range(3)] == [RESULT] * 3
            mismatch = claim(store, fingerprint="of another request")
            assert isinstance(mismatch, Occupied)
            assert mismatch.record.fingerprint == "f"
            with pytest.raises(StoreUnavailable):
                claim(store, key(2))
            private_postgres.resume()
            granted(claim(store, key(2)))


class TestRemoval:
    pytestmark = pytest.mark.usefixtures("copied")

    @pytest.fixture(params=["remove", "expire"])
    def end(self, request: pytest.FixtureRequest) -> Callable[[Store], bool]:
        def ends(store: Store) -> bool:
            seen = store.get(KEY)
            assert seen is not None
            ended: bool = getattr(store, request.param)(seen)
            return ended

        return ends

    def test_reaches_every_process(self, opened: Opened, end: Callable[[Store], bool]) -> None:
        one, two = warmed(opened()), opened()
        finish(one)
        assert replayed(two) == replayed(two) == RESULT
        assert end(one)
        assert granted(claim(two)).attempt == 1

    def test_is_refused_when_the_front_cannot_forget(
        self, opened: Opened, end: Callable[[Store], bool], redis_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Other processes may reach it. Nothing is done, and the message says what is to be done."""
        monkeypatch.setattr("semel.stores.tiered.scripts.INSIST_MS", 50)
        other = warmed(opened(name="shop"))
        with FaultProxy(redis_url) as proxy:
            store = opened(front=proxy.url, name="shop")
            finish(store)
            assert replayed(other) == RESULT
            cut = proxy.inject(Fault.CUT_BEFORE, times=None)
            with pytest.raises(StoreUnavailable, match=r"nothing was changed: .* the database's own URL.* 60 s more"):
                end(store)
            assert cut.hits > 1
            assert replayed(other) == RESULT
            assert store.get(KEY) is not None
            proxy.clear()
            assert end(store)
            granted(claim(other))

    def test_is_not_undone_by_a_late_copy(self, opened: Opened, end: Callable[[Store], bool], redis_url: str) -> None:
        """The copy was read before the removal and is on its way. It holds no valid ticket when it arrives."""
        one = warmed(opened(name="shop"))
        with FaultProxy(redis_url) as proxy:
            late = opened(front=proxy.url, name="shop")
            replayed(late, key(0))
            held = proxy.inject(Fault.HOLD_REQUEST, when=is_put)
            with ThreadPoolExecutor(1) as threads:
                work = threads.submit(finish, late)
                assert held.wait()
                assert end(one)
                proxy.let_go()
                work.result()
            granted(claim(one))
            found = claim(late, owner="third")
            assert isinstance(found, Occupied)
            assert found.record.in_progress()

    def test_is_not_undone_by_a_flush_in_the_middle(self, opened: Opened, clean: Any) -> None:
        """What a flushed front takes while the database removes is forgotten once more."""
        one, two = warmed(opened()), opened()
        if not isinstance(one, TieredStore):
            pytest.skip("the scripts of the other face are the same")
        replayed(two, key(0))
        finish(one)
        remove = one._back.remove

        def remove_slowly(seen: Any) -> Any:
            clean.flushdb()
            assert replayed(two) == RESULT  # and it is copied again
            return remove(seen)

        one._back.remove = remove_slowly
        seen = one.get(KEY)
        assert seen is not None
        assert removable(one).remove(seen)
        granted(claim(two))

    def test_lets_no_copy_be_made_in_the_middle(self, opened: Opened, redis_url: str) -> None:
        """Also if the front is lost before it is told again."""
        two = warmed(opened(name="shop"))
        with FaultProxy(redis_url) as proxy:
            one = opened(front=proxy.url, name="shop")
            if not isinstance(one, TieredStore):
                pytest.skip("the scripts of the other face are the same")
            finish(one)
            remove = one._back.remove

            def remove_slowly(seen: Any) -> Any:
                assert replayed(two) == RESULT  # which would be copied
                proxy.inject(Fault.CUT_BEFORE, times=None)
                return remove(seen)

            one._back.remove = remove_slowly
            seen = one.get(KEY)
            assert seen is not None
            assert removable(one).remove(seen)
            granted(claim(two))

    def test_is_not_undone_here_by_an_old_copy_that_comes_back(self, opened: Opened, clean: Any) -> None:
        """A front that failed over to a replica that was behind."""
        store = warmed(opened())
        clean.flushdb()
        finish(store)
        [name] = clean.keys("*")
        old = clean.get(name)
        seen = store.get(KEY)
        assert seen is not None
        assert removable(store).remove(seen)
        clean.set(name, old, px=50_000)
        granted(claim(store))

    def test_of_what_has_changed_says_no(self, opened: Opened) -> None:
        store = warmed(opened())
        finish(store)
        seen = store.get(KEY)
        assert seen is not None
        assert removable(store).remove(seen)
        assert not removable(store).remove(seen)


def is_put(exchange: ProxyExchange) -> bool:
    return PUT.sha.encode() in exchange.request or PUT.text.encode() in exchange.request


class TestFrontAway:
    def test_costs_its_time_out_once_for_many_calls(self, redis_url: str, opened: Opened) -> None:
        with FaultProxy(redis_url) as proxy:
            store = opened(front=proxy.url, front_timeout_ms=200, rest_ms=60_000)
            warmed(store)
            proxy.hold()
            started = time.monotonic()
            for number in range(1, 40):
                finish(store, key(number))
                assert replayed(store, key(number)) == RESULT
            assert time.monotonic() - started < 39 * 0.2 / 2, "each call waited for the front"

    def test_kill_9_in_the_middle_costs_no_effect_and_no_answer(
        self, private_redis: RedisServer, opened: Opened
    ) -> None:
        effects: Counter[str] = Counter()
        answers: dict[str, set[bytes]] = {}
        lock, rounds, keys = threading.Lock(), 24, 12
        stores = [opened(front=private_redis.url, front_timeout_ms=500, rest_ms=10) for _ in range(2)]

        def call(number: int) -> None:
            name = f"order-{number % keys}"
            store, owner = stores[number % 2], f"owner {number}"
            claimed = claim(store, Key("shop", "POST /payments", name), owner)
            if isinstance(claimed, Acquired):
                with lock:
                    effects[name] += 1
                assert store.complete(claimed.lease, Result("raw", owner.encode()), retention_ms=DAY_MS)
            elif claimed.record.result is not None:
                with lock:
                    answers.setdefault(name, set()).add(claimed.record.result.payload)

        with ThreadPoolExecutor(4) as threads:
            for round in range(rounds):
                work = [threads.submit(call, number) for number in range(keys * 2)]
                if round in (4, 12):
                    private_redis.kill()
                elif round in (8, 16):
                    private_redis.restart()
                for each in work:
                    each.result()
        assert effects == {f"order-{number}": 1 for number in range(keys)}
        assert {name: len(seen) for name, seen in answers.items()} == dict.fromkeys(effects, 1)

    def test_that_evicts_is_taken_without_a_word(
        self, file_url: str, opened: Opened, recwarn: pytest.WarningsRecorder, copied: None
    ) -> None:
        with server("--maxmemory-policy", "allkeys-lru", "--appendonly", "no") as evicting:
            store = warmed(opened(front=evicting.url))
            finish(store)
            with counted_answers() as answers:
                assert replayed(store) == RESULT
            assert answers == {"succeeded": 1}
            if not isinstance(store, TieredStore):
                return
            found = {finding.title: finding for finding in store.examine()}
            assert found["front memory"].level == "ok"
            assert "allkeys-lru may evict copies" in found["front memory"].detail
            assert "front eviction" not in found
        assert not recwarn.list

    def test_is_examined_beside_the_database(self, opened: Opened, private_redis: RedisServer) -> None:
        store = opened(front=private_redis.url, front_timeout_ms=300)
        if not isinstance(store, TieredStore):
            pytest.skip("only the sync face is examined")
        titles = [finding.title for finding in store.examine()]
        assert {"file", "clock", "promise"} <= set(titles)
        assert {"front connection", "front version", "front role", "front latency", "front copies"} <= set(titles)
        private_redis.kill()
        [away] = [finding for finding in store.examine() if finding.title == "front connection"]
        assert away.level == "warning"
        assert "replays come from the database" in away.detail
        assert all(finding.level != "problem" for finding in store.examine() if finding.title.startswith("front"))


class TestHints:
    pytestmark = pytest.mark.usefixtures("copied")
    HINT_MS = 5_000

    @pytest.fixture
    def handles(self, opened: Opened) -> tuple[Store, Store]:
        one, two = opened(hint_ms=self.HINT_MS), opened(hint_ms=self.HINT_MS)
        warmed(one)
        replayed(two, key(0))
        return one, two

    def told_by_a_hint(self, store: Store) -> Claimed:
        with counted_answers() as answers:
            claimed = claim(store)
        assert answers == {"in_progress": 1}
        return claimed

    def test_tell_that_work_is_running(self, handles: tuple[Store, Store]) -> None:
        one, two = handles
        lease = granted(claim(one, owner="owner"))
        claim(two)
        claimed = self.told_by_a_hint(two)
        assert isinstance(claimed, Occupied)
        assert claimed.record == one.get(KEY)
        assert claimed.now_ms < claimed.record.lease_until_ms
        assert granted(claim(two, owner="owner")) == lease, "its own lease comes from the database"

    @pytest.mark.parametrize("how", ["complete", "release", "renew", "lapse"])
    def test_end_with_what_they_tell(self, handles: tuple[Store, Store], how: str) -> None:
        one, two = handles
        lease = granted(claim(one, owner="owner"))
        claim(two)
        self.told_by_a_hint(two)
        if how == "complete":
            assert one.complete(lease, RESULT, retention_ms=DAY_MS)
            assert replayed(two) == RESULT
        elif how == "release":
            assert one.release(lease)
            granted(claim(two))
        else:
            assert one.renew(lease, lease_ms=0 if how == "lapse" else 60_000)
            claimed = claim(two)
            assert isinstance(claimed, Occupied)
            assert claimed.record == one.get(KEY)
            assert claimed.record.lapsed(claimed.now_ms) is (how == "lapse")

    def test_end_with_a_resolution(self, handles: tuple[Store, Store]) -> None:
        one, two = handles
        lease = granted(claim(one, owner="owner"))
        assert one.renew(lease, lease_ms=0)
        seen = one.get(KEY)
        assert seen is not None
        assert isinstance(one, Resolvable)
        assert one.resolve(seen, RESULT, retention_ms=DAY_MS)
        assert replayed(two) == RESULT

    def test_are_not_told_at_all_by_default(self, opened: Opened) -> None:
        one = warmed(opened())
        granted(claim(one, owner="owner"))
        with counted_answers() as answers:
            for _ in range(3):
                claim(one)
        assert not answers

    def test_that_an_owner_cannot_take_back_end_by_themselves(self, opened: Opened, redis_url: str) -> None:
        """It lost the front when it released: the hint tells of it a little longer, and then the key is free."""
        two = warmed(opened(hint_ms=300, name="shop"))
        with FaultProxy(redis_url) as proxy:
            one = opened(front=proxy.url, hint_ms=300, name="shop")
            lease = granted(claim(one, owner="owner"))
            claim(two)
            self.told_by_a_hint(two)
            proxy.inject(Fault.CUT_BEFORE, times=None)
            assert one.release(lease)
            began = time.monotonic()
            until(lambda: isinstance(claim(two), Acquired), "the hint does not end")
            assert time.monotonic() - began < 10
            granted(claim(one, owner="another"))  # this process does not believe it at all

    def test_do_not_keep_a_waiter_asking(self, handles: tuple[Store, Store], clean: Any) -> None:
        """When the database says that the work is over, a hint that says otherwise is not believed."""
        one, two = handles
        lease = granted(claim(one, owner="owner"))
        claim(two)
        self.told_by_a_hint(two)
        kept = {name: clean.get(name) for name in clean.keys("*")}
        assert one.release(lease)
        for name, value in kept.items():
            clean.set(name, value, px=60_000)
        assert isinstance(two, Watchable)
        assert two.wait(KEY, owner="owner", timeout_ms=30_000)
        granted(claim(two))
