"""Events say what is worth logging, name the request they belong to, and never the key."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from semel.core.correlation import correlation_of, trace_label, trace_of
from semel.core.effects import Claim, Emit
from semel.core.records import OWNER_MAX, Acquired, Key, Lease, Result, State
from semel.errors import RecordUnreadable, StoreMisconfigured, StoreUnavailable
from semel.events import ENDS, NO_KEY, STARTS, Event, EventKind
from semel.runtime.listener import LEVELS, ignore, logged
from semel.runtime.perform import performer
from semel.stores.memory import MemoryStore
from semel.telemetry import CallListener, Listeners, LogListener
from telemetry.shop import SECRET_KEY, Shop

KEY = Key("tenant", "POST /pay", SECRET_KEY)
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("event", "transition"),
    [
        (Event(EventKind.CLAIMED, KEY, 1), "absent -> in_progress"),
        (Event(EventKind.TAKEN_OVER, KEY, 2), "unknown -> in_progress"),
        (Event(EventKind.COMPLETED, KEY, 1, state=State.SUCCEEDED), "in_progress -> succeeded"),
        (Event(EventKind.COMPLETED, KEY, 1, state=State.FAILED), "in_progress -> failed"),
        (Event(EventKind.COMPLETED, KEY, 1), "in_progress -> finished"),
        (Event(EventKind.RELEASED, KEY, 1), "in_progress -> absent"),
        (Event(EventKind.RELEASED, KEY, 2), "in_progress -> unknown"),
        (Event(EventKind.LEFT, KEY, 1), "in_progress -> unknown"),
        (Event(EventKind.NOT_STORED, KEY, 1), "in_progress -> unknown"),
        (Event(EventKind.REPLAYED, KEY, 1, state=State.FAILED), ""),
        (Event(EventKind.MISMATCHED, KEY), ""),
    ],
)
def test_the_transition_of_the_record(event: Event, transition: str) -> None:
    assert event.transition == transition
    assert event.fields().get("transition", "") == transition


def test_the_fields_of_an_event_name_the_key_only_as_a_digest() -> None:
    event = Event(
        EventKind.REPLAYED, KEY, 1, owner="random.req-17", asker="other.req-18", state=State.SUCCEEDED, ran_ms=250
    )
    assert event.fields() == {
        "event": "replayed",
        "key": event.key_digest,
        "tenant": "tenant",
        "scope": "POST /pay",
        "attempt": 1,
        "request": "req-18",
        "first_request": "req-17",
        "ran_ms": 250,
    }
    assert len(event.key_digest) == 16
    assert SECRET_KEY not in str(event)


def test_the_fields_of_an_event_name_a_message_by_its_id() -> None:
    event = Event(EventKind.MESSAGE_FAILED, Key("", "orders.placed", "id-1"), 2, "no queue")
    assert event.fields() == {
        "event": "message_failed",
        "message": "id-1",
        "topic": "orders.placed",
        "attempt": 2,
        "detail": "no queue",
    }


def test_events_about_no_single_key() -> None:
    assert str(Event(EventKind.PURGED, NO_KEY, count=40)) == "purged count=40"
    assert str(Event(EventKind.REFUSED, NO_KEY, detail="key-missing")) == "refused detail=key-missing"
    assert Event(EventKind.CLAIMED, Key("", "", NO_KEY.name), 1).key_digest, "a caller may call its key so"


def test_every_start_can_end() -> None:
    assert not STARTS & ENDS


@pytest.mark.parametrize("span", [SPAN, "f" * 16, "fbff000000000001"])
def test_a_trace_fits_into_an_owner_and_comes_back(span: str) -> None:
    label = trace_label(f"00-{TRACE}-{span}-01")
    owner = f"{'x' * 20}.{label}"
    assert len(owner) == OWNER_MAX
    assert correlation_of(owner) == TRACE
    assert trace_of(owner) == (int(TRACE, 16), int(span, 16))


@pytest.mark.parametrize(
    "header", ["", "garbage", f"00-{TRACE}-{SPAN}", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01"]
)
def test_what_is_no_traceparent_has_no_trace(header: str) -> None:
    assert trace_label(header) is None
    assert trace_of(f"random.{TRACE}") is None
    assert correlation_of(f"random.{TRACE}") == TRACE
    assert correlation_of("random") == ""


class JsonLines(logging.Handler):
    """What a JSON formatter makes of a log record: every attribute that is not one of logging's own."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields = {name: value for name, value in vars(record).items() if name.startswith("semel_")}
        self.lines.append(json.loads(json.dumps({"level": record.levelname, "message": record.getMessage(), **fields})))


def test_a_log_of_ones_own_has_every_decision_as_fields(tmp_path: Path) -> None:
    handler = JsonLines()
    log = logging.getLogger("shop.audit")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    shop = Shop(tmp_path, LogListener("shop.audit"))

    async def work() -> None:
        await shop.capture(**{"X-Request-ID": "req-1"})
        await shop.capture(**{"X-Request-ID": "req-2"})
        await shop.capture(do="something else")

    try:
        shop.run(work)
    finally:
        log.removeHandler(handler)
    assert shop.ledger == ["pay"]
    assert [line["semel_event"] for line in handler.lines] == ["claimed", "completed", "replayed", "mismatched"]
    assert [line.get("semel_transition") for line in handler.lines[:2]] == [
        "absent -> in_progress",
        "in_progress -> succeeded",
    ]
    replayed = handler.lines[2]
    assert replayed["semel_request"] == "req-2"
    assert replayed["semel_first_request"] == "req-1", "the request whose answer it is"
    assert replayed["semel_tenant"] == "shop"
    assert replayed["semel_scope"] == "POST /payments/17/capture"
    assert replayed["semel_ran_ms"] >= 0
    assert SECRET_KEY not in json.dumps(handler.lines)


def test_work_whose_outcome_is_lost_is_logged_for_everyone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the logging of an application that configures nothing but a level of WARNING."""
    caplog.set_level(logging.WARNING, "semel")
    shop = Shop(tmp_path, lambda event: None, lease=0.05)

    async def work() -> None:
        await shop.capture(do="lose", **{"X-Request-ID": "req-1"})
        await shop.capture("another")
        while (await shop.capture(do="lose", **{"X-Request-ID": "req-2"})).headers.get("Retry-After"):
            await asyncio.sleep(0.01)

    shop.run(work)
    lines = [(line.levelname, line.getMessage().split()[0], vars(line)["semel_request"]) for line in caplog.records]
    assert lines == [("WARNING", "left", "req-1"), ("WARNING", "unknown", "req-2")]
    assert vars(caplog.records[1])["semel_first_request"] == "req-1"


def test_every_level_is_chosen() -> None:
    assert LEVELS.keys() == {
        *(EventKind.STORE_FAILED, EventKind.NOT_STORED, EventKind.UNREADABLE),
        *(EventKind.LEFT, EventKind.UNKNOWN, EventKind.LEASE_LOST, EventKind.SUPERSEDED),
        *(EventKind.MESSAGE_DEAD, EventKind.MESSAGE_FAILED, EventKind.RELAY_PAUSED),
    }


def test_a_silent_log_costs_no_fields(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "semel")

    def built(self: Event) -> dict[str, str | int]:
        raise AssertionError("nobody reads it")

    monkeypatch.setattr(Event, "fields", built)
    logging.getLogger("shop.silent").setLevel(logging.WARNING)
    LogListener("shop.silent")(Event(EventKind.CLAIMED, KEY, 1))
    logged(ignore)(Event(EventKind.CLAIMED, KEY, 1))


class Calls:
    """Hears of calls on the store."""

    def __init__(self) -> None:
        self.events: list[EventKind] = []
        self.calls: list[tuple[str, str]] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event.kind)

    def called(self, call: str, outcome: str, seconds: float) -> None:
        assert seconds >= 0
        self.calls.append((call, outcome))


class Broken(Calls):
    def __call__(self, event: Event) -> None:
        raise RuntimeError("the metrics server is away")

    def called(self, call: str, outcome: str, seconds: float) -> None:
        raise RuntimeError("the metrics server is away")


class Failing(MemoryStore):
    error: BaseException = StoreUnavailable("away")

    def claim(self, *args: Any, **more: Any) -> Any:
        raise self.error


CLAIM = Claim(KEY, "1.f", "owner", 30_000, 30_000, takeover=False)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (StoreUnavailable("away"), "unavailable"),
        (StoreMisconfigured("read-only"), "misconfigured"),
        (RecordUnreadable("format 9"), "unreadable"),
        (KeyError("a fault"), "error"),
        (KeyboardInterrupt(), "cancelled"),
    ],
)
def test_the_outcome_of_a_call(error: BaseException, outcome: str) -> None:
    store, calls = Failing(), Calls()
    store.error = error
    with pytest.raises(type(error)):
        performer(store, logged(calls))(CLAIM)
    assert calls.calls == [("claim", outcome)]


def test_listeners_that_fail_neither_change_the_work_nor_silence_each_other(caplog: pytest.LogCaptureFixture) -> None:
    calls = Calls()
    several = Listeners(Broken(), ignore, calls)
    assert isinstance(several, CallListener)
    perform = performer(MemoryStore(clock=lambda: 0), logged(several))
    assert perform(CLAIM) == Acquired(Lease(KEY, "owner", 1, 30_000))
    assert perform(Emit(Event(EventKind.CLAIMED, KEY, 1))) is None
    assert (calls.calls, calls.events) == ([("claim", "ok")], [EventKind.CLAIMED])
    assert "failed on the store's claim" in caplog.text
    assert "failed on claimed" in caplog.text


def test_a_listener_of_calls_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert performer(MemoryStore(clock=lambda: 0), Broken())(CLAIM) == Acquired(Lease(KEY, "owner", 1, 30_000))
    assert "the listener failed on the store's claim" in caplog.text


def test_a_replay_says_how_long_the_work_took_where_that_is_known() -> None:
    from semel.core.policy import Policy
    from semel.core.protocol import acquire, settle
    from semel.core.tables import Ending
    from semel.runtime.drive import drive

    now_ms, events = [0], list[Event]()
    store = MemoryStore(clock=lambda: now_ms[0])
    perform = performer(store, events.append)
    policy = Policy(lease=1, guarantee="at-least-once")

    def complete(owner: str) -> None:
        decision = drive(acquire(KEY, "1.f", owner, policy), perform)
        now_ms[0] += 700
        plan = settle(decision.lease, Ending.FAILED, Result("t", b"", ok=False), policy, fingerprint="1.f")  # type: ignore[union-attr]
        drive(plan, perform)

    def replay() -> Event:
        drive(acquire(KEY, "1.f", "repeat", policy), perform)
        assert events[-1].kind is EventKind.REPLAYED
        return events[-1]

    complete("first")
    assert (events[-1].kind, events[-1].state) == (EventKind.COMPLETED, State.FAILED)
    assert (replay().ran_ms, replay().state) == (700, State.FAILED)
    now_ms[0] += policy.retention_ms
    drive(acquire(KEY, "1.f", "lost", policy), perform)
    now_ms[0] += 5_000  # it lapses
    complete("second")
    assert replay().ran_ms is None, "after a take-over nobody knows what the work itself took"


def test_reports_of_one_thing_are_one_in_a_set() -> None:
    key = Key("shop", "POST /pay", "k")
    found = {Event(EventKind.CLAIMED, key, 1, owner="a"), Event(EventKind.CLAIMED, key, 1, owner="b", ran_ms=3)}
    assert len(found) == 1
    assert len({Event(EventKind.CLAIMED, key, 1), Event(EventKind.CLAIMED, key, 2)}) == 2
