"""What an outbox does, call by call, with its boundaries. The stores are compared with this model."""

from typing import Any

import pytest

from semel.core import outbox_model
from semel.core.effects import Effect, Pause
from semel.core.messages import Message
from semel.core.outbox import (
    ERROR_MAX,
    LIST_MAX,
    PURGE_MAX,
    SEQUENCE_MAX,
    SEQUENCES_MAX,
    TAKE_MAX,
    AddMessage,
    CountMessages,
    DeadMessage,
    DiscardMessages,
    FailedMessage,
    ListMessages,
    MessageState,
    OutboxCounts,
    OutboxEntry,
    OutboxFilter,
    OutboxPage,
    PurgeMessages,
    RedriveMessages,
    SettleMessages,
    TakeMessages,
    checked_call,
)
from semel.core.outbox_model import Outbox

LEASE_MS = 30


def message(name: str, key: str | None = None, **changed: Any) -> Message:
    return Message(**{"id": name, "topic": "orders", "payload": name.encode(), "key": key, **changed})


class Box:
    """An outbox and its time, for tests that ask one call after the other."""

    def __init__(self, *names: str) -> None:
        """`a1` is a message of the key `a`; `-1` has no key."""
        self.outbox, self.now_ms = Outbox(), 1_000
        for name in names:
            assert self.ask(AddMessage(message(name, None if name[0] == "-" else name[0])))

    def ask(self, call: Effect[Any]) -> Any:
        self.outbox, reply = outbox_model.answer(self.outbox, call, self.now_ms)
        return reply

    def take(self, owner: str = "first", count: int = 10, **rest: bool) -> list[str]:
        return [each.message.id for each in self.ask(TakeMessages(owner, count, LEASE_MS, **rest))]

    def settle(self, owner: str = "first", **what: Any) -> int:
        return int(self.ask(SettleMessages(owner, **what)))

    def __getitem__(self, sequence: int) -> OutboxEntry:
        return self.outbox.entries[sequence]

    def dead(self, *sequences: int) -> None:
        self.take("reaper", 100, by_key=False)
        self.settle("reaper", dead=tuple(DeadMessage(sequence, "no such topic") for sequence in sequences))
        self.settle("reaper", untried=tuple(self.outbox.entries))


class TestAdd:
    def test_a_message_waits_from_then_on(self) -> None:
        box = Box("a1")
        assert box[1] == OutboxEntry(1, message("a1", "a", attempt=0), MessageState.WAITING, 1_000, 1_000, 0, 0, "")

    def test_the_same_id_is_the_same_message(self) -> None:
        box = Box("a1")
        assert not box.ask(AddMessage(message("a1", "other")))
        assert list(box.outbox.entries) == [1]

    def test_a_number_is_never_given_again(self) -> None:
        box = Box("a1")
        box.dead(1)
        box.ask(DiscardMessages((1,)))
        box.ask(AddMessage(message("a2")))
        assert list(box.outbox.entries) == [2]


class TestTake:
    def test_first_come_first(self) -> None:
        box = Box("b1", "a1", "-1", "a2", "b2")
        assert box.take(count=3) == ["b1", "a1", "-1"]
        assert box[1].owner == "first"
        assert box[1].lease_until_ms == 1_000 + LEASE_MS

    def test_its_attempt_is_the_one_that_begins(self) -> None:
        box = Box("a1")
        [taken] = box.ask(TakeMessages("first", 1, LEASE_MS))
        assert (taken.message.attempt, box[1].message.attempt) == (1, 0)

    def test_what_a_relay_holds_is_not_taken_until_its_lease_ends(self) -> None:
        box = Box("-1")
        box.take()
        box.now_ms += LEASE_MS - 1
        assert box.take("second") == []
        box.now_ms += 1
        assert box.take("second") == ["-1"]

    def test_a_relay_that_died_has_tried_nothing(self) -> None:
        box = Box("a1")
        for number in range(20):
            box.take(f"relay {number}")
            box.now_ms += LEASE_MS
        assert box[1].message.attempt == 0

    def test_a_message_waits_behind_one_that_a_relay_holds(self) -> None:
        box = Box("a1", "a2", "b1", "-1", "-2")
        assert box.take(count=1) == ["a1"]
        assert box.take("second") == ["b1", "-1", "-2"]
        box.settle(published=(1,))
        assert box.take("second") == ["a2"]

    def test_a_message_waits_behind_one_that_waits_for_its_next_try(self) -> None:
        box = Box("a1", "a2", "-1", "-2")
        box.take()
        box.settle(failed=(FailedMessage(1, "refused", 100), FailedMessage(3, "refused", 100)), untried=(2, 4))
        assert box.take("second") == ["-2"]
        box.settle("second", published=(4,))
        box.now_ms += 99
        assert box.take("third") == []
        box.now_ms += 1
        assert box.take("third", count=2) == ["a1", "a2"]

    def test_without_order_only_the_message_itself_counts(self) -> None:
        box = Box("a1", "a2")
        assert box.take(count=1, by_key=False) == ["a1"]
        assert box.take("second", by_key=False, dead_block=True) == ["a2"]

    def test_a_dead_message_stands_in_nobodys_way(self) -> None:
        box = Box("a1", "a2")
        box.dead(1)
        assert box.take() == ["a2"]

    def test_unless_it_blocks_its_key(self) -> None:
        box = Box("a1", "b1", "b2", "a2", "-1", "-2")
        box.dead(1, 3, 5)
        assert box.take(dead_block=True) == ["b1", "-2"]

    def test_a_commit_that_comes_late_is_not_skipped(self) -> None:
        box = Box("-1")
        box.outbox, sequence = outbox_model.reserve(box.outbox)
        box.ask(AddMessage(message("-3")))
        assert box.take() == ["-1", "-3"]
        box.settle(published=(1, 3))
        box.outbox, shown = outbox_model.show(box.outbox, sequence, message("-2"), box.now_ms)
        assert shown
        assert box.take() == ["-2"]


class TestSettle:
    def test_each_ending(self) -> None:
        box = Box("-1", "-2", "-3", "-4")
        box.take()
        box.now_ms += 5
        done = box.settle(
            published=(1,), failed=(FailedMessage(2, "busy", 40),), dead=(DeadMessage(3, "too large"),), untried=(4,)
        )
        assert done == 4
        shown = [
            (each.state.value, each.message.attempt, each.available_ms, each.settled_ms, each.error)
            for each in box.outbox.in_order()
        ]
        assert shown == [
            ("published", 1, 1_000, 1_005, ""),
            ("waiting", 1, 1_045, 0, "busy"),
            ("dead", 1, 1_000, 1_005, "too large"),
            ("waiting", 0, 1_000, 0, ""),
        ]
        assert {(each.owner, each.lease_until_ms) for each in box.outbox.in_order()} == {("", 0)}

    def test_a_success_clears_the_error(self) -> None:
        box = Box("-1")
        box.take()
        box.settle(failed=(FailedMessage(1, "busy", 0),))
        box.take()
        box.settle(published=(1,))
        assert (box[1].error, box[1].message.attempt) == ("", 2)

    def test_a_late_relay_settles_what_was_not_taken_meanwhile(self) -> None:
        box = Box("-1", "-2")
        box.take()
        box.now_ms += LEASE_MS
        assert box.take("second", count=1) == ["-1"]
        assert box.settle(published=(1, 2, 3)) == 1
        assert [each.state.value for each in box.outbox.in_order()] == ["waiting", "published"]
        assert box[1].owner == "second"

    def test_what_is_settled_is_nobodys(self) -> None:
        box = Box("-1", "-2")
        box.take()
        box.settle(published=(1,), untried=(2,))
        assert box.settle(dead=(DeadMessage(1, "late"), DeadMessage(2, "late"))) == 0


class TestPurge:
    def test_what_was_published_long_ago_is_gone(self) -> None:
        box = Box("-1", "-2", "-3", "-4", "-5")
        box.dead(5)
        box.take(count=3)
        box.settle(published=(2,))
        box.now_ms += 10
        box.settle(published=(1, 3))
        box.now_ms += 50
        assert box.ask(PurgeMessages(51, 10)) == 1
        assert box.ask(PurgeMessages(50, 1)) == 1
        assert list(box.outbox.entries) == [3, 4, 5]
        assert box.ask(PurgeMessages(0, 10)) == 1
        assert list(box.outbox.entries) == [4, 5]


class TestOperators:
    def test_pages_of_what_matches(self) -> None:
        box = Box("a1", "b1", "a2", "a3")
        first = box.ask(ListMessages(OutboxFilter(key="a"), 2))
        assert first == OutboxPage((box[1], box[3]), 3, 1_000)
        assert box.ask(ListMessages(OutboxFilter(key="a"), 2, 3)) == OutboxPage((box[4],), None, 1_000)
        assert box.ask(ListMessages(OutboxFilter(key="c"), 2)) == OutboxPage((), None, 1_000)

    @pytest.mark.parametrize(
        ("wanted", "found"),
        [
            (OutboxFilter(), [1, 2]),
            (OutboxFilter(state=MessageState.DEAD), [2]),
            (OutboxFilter(topic="orders"), [1, 2]),
            (OutboxFilter(topic="other"), []),
            (OutboxFilter(key="b"), [2]),
            (OutboxFilter(id_prefix="a"), [1]),
            (OutboxFilter(older_than_ms=7), [1, 2]),
            (OutboxFilter(older_than_ms=8), []),
        ],
    )
    def test_filters(self, wanted: OutboxFilter, found: list[int]) -> None:
        box = Box("a1", "b1")
        box.dead(2)
        box.now_ms += 7
        page = box.ask(ListMessages(wanted, 10))
        assert [entry.sequence for entry in page.entries] == found

    def test_counts(self) -> None:
        box = Box("-1", "-2", "-3", "-4")
        box.dead(4)
        box.take(count=1)
        box.settle(published=(1,))
        box.now_ms += 9
        assert box.ask(CountMessages()) == OutboxCounts(2, 1, 1, 9)
        assert Box().ask(CountMessages()) == OutboxCounts(0, 0, 0, None)

    def test_redriven_messages_have_all_their_attempts(self) -> None:
        box = Box("a1", "a2", "a3")
        box.dead(1, 3)
        box.now_ms += 9
        assert box.ask(RedriveMessages((1, 2, 7))) == 1
        entry = box[1]
        assert (entry.state, entry.message.attempt, entry.available_ms) == (MessageState.WAITING, 0, 1_009)
        assert (entry.settled_ms, entry.error) == (0, "no such topic")
        assert box.take(dead_block=True) == ["a1", "a2"]

    def test_only_dead_messages_are_discarded(self) -> None:
        box = Box("-1", "-2")
        box.dead(1)
        assert box.ask(DiscardMessages((1, 2, 7))) == 1
        assert list(box.outbox.entries) == [2]


class TestChecks:
    @pytest.mark.parametrize(
        ("call", "words"),
        [
            (TakeMessages("", 1, 1), "owner must not be empty"),
            (TakeMessages("o", 0, 1), f"count must be between 1 and {TAKE_MAX}, not 0"),
            (TakeMessages("o", TAKE_MAX + 1, 1), "count must be between"),
            (TakeMessages("o", 1, 0), "lease_ms must be between"),
            (SettleMessages(""), "owner must not be empty"),
            (SettleMessages("o", published=(1,), untried=(1,)), "a sequence number stands twice"),
            (SettleMessages("o", published=(0,)), f"sequence must be between 1 and {SEQUENCE_MAX}, not 0"),
            (SettleMessages("o", published=tuple(range(1, SEQUENCES_MAX + 2))), "the number of messages must be"),
            (SettleMessages("o", failed=(FailedMessage(1, "", -1),)), "delay_ms must be between 0"),
            (SettleMessages("o", dead=(DeadMessage(1, "x" * (ERROR_MAX + 1)),)), "characters of an error must be"),
            (PurgeMessages(-1, 1), "older_ms must be between 0"),
            (PurgeMessages(0, PURGE_MAX + 1), f"limit must be between 1 and {PURGE_MAX}"),
            (ListMessages(OutboxFilter(), LIST_MAX + 1), f"limit must be between 1 and {LIST_MAX}"),
            (ListMessages(OutboxFilter(), 1, -1), "after must be between 0"),
            (ListMessages(OutboxFilter(older_than_ms=-1), 1), "older_than_ms must be between 0"),
            (RedriveMessages((0,)), "sequence must be between"),
            (DiscardMessages((SEQUENCE_MAX + 1,)), "sequence must be between"),
        ],
    )
    def test_what_is_out_of_bounds_is_refused(self, call: Effect[Any], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            checked_call(call)

    @pytest.mark.parametrize(
        "call",
        [
            TakeMessages("o", TAKE_MAX, 1, False, True),
            SettleMessages("o", (1,), (FailedMessage(2, "x" * ERROR_MAX, 0),), (DeadMessage(3, "y"),), (4,)),
            PurgeMessages(0, 1),
            ListMessages(OutboxFilter(topic="t", key="k"), 1, SEQUENCE_MAX),
            CountMessages(),
            RedriveMessages((1, SEQUENCE_MAX)),
            DiscardMessages(()),
        ],
    )
    def test_what_is_within_them_is_unchanged(self, call: Effect[Any]) -> None:
        assert checked_call(call) == call

    def test_an_error_is_kept_as_text_that_every_store_takes(self) -> None:
        [dead] = SettleMessages("o", dead=(DeadMessage(1, "a\0b\ud800c"),)).checked().dead
        assert dead.error == "a\N{REPLACEMENT CHARACTER}b?c"

    def test_messages_are_added_in_transactions(self) -> None:
        with pytest.raises(TypeError, match=r"within\(connection\)\.publish"):
            checked_call(AddMessage(message("a1")))

    def test_other_calls_are_for_others(self) -> None:
        with pytest.raises(TypeError, match="an outbox does not answer Pause"):
            checked_call(Pause(1))
        with pytest.raises(TypeError, match="an outbox does not answer Pause"):
            Box().ask(Pause(1))
