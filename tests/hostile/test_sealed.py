"""Sealed stores: the contract of every store, and what nobody but the holder of the keys can read, move or change."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import semel.store
from semel import Acquired, Key, Record, RecordUnreadable, Result, StoreMisconfigured
from semel.asgi import IdempotencyMiddleware
from semel.codecs.origins import REMEMBERED_MAX, Origin, Origins
from semel.codecs.seal import FORMAT, Seal
from semel.codecs.sealed import AsyncSealed, Sealed
from semel.core.records import State
from semel.runtime.clock import wall_ms
from semel.store import AsyncStore, Clock, Migratable, Store
from semel.stores.memory import AsyncMemoryStore, MemoryStore
from semel.stores.sqlite.store import SqliteStore
from semel.testing import AsyncStoreContract, ManualClock, StoreContract
from semel.testing.calls import claim, complete, granted, held
from semel.testing.samples import ANSWER, RETENTION_MS

OLD, NEW = {"old": b"o" * 32}, {"new": b"n" * 32}
SECRET = Result("http.1", b"a secret answer")
KEY = Key("tenant", "POST /pay", "k")
ORIGIN = Origin(KEY, "v1:same", 1, "owner")


class TestSealedMemoryStore(StoreContract):
    shared = False
    parity_examples = 10
    race_rounds = 5

    def open(self, clock: Clock | None) -> Store:
        return Sealed(MemoryStore(clock=clock or wall_ms), keys=NEW)


class TestAsyncSealedMemoryStore(AsyncStoreContract):
    shared = False
    parity_examples = 10
    race_rounds = 5

    def open(self, clock: Clock | None) -> AsyncStore:
        return AsyncSealed(AsyncMemoryStore(clock=clock or wall_ms), keys=NEW)


def stored(store: Store, key: Key = KEY) -> Result:
    result = held(store, key).result
    assert result is not None
    return result


def written(within: MemoryStore, key: Key = KEY, keys: dict[str, bytes] = NEW) -> Sealed:
    """A store whose answer to `key` was sealed with `keys`."""
    store = Sealed(within, keys=keys)
    assert complete(store, granted(claim(store, key, "owner")), SECRET)
    return store


def test_what_is_stored_tells_neither_the_answer_nor_its_format() -> None:
    within = MemoryStore()
    store = written(within)
    assert stored(store) == SECRET
    sealed = stored(within)
    assert sealed.format == FORMAT
    assert b"secret" not in sealed.payload
    assert b"http" not in sealed.payload


def test_a_file_does_not_hold_the_answer_in_the_clear(tmp_path: Path) -> None:
    with Sealed(SqliteStore(str(tmp_path / "records.db")), keys=NEW) as store:
        assert isinstance(store, Migratable)
        store.migrate()
        assert complete(store, granted(claim(store, KEY, "owner")), SECRET)
        assert stored(store) == SECRET
    assert not any(b"secret" in file.read_bytes() for file in tmp_path.iterdir())


def test_the_same_answer_is_sealed_differently_each_time() -> None:
    seal = Seal(NEW)
    assert len({seal.seal(ORIGIN, SECRET).payload for _ in range(100)}) == 100


def test_rotation_old_keys_open_and_the_first_one_seals() -> None:
    within = MemoryStore()
    written(within, keys=OLD)
    both = Sealed(within, keys=NEW | OLD)
    assert stored(both) == SECRET
    other = replace(KEY, name="other")
    assert complete(both, granted(claim(both, other, "owner")), SECRET)
    assert b"new" in stored(within, other).payload
    assert stored(Sealed(within, keys=NEW), other) == SECRET


def test_a_key_that_was_not_given_makes_the_record_unreadable_not_absent() -> None:
    within = MemoryStore()
    written(within, keys=OLD)
    store = Sealed(within, keys=NEW)
    for look in (lambda: store.get(KEY), lambda: claim(store, KEY, "another")):
        with pytest.raises(RecordUnreadable, match=r"'old'.*not among those that were given"):
            look()
    granted(claim(store, replace(KEY, name="other"), "another"))
    page = store.scan()
    assert [record.key.name for record in page.records] == ["other"], "one that does not open hides no other"
    assert ["not among those that were given" in each.reason for each in page.unreadable] == [True]
    assert stored(within).format == FORMAT, "and it is still there"


def test_a_wrong_key_under_the_right_id_does_not_open() -> None:
    within = MemoryStore()
    written(within, keys={"a": b"1" * 32})
    with pytest.raises(RecordUnreadable, match="does not open"):
        Sealed(within, keys={"a": b"2" * 32}).get(KEY)


@pytest.mark.parametrize("part", ["tenant", "scope", "name"])
def test_a_sealed_result_moved_to_another_key_does_not_open(part: str) -> None:
    seal = Seal(NEW)
    sealed = seal.seal(ORIGIN, SECRET)
    assert seal.open(ORIGIN, sealed) == SECRET
    with pytest.raises(RecordUnreadable, match="belongs to another key"):
        seal.open(replace(ORIGIN, key=replace(KEY, **{part: "elsewhere"})), sealed)


@pytest.mark.parametrize(
    "other",
    [{"fingerprint": "v1:other"}, {"attempt": 2}, {"owner": "another"}, {"owner": "", "created_ms": 1}],
    ids=lambda other: " ".join(other),
)
def test_a_sealed_result_moved_to_another_life_of_its_key_does_not_open(other: dict[str, Any]) -> None:
    seal = Seal(NEW)
    sealed = seal.seal(ORIGIN, SECRET)
    with pytest.raises(RecordUnreadable, match="earlier life"):
        seal.open(replace(ORIGIN, **other), sealed)


def test_no_part_of_a_key_can_imitate_another() -> None:
    seal = Seal(NEW)
    with pytest.raises(RecordUnreadable):
        seal.open(replace(ORIGIN, key=Key("ab", "c", "d")), seal.seal(replace(ORIGIN, key=Key("a", "bc", "d")), SECRET))


def test_a_failure_cannot_be_made_a_success() -> None:
    seal = Seal(NEW)
    sealed = seal.seal(ORIGIN, replace(SECRET, ok=False))
    with pytest.raises(RecordUnreadable):
        seal.open(ORIGIN, replace(sealed, ok=True))


@given(st.data())
def test_every_changed_byte_is_noticed(data: st.DataObject) -> None:
    seal = Seal(NEW)
    payload = bytearray(seal.seal(ORIGIN, SECRET).payload)
    payload[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(RecordUnreadable):
        seal.open(ORIGIN, Result(FORMAT, bytes(payload)))


@given(st.binary(max_size=100))
def test_any_bytes_are_unreadable(payload: bytes) -> None:
    with pytest.raises(RecordUnreadable):
        Seal(NEW).open(ORIGIN, Result(FORMAT, payload))


def test_results_from_before_are_refused_unless_they_are_allowed() -> None:
    within = MemoryStore()
    assert complete(within, granted(claim(within, KEY, "owner")), SECRET)
    with pytest.raises(RecordUnreadable, match="allow_plain=True"):
        Sealed(within, keys=NEW).get(KEY)
    assert stored(Sealed(within, keys=NEW, allow_plain=True)) == SECRET


@pytest.mark.parametrize("allow_plain", [False, True])
@pytest.mark.parametrize("format", ["sealed.1", "sealed.3"])
def test_what_another_version_has_sealed_is_unreadable_by_name(format: str, allow_plain: bool) -> None:
    """A result of the first format is bound to its key alone: it could be one of an earlier life."""
    within = MemoryStore()
    assert complete(within, granted(claim(within, KEY, "owner")), Result(format, b"\3new" + bytes(60)))
    store = Sealed(within, keys=NEW, allow_plain=allow_plain)
    for look in (lambda: store.get(KEY), lambda: claim(store, KEY, "another")):
        with pytest.raises(RecordUnreadable, match=f"has format '{format}'.*opens 'sealed.2' only"):
            look()


def test_an_operator_s_result_is_sealed_too() -> None:
    clock = ManualClock()
    within = MemoryStore(clock=clock)
    store = Sealed(within, keys=NEW)
    granted(claim(store, KEY, "owner"))
    clock.advance(60_000)
    assert store.resolve(held(store, KEY), ANSWER, retention_ms=RETENTION_MS)
    assert stored(store) == ANSWER
    assert stored(within).format == FORMAT


def opens(store: Sealed) -> bool:
    try:
        return stored(store) == SECRET
    except RecordUnreadable:
        return False


class Lives:
    """A key that lives twice, in a store whose rows can be written to."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.within = MemoryStore(clock=self.clock)
        self.store = Sealed(self.within, keys=NEW)

    def live(self, fingerprint: str, owner: str, *, resolved: bool = False) -> Record:
        """One life: claimed, and completed or resolved by an operator. Says what is stored."""
        lease = granted(claim(self.store, KEY, owner, fingerprint=fingerprint))
        if resolved:
            self.clock.advance(60_000)
            assert self.store.resolve(held(self.store, KEY), SECRET, retention_ms=RETENTION_MS)
        else:
            assert complete(self.store, lease, SECRET)
        assert stored(self.store) == SECRET
        return held(self.within, KEY)

    def end(self) -> None:
        self.clock.advance(RETENTION_MS * 2)
        assert self.store.get(KEY) is None

    def put(self, record: Record) -> None:
        self.within._records._records[KEY] = record


@pytest.mark.parametrize("resolved", [False, True], ids=["completed", "resolved"])
@pytest.mark.parametrize("fingerprint", ["v1:same", "v1:other"])
def test_an_answer_of_an_earlier_life_does_not_open_in_a_later_one(fingerprint: str, resolved: bool) -> None:
    lives = Lives()
    earlier = lives.live("v1:same", "first", resolved=resolved)
    lives.end()
    later = lives.live(fingerprint, "second", resolved=resolved)
    lives.put(replace(later, result=earlier.result))
    with pytest.raises(RecordUnreadable, match="earlier life"):
        lives.store.get(KEY)
    with pytest.raises(RecordUnreadable, match="earlier life"):
        claim(lives.store, KEY, "third", fingerprint=fingerprint)


def test_an_answer_moved_with_its_owner_does_not_answer_another_request() -> None:
    lives = Lives()
    earlier = lives.live("v1:same", "first")
    lives.end()
    later = lives.live("v1:other", "second")
    lives.put(replace(later, result=earlier.result, owner=earlier.owner))
    with pytest.raises(RecordUnreadable):
        lives.store.get(KEY)


def test_an_operator_s_answer_to_a_key_that_was_freed_and_claimed_again_opens() -> None:
    """The store goes by owner and attempt: what nobody owns looks alike in two lives."""
    lives = Lives()
    seen = []
    for _ in range(2):
        granted(claim(lives.store, KEY, "first"))
        lives.clock.advance(60_000)
        assert lives.store.release(granted(claim(lives.store, KEY, "second", takeover=True)))
        seen.append(held(lives.store, KEY))
        if len(seen) == 1:
            assert lives.store.resolve(seen[0], None, retention_ms=RETENTION_MS)
    assert seen[0].created_ms < seen[1].created_ms
    assert lives.store.resolve(seen[0], SECRET, retention_ms=RETENTION_MS)
    assert opens(lives.store)


def test_a_claim_that_was_made_elsewhere_is_completed_with_what_the_store_knows() -> None:
    within = MemoryStore()
    lease = granted(claim(within, KEY, "owner"))
    store = Sealed(within, keys=NEW)
    assert complete(store, lease, SECRET)
    assert stored(store) == SECRET
    assert complete(store, lease, ANSWER), "a repeat, of which the store says that it has the first"
    assert stored(store) == SECRET
    assert not complete(store, replace(lease, key=replace(KEY, name="nothing there")), SECRET)


def test_the_memory_of_claims_has_a_bound_and_forgets_what_has_ended() -> None:
    store = Sealed(MemoryStore(), keys=NEW)
    leases = [granted(claim(store, replace(KEY, name=f"{n}"), "owner")) for n in range(3)]
    assert complete(store, leases[0], SECRET)
    assert store.release(leases[1])
    assert list(store._origins._known) == [(leases[2].key, "owner")]
    origins = Origins()
    for number in range(REMEMBERED_MAX + 1):
        origins.remember(Acquired(replace(leases[0], key=replace(KEY, name=f"{number}"))), "f")
    assert len(origins._known) == REMEMBERED_MAX
    assert origins.find(replace(leases[0], key=replace(KEY, name="0"))) is None


class Plain:
    """A store of a third party, with the seven calls and nothing else."""

    def __init__(self) -> None:
        within = MemoryStore()
        for name in "claim renew complete release get purge close".split():
            setattr(self, name, getattr(within, name))


def test_it_has_the_abilities_that_the_store_within_has_and_no_others(tmp_path: Path) -> None:
    """Every ability there is: one that is forgotten here would be lost, or would store in the clear."""
    abilities = [each for each in vars(semel.store).values() if getattr(each, "_is_runtime_protocol", False)]
    assert len(abilities) > 5
    for within in (MemoryStore(), SqliteStore(str(tmp_path / "records.db")), Plain()):
        assert isinstance(within, Store)
        store = Sealed(within, keys=NEW)
        assert [isinstance(store, each) for each in abilities] == [isinstance(within, each) for each in abilities]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "keys= is empty"),
        ({"a": b"short"}, "32 random bytes .*not 5 bytes"),
        ({"a": "k" * 32}, "32 random bytes .*not str"),
        ({"": b"k" * 32}, "key id is printable text"),
        ({"a\n": b"k" * 32}, "key id is printable text"),
        ({"a" * 65: b"k" * 32}, "65 bytes, the limit is 64"),
    ],
)
def test_bad_keys_are_refused_at_start_up_and_not_shown(keys: dict[str, bytes], message: str) -> None:
    with pytest.raises(StoreMisconfigured, match=message) as refused:
        Sealed(MemoryStore(), keys=keys)
    assert "kkkk" not in str(refused.value)
    assert "short" not in str(refused.value)


def test_over_http_what_does_not_open_is_a_500_and_nothing_runs_again() -> None:
    import httpx

    effects: list[str] = []

    async def pay(scope: object, receive: object, send: object) -> None:
        effects.append("paid")
        await send({"type": "http.response.start", "status": 201, "headers": []})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": b"paid"})  # type: ignore[operator]

    async def ask(store: AsyncStore) -> httpx.Response:
        app = IdempotencyMiddleware(pay, store=store, identify=lambda scope: "shop")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.post("/pay", headers={"Idempotency-Key": "k"})

    async def scenes() -> list[httpx.Response]:
        within = AsyncMemoryStore()
        stores = [AsyncSealed(within, keys=keys) for keys in (OLD, OLD, NEW)]
        return [await ask(store) for store in stores]

    first, again, lost = asyncio.run(scenes())
    assert (first.status_code, again.status_code, lost.status_code) == (201, 201, 500)
    assert again.headers["idempotent-replayed"] == "true"
    assert lost.json()["type"].endswith("#record-unreadable")
    assert effects == ["paid"]


def test_a_tombstone_without_a_result_has_nothing_to_open() -> None:
    record = Record(KEY, "v1:same", State.SUCCEEDED, "owner", 1, 0, 0, 0)
    assert Seal(NEW).opened(record) is record
