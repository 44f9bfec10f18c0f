"""`semel outbox`: what operators see of messages, and what they may do about dead ones."""

import json
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from cli.calls import run, run_json
from semel.core import outbox_model
from semel.core.effects import Effect
from semel.core.messages import Message
from semel.core.outbox import (
    AddMessage,
    DeadMessage,
    MessageState,
    OutboxEntry,
    SettleMessages,
    TakeMessages,
    UnreadableMessage,
)
from semel.errors import StoreUnavailable
from semel.stores.memory import MemoryStore

T = TypeVar("T")
URL = "postgresql://localhost/shop"
MINUTE_MS = 60_000


class ModelStore(MemoryStore):
    """A store whose outbox is the model. The tests turn its clock."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        super().__init__(clock=lambda: self.now_ms)
        self.state = outbox_model.Outbox()
        self.is_away = False
        self.unreadable: tuple[UnreadableMessage, ...] = ()

    def outbox(self, call: Effect[T]) -> T:
        if self.is_away:
            raise StoreUnavailable("the store does not answer")
        self.state, reply = outbox_model.answer(self.state, call, self.now_ms)
        if self.unreadable and hasattr(reply, "unreadable"):
            reply = replace(reply, unreadable=self.unreadable)  # type: ignore[type-var]
        return reply

    def add(self, id_: str, topic: str = "orders", key: str | None = None, **more: Any) -> None:
        assert self.outbox(AddMessage(Message(id_, topic, more.pop("payload", b'{"n": 1}'), key=key, **more)))

    def take(self, lease_ms: int = MINUTE_MS) -> dict[str, int]:
        taken = self.outbox(TakeMessages("relay", 100, lease_ms))
        return {each.message.id: each.sequence for each in taken}

    def kill(self, *ids: str, error: str = "too large") -> None:
        held = self.take()
        dead = tuple(DeadMessage(held[id_], error) for id_ in ids)
        self.outbox(SettleMessages("relay", dead=dead, untried=tuple(held[id_] for id_ in held if id_ not in ids)))

    def publish(self, *ids: str) -> None:
        held = self.take()
        rest = tuple(held[id_] for id_ in held if id_ not in ids)
        self.outbox(SettleMessages("relay", published=tuple(held[id_] for id_ in ids), untried=rest))

    def entry(self, id_: str) -> OutboxEntry:
        return next(each for each in self.state.in_order() if each.message.id == id_)


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> ModelStore:
    """What `--store` opens: an order waits, one is held, one was published, and two are dead."""
    store = ModelStore()
    monkeypatch.setattr("semel.cli.options.open_store", lambda url: store)
    store.add("pub-1", key="order-1")
    store.publish("pub-1")
    store.now_ms += MINUTE_MS
    store.add("dead-1", key="order-2", headers={"traceparent": "00-ab"}, content_type="application/json")
    store.add("dead-2", "mails", payload=b"\xff\x00")
    store.kill("dead-1", "dead-2")
    store.now_ms += MINUTE_MS
    store.add("held-1")
    store.take()
    store.add("wait-1", "mails", key="order-3")
    return store


def ids(told: Any) -> list[str]:
    return [each["id"] for each in told["messages"]]


def outbox(*words: str, status: int = 0) -> Any:
    return run_json("outbox", *words, store=URL, status=status)


class TestList:
    def test_messages_stand_in_their_order(self, shop: ModelStore) -> None:
        told = outbox("list")
        assert ids(told) == ["pub-1", "dead-1", "dead-2", "held-1", "wait-1"]
        assert not told["more"]
        dead = told["messages"][1]
        assert (dead["state"], dead["topic"], dead["key"], dead["attempts"]) == ("dead", "orders", "order-2", 1)
        assert dead["error"] == "too large"
        assert dead["bytes"] == 8
        assert "payload" not in dead
        assert told["messages"][3]["held_until"] is not None
        assert told["messages"][4]["held_until"] is None

    @pytest.mark.parametrize(
        ("words", "found"),
        [
            (("--state", "dead"), ["dead-1", "dead-2"]),
            (("--topic", "mails"), ["dead-2", "wait-1"]),
            (("--key", "order-3"), ["wait-1"]),
            (("--id-prefix", "dead-"), ["dead-1", "dead-2"]),
            (("--older-than", "90s"), ["pub-1"]),
            (("--state", "dead", "--topic", "orders"), ["dead-1"]),
            (("--sort", "topic", "--reverse", "--limit", "2"), ["pub-1", "dead-1"]),
            (("--sort", "created", "--reverse", "--limit", "1"), ["held-1"]),
            (("--sort", "settled"), ["pub-1", "dead-1", "dead-2", "held-1", "wait-1"]),
        ],
    )
    def test_filters_and_order(self, shop: ModelStore, words: tuple[str, ...], found: list[str]) -> None:
        assert ids(outbox("list", *words)) == found

    def test_it_says_when_there_is_more(self, shop: ModelStore) -> None:
        assert outbox("list", "--limit", "2")["more"]
        told = outbox("list", "--sort", "key", "--scan-max", "2")
        assert (told["more"], told["scanned"], told["sorted_by"]) == (True, 2, "key")
        assert "There are more than these 2" in run("outbox", "list", "--limit", "2", store=URL).stderr
        assert (
            "of the first 2 that were sorted"
            in run(*("outbox", "list", "--sort", "key", "--scan-max", "2"), store=URL).stderr
        )

    def test_a_table_for_people(self, shop: ModelStore) -> None:
        lines = run("outbox", "list", store=URL).stdout.splitlines()
        assert lines[0].split() == ["ID", "STATE", "ATTEMPTS", "AGE", "TOPIC", "KEY", "ERROR"]
        assert lines[2].split() == ["dead-1", "dead", "1", "1m", "orders", "order-2", "too", "large"]
        assert "waiting, held" in lines[4]
        assert run("outbox", "list", "--topic", "none", store=URL).stdout == "No message matches.\n"

    def test_nothing_in_a_message_controls_the_terminal(self, shop: ModelStore) -> None:
        shop.add("evil", "topic", payload=b"\x1b[2J")
        shop.kill("evil", error="\x1b[31mred\u202e")
        for words in (("list",), ("show", "evil"), ("list", "--json"), ("show", "evil", "--json")):
            shown = run("outbox", *words, store=URL).stdout
            assert "\x1b" not in shown
            assert "\u202e" not in shown

    def test_what_cannot_be_read_is_named_and_stops_nothing(self, shop: ModelStore) -> None:
        shop.unreadable = tuple(UnreadableMessage(number, "of a newer version") for number in range(7))
        assert len(outbox("list")["unreadable"]) == 7
        said = run("outbox", "list", store=URL).stderr
        assert "Skipped, because it cannot be read: 0: of a newer version" in said
        assert "Skipped 2 more" in said

    def test_the_store_is_away(self, shop: ModelStore) -> None:
        shop.is_away = True
        for words in (("list",), ("show", "x"), ("redrive", "x"), ("discard", "--state", "dead"), ("purge",)):
            done = run("outbox", *words, "--yes" if words[0] in ("redrive", "discard") else "--json", store=URL)
            assert done.exit_code == 3
            assert "the store does not answer" in done.stderr

    def test_a_store_without_an_outbox_is_refused(self, redis_url: str) -> None:
        done = run("outbox", "list", store=redis_url)
        assert done.exit_code == 2
        assert "has no outbox" in done.stderr
        assert "postgresql:// or sqlite://" in done.stderr


class TestShow:
    def test_a_message_with_its_payload(self, shop: ModelStore) -> None:
        told = outbox("show", "dead-1")
        assert told["payload"] == '{"n": 1}'
        assert told["headers"] == {"traceparent": "00-ab"}
        assert told["content_type"] == "application/json"
        shown = run("outbox", "show", "dead-1", store=URL).stdout
        assert "header       traceparent: 00-ab" in shown
        assert shown.endswith('\n{"n": 1}\n')

    def test_a_binary_payload_and_a_cut(self, shop: ModelStore) -> None:
        assert outbox("show", "dead-2")["payload"] == "(binary) ff 00"
        assert outbox("show", "dead-1", "--body-max", "3") | {"payload": '{"n', "truncated": True} == outbox(
            "show", "dead-1", "--body-max", "3"
        )
        assert "--body-max shows more" in run("outbox", "show", "dead-1", "--body-max", "3", store=URL).stderr

    def test_the_beginning_of_an_id_is_enough(self, shop: ModelStore) -> None:
        assert outbox("show", "wai")["id"] == "wait-1"
        done = run("outbox", "show", "dead", store=URL)
        assert done.exit_code == 2
        assert "dead-1\n  dead-2" in done.stderr
        assert run("outbox", "show", "nothing", store=URL).exit_code == 1
        assert run("outbox", "show", "", store=URL).exit_code == 1
        shop.add("wait-12")
        assert outbox("show", "wait-1")["id"] == "wait-1"


class TestDead:
    def test_redrive_one(self, shop: ModelStore) -> None:
        told = outbox("redrive", "dead-1", "--yes")
        assert told == {"action": "redrive", "changed": 1, "refused": 0, "more": False}
        assert shop.entry("dead-1").state is MessageState.WAITING
        assert shop.entry("dead-1").message.attempt == 0
        assert shop.entry("dead-2").state is MessageState.DEAD

    def test_redrive_all_that_match(self, shop: ModelStore) -> None:
        done = run("outbox", "redrive", "--state", "dead", "--yes", store=URL)
        assert done.stdout == "Redrove 2 messages.\n"
        assert "dead-1" in shop.take()

    def test_discard(self, shop: ModelStore) -> None:
        assert outbox("discard", "--topic", "mails", "--yes")["changed"] == 1
        assert ids(outbox("list")) == ["pub-1", "dead-1", "held-1", "wait-1"]

    def test_it_counts_before_it_asks(self, shop: ModelStore) -> None:
        done = run("outbox", "discard", "--state", "dead", store=URL)
        assert done.exit_code == 1
        assert "Delete 2 messages for ever" in done.stderr
        assert "add --yes" in done.stderr
        assert shop.entry("dead-1").state is MessageState.DEAD

    def test_what_is_not_dead_is_left_alone(self, shop: ModelStore) -> None:
        done = run("outbox", "discard", "wait-1", "--yes", store=URL)
        assert done.exit_code == 1
        assert "wait-1 is waiting, not dead" in done.stderr
        assert outbox("discard", "--state", "waiting", "--yes")["changed"] == 0
        assert run("outbox", "redrive", "--topic", "none", "--yes", store=URL).stdout == "No dead message matches.\n"
        assert len(shop.state.entries) == 5

    def test_a_choice_is_required_and_only_one(self, shop: ModelStore) -> None:
        assert run("outbox", "redrive", "--yes", store=URL).exit_code == 2
        assert run("outbox", "redrive", "dead-1", "--topic", "orders", "--yes", store=URL).exit_code == 2

    def test_the_limit_bounds_what_is_changed(self, shop: ModelStore) -> None:
        told = outbox("redrive", "--state", "dead", "--limit", "1", "--yes")
        assert (told["changed"], told["more"]) == (1, True)

    def test_what_another_operator_changed_meanwhile_is_counted(
        self, shop: ModelStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answer, first = outbox_model.answer, [True]

        def race(state: outbox_model.Outbox, call: Effect[T], now_ms: int) -> Any:
            if type(call).__name__ == "DiscardMessages" and first.pop():
                entry = shop.entry("dead-1")
                state = state.but(gone=[entry])
            return answer(state, call, now_ms)

        monkeypatch.setattr("semel.core.outbox_model.answer", race)
        done = run("outbox", "discard", "--state", "dead", "--yes", "--json", store=URL)
        assert done.exit_code == 1
        assert json.loads(done.stdout)["refused"] == 1
        assert "1 message stayed" in done.stderr


class TestPurge:
    def test_only_old_published_messages_go(self, shop: ModelStore) -> None:
        assert outbox("purge")["changed"] == 0
        assert outbox("purge", "--older-than", "1m")["changed"] == 1
        assert ids(outbox("list")) == ["dead-1", "dead-2", "held-1", "wait-1"]

    def test_in_batches_up_to_a_limit(self, shop: ModelStore) -> None:
        for number in range(10):
            shop.add(f"more-{number}", "bulk")
        shop.publish(*(f"more-{number}" for number in range(10)))
        assert outbox("purge", "--older-than", "0s", "--batch", "3", "--limit", "7")["changed"] == 7
        done = run("outbox", "purge", "--older-than", "0s", "--batch", "2", "--rate", "1000", store=URL)
        assert done.stdout == "Purged 4 messages.\n"
