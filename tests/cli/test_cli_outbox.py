"""`semel outbox`: what operators see of messages, and what they may do about dead ones."""

import json
from typing import Any, TypeVar

import pytest

from cli.calls import run, run_json
from outbox.model_store import MINUTE_MS, ModelStore
from semel.cli.backlog import examine_outbox
from semel.core import outbox_model
from semel.core.effects import Effect
from semel.core.outbox import (
    FailedMessage,
    MessageState,
    SettleMessages,
    UnreadableMessage,
)
from semel.stores.memory import MemoryStore

T = TypeVar("T")
URL = "postgresql://localhost/shop"


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
        assert "postgresql://, mariadb:// or sqlite://" in done.stderr


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


class TestStats:
    def test_messages_are_counted(self, shop: ModelStore) -> None:
        told = run_json("stats", store=URL)["messages"]
        assert told == {"waiting": 2, "published": 1, "dead": 2, "oldest_ms": 0, "unreadable": 0}
        shop.now_ms += MINUTE_MS
        shown = run("stats", store=URL).stdout
        assert "waiting    2, the oldest for 1m\npublished  1\ndead       2\n" in shown

    def test_an_empty_outbox_is_not_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("semel.cli.options.open_store", lambda url: ModelStore())
        assert "MESSAGES" not in run("stats", store=URL).stdout


class TestDoctor:
    """The model has no schema to look at, so the findings are asked for directly."""

    def test_dead_letters_are_a_warning(self, shop: ModelStore) -> None:
        dead, waiting = examine_outbox(shop)
        assert (dead.title, dead.level) == ("dead letters", "warning")
        assert dead.detail.startswith("2 messages could not be published")
        assert (waiting.title, waiting.level) == ("messages", "ok")

    def test_messages_that_no_relay_takes(self, shop: ModelStore) -> None:
        shop.now_ms += 2 * MINUTE_MS + 1  # the lease of the relay that is there has ended a minute ago
        finding = examine_outbox(shop)[1]
        assert finding.level == "warning"
        assert "no relay seems to run" in finding.detail

    def test_a_backlog_that_a_relay_works_on(self, shop: ModelStore) -> None:
        shop.now_ms += 6 * MINUTE_MS
        held = shop.take()
        shop.outbox(SettleMessages("relay", failed=(FailedMessage(held["wait-1"], "odd", 1),)))
        finding = examine_outbox(shop)[1]
        assert finding.level == "warning"
        assert "the oldest for 6m; the first error is: odd" in finding.detail

    def test_without_messages_there_is_nothing_to_say(self, shop: ModelStore) -> None:
        assert not examine_outbox(ModelStore())
        assert not examine_outbox(MemoryStore())
        shop.is_away = True
        assert not examine_outbox(shop)
