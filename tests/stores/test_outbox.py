"""The outboxes of the stores: equal to the model, whatever is asked, and right when many ask at once."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from semel.core import outbox_model
from semel.core.effects import Effect
from semel.core.outbox import (
    CountMessages,
    DeadMessage,
    DiscardMessages,
    FailedMessage,
    ListMessages,
    MessageState,
    OutboxFilter,
    PurgeMessages,
    RedriveMessages,
    SettleMessages,
    TakeMessages,
)
from semel.core.outbox_model import Outbox
from semel.testing.clock import ManualClock
from stores.outboxes import (
    Ask,
    Place,
    PostgresPlace,
    SqlitePlace,
    message,
    open_asking,
    open_async_asking,
)

pytestmark = pytest.mark.timeout(300)
EXAMPLES = int(os.environ.get("SEMEL_PARITY_EXAMPLES", "30"))
Open = Callable[..., tuple[Ask, Callable[[], None]]]
FACES: dict[str, Open] = {"sync": open_asking, "async": open_async_asking}
LIST_ALL = ListMessages(OutboxFilter(), 1_000)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return SqlitePlace(tmp_path / "semel.db")
    return PostgresPlace(request.getfixturevalue("postgres_url"))


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
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
            ),
        )
