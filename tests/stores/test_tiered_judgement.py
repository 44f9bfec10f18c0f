"""What a copy may answer and how long it lives: pure, on both sides of every boundary. And copies as bytes."""

from typing import Any
from zlib import crc32

import msgspec
import pytest
from msgspec.structs import replace

from semel.core.copies import TICKET_MS
from semel.core.effects import Claim
from semel.core.records import Acquired, Key, Occupied, Record, Result, State
from semel.errors import StoreMisconfigured, StoreUnavailable
from semel.stores.tiered import judgement
from semel.stores.tiered.health import FrontHealth
from semel.stores.tiered.judgement import COPY_MAX, SIGHTING_MS, Sighting, answer, find_life_ms
from semel.stores.tiered.layout import VERSION, Copy, to_bytes, to_copy
from semel.stores.tiered.scripts import RepeatShare
from semel.stores.tiered.settings import TieredSettings, name_of

KEY = Key("shop", "POST /payments", "order-1")
NOW_MS, HINT_MS, KEEP_MS = 1_000_000, 500, 60_000
FINISHED = Record(
    KEY,
    "v1:same",
    State.SUCCEEDED,
    "owner",
    1,
    created_ms=NOW_MS - 20,
    lease_until_ms=NOW_MS - 10,
    expires_ms=NOW_MS + 3_600_000,
    completed_ms=NOW_MS - 10,
    result=Result("bytes", b"\x00\xffpaid"),
    refuse_ms=5_000,
)
RUNNING = Record(KEY, "v1:same", State.IN_PROGRESS, "owner", 2, NOW_MS - 20, NOW_MS + 30_000, NOW_MS + 3_600_000)
TOMBSTONE = replace(FINISHED, result=None, expires_ms=FINISHED.expires_ms + 5_000, refuse_ms=0)


def claim(**changes: Any) -> Claim:
    return replace(Claim(KEY, "v1:same", "another", 30_000, 60_000, False), **changes)


def told(record: Record, *, read_ms: int = NOW_MS, now_ms: int = NOW_MS, hint_ms: int = HINT_MS, **call: Any) -> object:
    return answer(Copy(record, read_ms), claim(**call), now_ms, hint_ms)


class TestAnswer:
    @pytest.mark.parametrize("fingerprint", ["v1:same", "v1:other"])
    @pytest.mark.parametrize("takeover", [False, True])
    @pytest.mark.parametrize("owner", ["owner", "another"])
    def test_a_finished_record_is_shown_whoever_asks(self, fingerprint: str, takeover: bool, owner: str) -> None:
        """The front decides by the record's fingerprint, as it does with the database's."""
        assert told(FINISHED, fingerprint=fingerprint, takeover=takeover, owner=owner) == Occupied(FINISHED, NOW_MS)

    def test_a_failure_is_shown(self) -> None:
        failed = replace(FINISHED, state=State.FAILED, result=Result("bytes", b"no", ok=False))
        assert told(failed) == Occupied(failed, NOW_MS)

    def test_a_result_is_not_shown_past_its_retention(self) -> None:
        """After that the key is refused for a while, or new: the database knows."""
        last_ms = FINISHED.expires_ms - 1
        assert told(FINISHED, now_ms=last_ms) == Occupied(FINISHED, last_ms)
        assert told(FINISHED, now_ms=last_ms + 1) is None

    def test_another_key_is_not_shown(self) -> None:
        for other in (replace(KEY, tenant="other"), replace(KEY, scope="other"), replace(KEY, name="other")):
            assert told(FINISHED, key=other) is None
            assert told(RUNNING, key=other) is None

    def test_a_tombstone_is_not_shown(self) -> None:
        assert told(TOMBSTONE) is None

    @pytest.mark.parametrize("fingerprint", ["v1:same", "v1:other"])
    def test_work_in_progress_is_told_for_as_long_as_a_hint_holds(self, fingerprint: str) -> None:
        last_ms = NOW_MS + HINT_MS - 1
        assert told(RUNNING, now_ms=last_ms, fingerprint=fingerprint) == Occupied(RUNNING, last_ms)
        assert told(RUNNING, now_ms=last_ms + 1, fingerprint=fingerprint) is None
        assert told(RUNNING, hint_ms=0) is None

    def test_an_unknown_outcome_is_the_database_s(self) -> None:
        ends_ms = RUNNING.lease_until_ms
        assert told(RUNNING, read_ms=ends_ms - 1, now_ms=ends_ms - 1) == Occupied(RUNNING, ends_ms - 1)
        assert told(RUNNING, read_ms=ends_ms - 1, now_ms=ends_ms) is None

    def test_an_owner_that_repeats_its_claim_gets_its_lease_from_the_database(self) -> None:
        assert told(RUNNING, owner="owner") is None


class TestLife:
    def life_ms(self, record: Record, now_ms: int = NOW_MS, *, hint_ms: int = HINT_MS) -> int:
        return find_life_ms(record, now_ms, KEEP_MS, hint_ms)

    def test_is_bounded(self) -> None:
        assert self.life_ms(FINISHED) == KEEP_MS

    def test_ends_with_the_retention_however_late_the_copy_is(self) -> None:
        for left_ms, life_ms in (
            (KEEP_MS + TICKET_MS, KEEP_MS),
            (KEEP_MS, KEEP_MS - TICKET_MS),
            (TICKET_MS, 0),
            (1, 0),
        ):
            assert self.life_ms(FINISHED, FINISHED.expires_ms - left_ms) == life_ms
        assert self.life_ms(FINISHED, FINISHED.expires_ms) == 0
        assert self.life_ms(FINISHED, FINISHED.expires_ms + 9_000) == 0

    def test_of_a_tombstone_is_none(self) -> None:
        assert self.life_ms(TOMBSTONE) == 0

    def test_of_a_hint_ends_with_the_lease(self) -> None:
        assert self.life_ms(RUNNING) == HINT_MS
        assert self.life_ms(RUNNING, RUNNING.lease_until_ms - 7) == 7
        assert self.life_ms(RUNNING, RUNNING.lease_until_ms) == 0
        assert self.life_ms(RUNNING, RUNNING.lease_until_ms + 9) == 0
        assert self.life_ms(RUNNING, hint_ms=0) == 0

    def test_of_a_large_answer_is_none(self) -> None:
        for size, life_ms in ((COPY_MAX, KEEP_MS), (COPY_MAX + 1, 0)):
            assert self.life_ms(replace(FINISHED, result=Result("bytes", b"x" * size))) == life_ms


class TestSighting:
    def test_tells_the_time_at_the_latest(self) -> None:
        """The reply took until now to come, perhaps; the database's clock may be a little fast."""
        sighting = Sighting(asked_ms=5_000, told_ms=900_000)
        assert sighting.latest_ms(5_000) == 900_000
        assert sighting.latest_ms(5_100) == 900_100
        assert sighting.latest_ms(15_000) == 910_010

    def test_tells_nothing_when_it_is_old(self) -> None:
        sighting = Sighting(asked_ms=5_000, told_ms=900_000)
        assert sighting.latest_ms(5_000 + SIGHTING_MS) == 900_000 + SIGHTING_MS + SIGHTING_MS // judgement.DRIFT
        assert sighting.latest_ms(5_001 + SIGHTING_MS) is None
        assert sighting.latest_ms(4_999) is None


class TestBytes:
    @pytest.mark.parametrize("record", [FINISHED, RUNNING, TOMBSTONE], ids=["finished", "running", "tombstone"])
    def test_a_copy_comes_back_as_it_was(self, record: Record) -> None:
        assert to_copy(to_bytes(Copy(record, NOW_MS))) == Copy(record, NOW_MS)

    def test_what_cannot_be_read_is_no_copy(self) -> None:
        value = to_bytes(Copy(FINISHED, NOW_MS))
        spoilt = [value[:size] for size in range(len(value))]
        spoilt += [value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :] for at in range(len(value))]
        spoilt += [value + b"\0", b"\0ticket", b"hello"]
        assert [to_copy(each) for each in (None, *spoilt)] == [None] * (len(spoilt) + 1)

    def test_a_copy_of_something_else_is_no_copy(self) -> None:
        for body in (b"", msgspec.msgpack.encode([]), msgspec.msgpack.encode(["a", 1]), b"\xc1"):
            whole = VERSION + crc32(body).to_bytes(4) + body
            assert to_copy(whole) is None

    def test_the_version_changes_with_what_is_copied(self) -> None:
        """Another field, or another meaning: raise VERSION, then this list."""
        assert VERSION == b"\1"
        assert Record.__struct_fields__ == (
            *("key", "fingerprint", "state", "owner", "attempt", "created_ms", "lease_until_ms", "expires_ms"),
            *("completed_ms", "result", "refuse_ms"),
        )
        assert Key.__struct_fields__ == ("tenant", "scope", "name")
        assert Result.__struct_fields__ == ("format", "payload", "ok")


class TestRepeatShare:
    def noted(self, share: RepeatShare, firsts: int, repeats: int) -> bool:
        for number in range(firsts + repeats):
            share.note(Occupied(FINISHED, NOW_MS) if number >= firsts else Acquired(RUNNING.lease))
        return share.is_large()

    def test_is_large_from_one_in_ten(self) -> None:
        assert self.noted(RepeatShare(), 9, 1)
        assert not self.noted(RepeatShare(), 10, 1)

    def test_is_that_of_the_latest_claims(self) -> None:
        share = RepeatShare()
        assert self.noted(share, 0, 50_000)
        assert not self.noted(share, 5_000, 0)
        assert self.noted(share, 0, 500)


class TestHealth:
    @pytest.fixture
    def now_s(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        now_s = [100.0]
        monkeypatch.setattr("semel.stores.tiered.health.time.monotonic", lambda: now_s[0])
        return now_s

    def test_a_front_that_failed_is_asked_by_one_call_after_a_rest(
        self, now_s: list[float], caplog: pytest.LogCaptureFixture
    ) -> None:
        front = FrontHealth(1.0)
        assert front.may_ask()
        front.note_failure(StoreUnavailable("it is gone"))
        assert [front.may_ask() for _ in range(3)] == [False] * 3
        now_s[0] += 1.0
        assert [front.may_ask() for _ in range(3)] == [True, False, False]
        front.note_failure(StoreUnavailable("it is gone"))
        now_s[0] += 0.9
        assert not front.may_ask()
        now_s[0] += 0.1
        assert front.may_ask()
        front.note_answer()
        assert [front.may_ask() for _ in range(3)] == [True] * 3
        assert [record.getMessage() for record in caplog.records] == [
            "the database answers without its front: it is gone"
        ]

    def test_a_call_that_never_came_back_does_not_end_the_asking(self, now_s: list[float]) -> None:
        front = FrontHealth(1.0)
        front.note_failure(StoreUnavailable("it is gone"))
        now_s[0] += 1.0
        assert front.may_ask()  # and its caller is cancelled
        now_s[0] += 1.0
        assert front.may_ask()


class TestSettings:
    @pytest.mark.parametrize(
        ("back", "name"),
        [
            ("postgresql://user:secret@db.example:5433/shop?timeout_ms=7", "postgresql://db.example:5433/shop"),
            ("postgres://db.example/shop", "postgresql://db.example/shop"),
            ("postgresql://db.example/shop?schema=eu", "postgresql://db.example/shop?eu"),
            ("mysql://db.example/shop", "mariadb://db.example/shop"),
            ("postgresql://localhost/shop", "this-machine/postgresql://localhost/shop"),
            ("postgresql:///shop?host=/run/postgresql", "this-machine/postgresql:///run/postgresql/shop"),
            ("postgresql:///shop?host=db.example", "postgresql://db.example/shop"),
            ("sqlite:////var/lib/semel.db", "this-machine/sqlite:////var/lib/semel.db"),
        ],
    )
    def test_a_database_is_named_by_its_place(self, monkeypatch: pytest.MonkeyPatch, back: str, name: str) -> None:
        monkeypatch.setattr("platform.node", lambda: "this-machine")
        assert name_of(back) == name

    @pytest.mark.parametrize(
        ("option", "value"),
        [("keep_ms", 999), ("keep_ms", 86_400_001), ("hint_ms", -1), ("hint_ms", 5_001), ("rest_ms", 0)],
    )
    def test_bounds_are_told_by_name(self, option: str, value: int) -> None:
        with pytest.raises(StoreMisconfigured, match=f"{option} of a tiered store must be from .* not {value}"):
            TieredSettings("shop", **{option: value})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    @pytest.mark.parametrize("name", ["", "a b", "é", "x" * 256])
    def test_a_name_is_short_and_plain(self, name: str) -> None:
        with pytest.raises(StoreMisconfigured, match="name of a tiered store"):
            TieredSettings(name)
