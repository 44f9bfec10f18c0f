"""What a jump of the machine's wall clock may do to a store that has no server: to leases and retention, nothing."""

import time
from collections.abc import Callable, Iterator

import pytest

from semel import Key, Record
from semel.store import Store
from semel.testing import ManualClock
from semel.testing.calls import claim, complete, granted, held, occupied
from semel.testing.handles import Handles
from semel.testing.samples import ANSWER

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
JUMPS = pytest.mark.parametrize("hours", [25, 1, -1, -25])
BRIEF_MS = 20
SLACK_MS = 60_000
"""How long the longest of these tests may take."""
Jump = Callable[[float], None]


class ClockJumps(Handles):
    """For a store by its own clock, in either face."""

    @pytest.fixture
    def jump(self, monkeypatch: pytest.MonkeyPatch) -> Jump:
        """Sets this process's wall clock so many hours on. No clock that only goes forward is touched."""
        real_ns, real_s = time.time_ns, time.time
        hours = 0.0

        def by(more: float) -> None:
            nonlocal hours
            hours += more

        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(hours * HOUR_MS) * 1_000_000)
        monkeypatch.setattr(time, "time", lambda: real_s() + hours * HOUR_MS / 1000)
        return by

    @pytest.fixture
    def clock(self) -> ManualClock:
        raise AssertionError("these tests go by the store's own clock")

    @pytest.fixture
    def own(self) -> Iterator[Store]:
        store = self.handle(None)
        yield store
        store.close()

    def others(self, own: Store) -> Iterator[Store]:
        """Handles that see the same records: this one, and one that is opened only now, as after a restart."""
        yield own
        if self.shared:
            late = self.handle(None)
            yield late
            late.close()

    @JUMPS
    @pytest.mark.parametrize("takeover", [False, True], ids=["at most once", "at least once"])
    def test_running_work_is_not_entered_again(
        self, own: Store, key: Key, jump: Jump, hours: int, takeover: bool
    ) -> None:
        lease = granted(claim(own, key, "first", lease_ms=SLACK_MS, retention_ms=DAY_MS))
        jump(hours)
        for store in self.others(own):
            claimed = claim(store, key, "second", takeover=takeover)
            assert not occupied(claimed).lapsed(claimed.now_ms)  # type: ignore[union-attr]
            assert store.counts().in_progress == 1  # type: ignore[attr-defined]
        assert complete(own, lease)

    @JUMPS
    def test_a_crashed_executor_s_lease_lapses_in_its_time(self, own: Store, key: Key, jump: Jump, hours: int) -> None:
        granted(claim(own, key, "crashed", lease_ms=BRIEF_MS, retention_ms=DAY_MS))
        jump(hours)
        assert self.lapsed_soon(own, key).owner == "crashed"
        for store in self.others(own):
            claimed = claim(store, key, "second")
            assert occupied(claimed).lapsed(claimed.now_ms)  # type: ignore[union-attr]
        assert granted(claim(own, key, "successor", takeover=True)).attempt == 2

    def lapsed_soon(self, store: Store, key: Key) -> Record:
        patience = time.monotonic() + 10
        while True:
            claimed = claim(store, key, "second")
            record = occupied(claimed)
            if record.lapsed(claimed.now_ms):  # type: ignore[union-attr]
                return record
            assert time.monotonic() < patience, "the lease does not lapse"
            time.sleep(0.005)

    @JUMPS
    def test_an_answer_is_replayed_for_its_retention(self, own: Store, key: Key, jump: Jump, hours: int) -> None:
        assert complete(own, granted(claim(own, key, "first")), retention_ms=DAY_MS)
        jump(hours)
        for store in self.others(own):
            assert occupied(claim(store, key, "second")).result == ANSWER
            assert store.purge(limit=10) == 0

    @JUMPS
    def test_retention_ends_in_its_time(self, own: Store, key: Key, jump: Jump, hours: int) -> None:
        assert complete(own, granted(claim(own, key, "first")), retention_ms=BRIEF_MS)
        jump(hours)
        patience = time.monotonic() + 10
        while own.get(key) is not None:
            assert time.monotonic() < patience, "the record does not expire"
            time.sleep(0.005)

    def test_times_are_near_the_wall_clock(self, own: Store, key: Key) -> None:
        granted(claim(own, key, "first"))
        assert abs(held(own, key).created_ms - time.time_ns() // 1_000_000) < SLACK_MS
