"""What is stored: names that cannot collide, values that cannot be misread, and no write that is not needed."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.crc import key_slot

from semel import Key, Lease, Occupied, Record, RecordUnreadable, Result, State
from semel.store import Counts
from semel.stores.redis.layout import frame, name_of
from semel.stores.redis.store import RedisStore
from stores.redis_cases import CLAIM, KEY, RESULT, async_store, client, granted, key, sync_store


@pytest.fixture
def driver(redis_url: str) -> Iterator[Any]:
    with client(redis_url) as driver:
        driver.flushdb()
        yield driver


@pytest.fixture
def store(redis_url: str, driver: Any) -> Iterator[RedisStore]:
    with sync_store(redis_url) as store:
        yield store


def name(key: Key) -> bytes:
    return name_of(b"semel", frame(key))


SEEN = Record(KEY, "f", State.IN_PROGRESS, "owner", 1, 0, 0, 0)
CALLS: dict[str, Callable[[RedisStore], object]] = {
    "claim": lambda store: store.claim(KEY, "f", owner="other", **CLAIM),
    "renew": lambda store: store.renew(Lease(KEY, "owner", 1, 0), lease_ms=1000),
    "complete": lambda store: store.complete(Lease(KEY, "owner", 1, 0), RESULT, retention_ms=1000),
    "release": lambda store: store.release(Lease(KEY, "owner", 1, 0)),
    "resolve": lambda store: store.resolve(SEEN, None, retention_ms=1000),
    "get": lambda store: store.get(KEY),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("value", [b"\x02the next format", b"\x01", b"", b"\x01" * 40, b"\x00" * 100, b"text"])
def test_a_value_of_another_form_is_unreadable_not_absent(
    store: RedisStore, driver: Any, call: str, value: bytes
) -> None:
    driver.set(name(KEY), value)
    with pytest.raises(RecordUnreadable, match="does not know"):
        CALLS[call](store)
    assert driver.get(name(KEY)) == value


@pytest.mark.parametrize("call", CALLS)
def test_a_value_of_another_type_is_unreadable(store: RedisStore, driver: Any, call: str) -> None:
    driver.hset(name(KEY), "field", "value")
    with pytest.raises(RecordUnreadable, match="choose another option prefix"):
        CALLS[call](store)
    assert store.purge(limit=10) == 0


@pytest.mark.parametrize("call", CALLS)
def test_a_collision_of_names_never_replays_the_other_answer(store: RedisStore, driver: Any, call: str) -> None:
    other = granted(store.claim(key(1), "f", owner="owner", **CLAIM))
    store.complete(other, RESULT, retention_ms=60_000)
    driver.copy(name(key(1)), name(KEY))
    with pytest.raises(RecordUnreadable, match=key(1).name_digest):
        CALLS[call](store)


def test_a_record_that_is_cut_short_is_unreadable(store: RedisStore, driver: Any) -> None:
    granted(store.claim(KEY, "f", owner="owner", **CLAIM))
    whole = driver.get(name(KEY))
    for size in range(1, len(whole)):
        driver.set(name(KEY), whole[:size])
        for call in ("claim", "complete", "get"):
            with pytest.raises(RecordUnreadable):
                CALLS[call](store)


def test_purge_and_counts_beside_unreadable_records(store: RedisStore, driver: Any) -> None:
    driver.set(name(KEY), b"\x02the next format")
    driver.hset(name(key(1)), "field", "value")
    assert store.purge(limit=10) == 0
    assert store.counts() == Counts(0, 0, 0, 0, unreadable=2)
    page = store.scan()
    assert (page.records, page.cursor) == ((), None)
    assert {each.place.encode() for each in page.unreadable} == {name(KEY), name(key(1))}
    reasons = sorted(each.reason for each in page.unreadable)
    assert "does not know" in reasons[0]
    assert "choose another option prefix" in reasons[1]


def test_an_unreadable_record_is_one_caller_s_error(redis_url: str, driver: Any) -> None:
    driver.set(name(KEY), b"\x02the next format")

    async def run() -> list[Any]:
        async with async_store(redis_url) as store:
            claims = (store.claim(each, "f", owner="owner", **CLAIM) for each in (key(1), KEY, key(2)))
            replies = await asyncio.gather(*claims, return_exceptions=True)
            releases = (store.release(Lease(each, "owner", 1, 0)) for each in (key(1), KEY, key(2)))
            return [*replies, *await asyncio.gather(*releases, return_exceptions=True)]

    kinds = [type(reply).__name__ for reply in asyncio.run(run())]
    assert kinds == ["Acquired", "RecordUnreadable", "Acquired", "bool", "RecordUnreadable", "bool"]


def test_a_key_of_another_type_is_one_caller_s_error_and_nobody_is_asked_twice(redis_url: str, driver: Any) -> None:
    """A release that is repeated says no: its neighbour's failure must not make the batch run again."""
    driver.hset(name(KEY), "field", "value")

    async def run() -> list[Any]:
        async with async_store(redis_url) as store:
            for each in (key(1), key(2)):
                granted(await store.claim(each, "f", owner="owner", **CLAIM))
            releases = (store.release(Lease(each, "owner", 1, 0)) for each in (key(1), KEY, key(2)))
            return list(await asyncio.gather(*releases, return_exceptions=True))

    first, middle, last = asyncio.run(run())
    assert (first, type(middle), last) == (True, RecordUnreadable, True)
    assert driver.keys("*") == [name(KEY)]


CRAFTED = [
    Key("a}{b", "s", "n"),
    Key("a", "}{bs", "n"),
    Key("", "a}{bs", "n"),
    Key("a}", "{bs", "n"),
    Key("*", "?", "[a]"),
    Key("ä" * 127, "é" * 512, "n" * 255),
]


def test_crafted_keys_have_names_of_their_own(store: RedisStore, driver: Any) -> None:
    for each in CRAFTED:
        granted(store.claim(each, "f", owner="owner", **CLAIM))
    assert {record.key for record in store.scan().records} == set(CRAFTED)
    for each in driver.keys("*"):
        assert each.startswith(b"semel:{")
        assert each.index(b"}") == len(each) - 1


def test_the_hash_tag_is_the_digest_alone() -> None:
    framed = frame(CRAFTED[0])
    assert key_slot(name_of(b"semel", framed)) == key_slot(name_of(b"another:prefix", framed))
    assert len({key_slot(name_of(b"semel", frame(key(number)))) for number in range(100)}) > 90


def test_prefixes_are_kept_apart(redis_url: str, driver: Any) -> None:
    with sync_store(f"{redis_url}?prefix=a") as one, sync_store(f"{redis_url}?prefix=a:b") as two:
        for store in (one, two):
            granted(store.claim(KEY, "f", owner="owner", **CLAIM))
        assert len(one.scan().records) == len(two.scan().records) == 1
        one.release(Lease(KEY, "owner", 1, 0))
        assert one.get(KEY) is None
        assert two.get(KEY) is not None


@pytest.mark.parametrize("payload", [b"", b"\0", bytes(range(256)), b"\x93\xc4\x00", b"$-1\r\n", b"x" * 5_000_000])
@pytest.mark.parametrize("format", ["f", "ü" * 32])
def test_payloads_come_back_as_they_were(store: RedisStore, driver: Any, payload: bytes, format: str) -> None:
    lease = granted(store.claim(KEY, "f", owner="owner", **CLAIM))
    result = Result(format, payload, ok=False)
    assert store.complete(lease, result, retention_ms=60_000)
    assert (record := store.get(KEY)) is not None
    assert record.result == result
    replayed = store.claim(KEY, "f", owner="other", **CLAIM)
    assert isinstance(replayed, Occupied)
    assert replayed.record == record


def test_a_batch_of_large_answers_is_sent_and_read_in_parts(redis_url: str, driver: Any) -> None:
    async def run() -> None:
        async with async_store(redis_url) as store:
            keys = [key(number) for number in range(24)]
            leases = [
                granted(each) for each in await asyncio.gather(*(store.claim(k, "f", owner="o", **CLAIM) for k in keys))
            ]
            results = [Result("raw", bytes([number]) * 700_000) for number in range(24)]
            done = (store.complete(*pair, retention_ms=60_000) for pair in zip(leases, results, strict=True))
            assert all(await asyncio.gather(*done))
            replays = await asyncio.gather(*(store.claim(k, "f", owner="p", **CLAIM) for k in keys))
            records = await asyncio.gather(*map(store.get, keys))
            assert [each.record.result for each in replays if isinstance(each, Occupied)] == results
            assert [each.result for each in records if each] == results
            page = await store.scan(limit=24)
            assert len({record.key for record in page.records}) == 24

    asyncio.run(run())


def test_the_server_collects_an_hour_after_the_record_ended(store: RedisStore, driver: Any) -> None:
    hour_ms = 3_600_000
    lease = granted(store.claim(KEY, "f", owner="owner", lease_ms=50_000, retention_ms=10_000, takeover=False))
    assert hour_ms + 40_000 < driver.pttl(name(KEY)) <= hour_ms + 50_000
    store.renew(lease, lease_ms=90_000)
    assert hour_ms + 80_000 < driver.pttl(name(KEY)) <= hour_ms + 90_000
    store.complete(lease, RESULT, retention_ms=20_000)
    assert hour_ms + 10_000 < driver.pttl(name(KEY)) <= hour_ms + 20_000


def test_replays_and_refusals_write_nothing(store: RedisStore, driver: Any) -> None:
    live = granted(store.claim(key(1), "f", owner="owner", **CLAIM))
    done = granted(store.claim(KEY, "f", owner="owner", **CLAIM))
    store.complete(done, RESULT, retention_ms=60_000)
    writes = driver.info("persistence")["rdb_changes_since_last_save"]
    for fingerprint in ("f", "other"):
        for each in (KEY, key(1)):
            assert isinstance(store.claim(each, fingerprint, owner="other", **CLAIM), Occupied)
            store.get(each)
    store.complete(done, RESULT, retention_ms=60_000)
    store.renew(Lease(live.key, "stranger", 1, 0), lease_ms=1000)
    store.scan()
    store.counts()
    store.purge(limit=10)
    assert driver.info("persistence")["rdb_changes_since_last_save"] == writes


def test_a_record_takes_little_memory(store: RedisStore, driver: Any) -> None:
    """The name and the value; the two entries in the server's tables are another 60 bytes or so."""
    owner, fingerprint = "o" * 22, "1." + "f" * 43
    lease = granted(store.claim(Key("shop-1", "POST /payments", "k" * 32), fingerprint, owner=owner, **CLAIM))
    store.complete(lease, Result("http.1", b"x" * 200), retention_ms=60_000)
    assert driver.memory_usage(name(lease.key)) <= 472
