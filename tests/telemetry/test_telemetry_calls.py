"""What callers report: one event for each attempt, one at the end, and what metrics, traces and logs make of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from client.api import Api, serving
from client.fronts import FRONTS, AsyncFront, Front
from semel.client import DRAFT_07, STRIPE, Journal, Retry, RetryBudget
from semel.core.calls import call_key, origin_of
from semel.errors import CircuitOpen, KeyReused, StoreUnavailable
from semel.events import CallEvent, Event
from semel.telemetry import Listeners, LogListener
from semel.telemetry.opentelemetry import OpenTelemetryListener
from semel.telemetry.prometheus import PrometheusListener
from telemetry.promtool import check_alerts
from telemetry.test_telemetry_opentelemetry import Backend
from telemetry.test_telemetry_prometheus import Scrape
from waiting import until

HOUR = timedelta(hours=1)
SECRET_KEY, SECRET_TOKEN = "order-4711-of-a-customer", "tok3n"
FAST = Retry(attempts=3, deadline=20, pause_max=0.02)
Open = Callable[..., Front]


@pytest.fixture(params=sorted(FRONTS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_front(kind: str) -> Iterator[Open]:
    with ExitStack() as fronts:

        def open_one(on_event: Callable[[Event], None], **options: Any) -> Front:
            return fronts.enter_context(closing(FRONTS[kind](**{"retry": FAST, "on_event": on_event, **options})))

        yield open_one


@pytest.fixture
def backend() -> Iterator[Backend]:
    backend = Backend()
    yield backend
    backend.close()


class Heard(list[CallEvent]):
    """A listener that keeps what it heard."""

    def __call__(self, event: Event) -> None:
        assert isinstance(event, CallEvent)
        self.append(event)

    @property
    def told(self) -> list[tuple[str, int, str, str]]:
        return [(event.kind.value, event.attempt, event.outcome, event.reason) for event in self]


def attempts_of(*outcomes: str, reason: str = "") -> list[tuple[str, int, str, str]]:
    """The events of attempts. Only the last may have a reason."""
    last = len(outcomes)
    numbered = enumerate(outcomes, 1)
    return [("call_attempted", number, outcome, reason if number == last else "") for number, outcome in numbered]


def test_one_event_for_each_attempt_and_one_at_the_end(open_front: Open) -> None:
    heard = Heard()
    with serving("drop", "refuse 503") as api, closing(Journal("memory://")) as journal:
        front = open_front(heard, journal=journal)
        intent = journal.intent("pay:42", max_age=HOUR)
        received = front.post(f"{api.url}/{SECRET_TOKEN}?token={SECRET_TOKEN}", intent=intent)
        assert heard.told == [*attempts_of("lost", "later", "answered"), ("call_ended", 3, "replayed", "")]
        origin = origin_of(api.url)
        assert {(each.origin, each.dialect, each.intent) for each in heard} == {(origin, "draft-07", "pay:42")}
        assert {each.key for each in heard} == {call_key("POST", origin, received.report.key)}
        assert [each.detail for each in heard[1:]] == ["503", "201", "201"]
        assert heard[0].detail.isidentifier(), "the class of the library's error"
        assert all(each.pause_ms <= 20 for each in heard)
        took = [each.ran_ms or 0 for each in heard]
        assert sum(took[:3]) - 3 <= took[3], "the end has the whole time"
        heard.clear()
        front.post(f"{api.url}/{SECRET_TOKEN}?token={SECRET_TOKEN}", intent=intent)
        assert heard.told == [("call_ended", 0, "journal", "")]
        assert SECRET_TOKEN not in "".join(map(repr, heard))


def test_why_a_call_has_no_answer(open_front: Open) -> None:
    heard = Heard()

    def opens(origin: str) -> Any:
        raise ConnectionError

    with serving(*["refuse 503"] * 4) as api:
        open_front(heard).post(api.url)
        assert heard.told == [
            *attempts_of(*["later"] * 3, reason="attempts"),
            ("call_ended", 3, "undecided", "attempts"),
        ]
        heard.clear()
        open_front(heard, retry=Retry(budget=RetryBudget(at_least=0))).post(api.url)
        assert heard.told == [*attempts_of("later", reason="budget"), ("call_ended", 1, "undecided", "budget")]
        heard.clear()
        with pytest.raises(CircuitOpen):
            open_front(heard, retry=Retry(breaker=opens)).post(api.url)
        assert heard.told == [*attempts_of("held_back"), ("call_ended", 0, "undecided", "held_back")]
        assert [each.detail for each in heard] == ["ConnectionError"] * 2


def test_what_the_journal_refuses(open_front: Open) -> None:
    heard = Heard()
    with serving() as api, closing(Journal("memory://")) as journal:
        front = open_front(heard, journal=journal)
        for body in (b"5", b"6"):
            try:
                front.post(api.url, body, intent=journal.intent("pay:42", max_age=HOUR))
            except KeyReused:
                assert heard.told[-1] == ("call_ended", 0, "refused", "drifted")
        assert [event.key.name for event in heard] == [heard[0].key.name] * 3, "the key of the intent"


def test_a_journal_that_fails(open_front: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    with serving() as api, closing(Journal("memory://")) as journal:
        intent = journal.intent("pay:42", max_age=HOUR)

        def fail(_: object) -> None:
            raise StoreUnavailable("the disk is full")

        monkeypatch.setattr(journal, "answer", fail)
        with pytest.raises(StoreUnavailable):
            open_front(heard, journal=journal).post(api.url, intent=intent)
        assert heard.told == [("call_ended", 0, "interrupted", "journal")]
        assert (heard[0].detail, api.requests) == ("StoreUnavailable", [])


@pytest.mark.parametrize("kind", [kind for kind, front in FRONTS.items() if issubclass(front, AsyncFront)])
def test_a_call_that_is_cancelled(open_front: Open) -> None:
    heard = Heard()
    with serving() as api:
        front = open_front(heard)
        assert isinstance(front, AsyncFront)
        api.may_answer.clear()

        async def cancel() -> None:
            sending = asyncio.ensure_future(front.asend("POST", api.url, b"{}", {}, None))
            await asyncio.to_thread(until, lambda: api.requests)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending

        front.runner.run(cancel())
    assert heard.told == [("call_ended", 1, "interrupted", "cancelled")]


def test_a_listener_that_fails_changes_nothing(open_front: Open, caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Event) -> None:
        raise RuntimeError("the metrics server is away")

    with serving("drop") as api:
        assert open_front(fail).post(api.url).status == 201
    assert caplog.text.count("the listener failed on call_") == 3
    with pytest.raises(TypeError, match="on_event= must be a function, not str"):
        open_front("log")


def send_some(front: Front, api: Api) -> None:
    """Two calls with an answer, one of them after a repeat, and one in doubt."""
    for _ in range(2):
        front.post(api.url, headers={"Idempotency-Key": SECRET_KEY})
    front.post(api.url)


def test_what_prometheus_scrapes(open_front: Open) -> None:
    registry = CollectorRegistry()
    with serving("drop", "answer", "answer", "problem outcome-unknown") as api:
        origin = origin_of(api.url)
        front = open_front(PrometheusListener(registry=registry, origins=[origin]))
        fresh = Scrape(registry)
        send_some(front, api)
    seen, where = Scrape(registry), {"origin": origin, "dialect": "draft-07"}
    assert seen.value("semel_calls_total") == 3
    assert seen.value("semel_calls_total", outcome="replayed", **where) == 2
    assert seen.value("semel_calls_total", outcome="doubtful", reason="unknown", **where) == 1
    assert seen.value("semel_call_attempts_total", outcome="answered", **where) == 2
    assert seen.value("semel_call_attempts_total", outcome="lost", **where) == 1
    assert seen.value("semel_call_attempt_duration_seconds_count", **where) == 4
    assert seen.value("semel_call_duration_seconds_count", outcome="doubtful", **where) == 1
    assert seen.value("semel_events_total") == 0, "nothing that a service decides"
    counters = {"semel_calls_total", "semel_call_attempts_total"}
    begun = {(each.name, *each.labels.items()) for each in fresh.samples if each.name in counters}
    assert {(each.name, *each.labels.items()) for each in seen.samples if each.name in counters} == begun
    assert fresh.value("semel_calls_total") == fresh.value("semel_call_attempts_total") == 0
    assert SECRET_KEY not in seen.text
    assert "/pay" not in seen.text


def test_a_service_that_is_not_listed_is_another(open_front: Open) -> None:
    registry = CollectorRegistry()
    with serving() as api:
        open_front(PrometheusListener(registry=registry), dialect=STRIPE).post(api.url)
    seen = Scrape(registry)
    assert seen.value("semel_calls_total", origin="other", dialect="stripe", outcome="answered") == 1
    assert origin_of(api.url) not in seen.text
    PrometheusListener(registry=registry, origins=["https://api.example"], dialects=[DRAFT_07, STRIPE])
    again = Scrape(registry)
    assert {each.labels["origin"] for each in again.samples if "dialect" in each.labels} == {
        "https://api.example",
        "other",
    }


@pytest.mark.parametrize("wrong", ["api.example", "https://api.example/", "https://api.example:443", ""])
@pytest.mark.parametrize("listener", [PrometheusListener, OpenTelemetryListener])
def test_an_origin_that_never_matches_is_refused(listener: Any, wrong: str) -> None:
    options: Any = {"registry": CollectorRegistry()} if listener is PrometheusListener else {}
    with pytest.raises(ValueError, match=f"origins= has '{wrong}': write the scheme, the host and a port"):
        listener(origins=[wrong], **options)


def test_what_opentelemetry_receives(open_front: Open, backend: Backend) -> None:
    with serving("drop", "answer", "answer", "problem outcome-unknown") as api:
        origin = origin_of(api.url)
        front = open_front(OpenTelemetryListener(meter_provider=backend.meters, origins=[origin]))
        fresh = {name: backend.values(name) for name in ("semel.calls", "semel.call.attempts")}
        with backend.tracer.start_as_current_span("checkout") as span:
            span.set_attribute("semel.event", "claimed")
            send_some(front, api)
        open_front(OpenTelemetryListener(), retry=FAST).post(api.url)
    assert {value for values in fresh.values() for value in values.values()} == {0}
    assert {name: backend.values(name).keys() for name in fresh} == {name: fresh[name].keys() for name in fresh}
    assert {what: count for what, count in backend.values("semel.calls").items() if count} == {
        ("draft-07", origin, "replayed"): 2,
        ("draft-07", origin, "doubtful", "unknown"): 1,
    }
    assert {what: count for what, count in backend.values("semel.call.attempts").items() if count} == {
        ("draft-07", origin, "lost"): 1,
        ("draft-07", origin, "answered"): 2,
        ("draft-07", origin, "unknown"): 1,
    }
    assert backend.values("semel.call.duration")[("draft-07", origin, "replayed")] == 2
    assert backend.values("semel.call.attempt.duration") == {("draft-07", origin): 4}
    checkout = backend.spans()["checkout"]
    assert [event.name for event in checkout.events] == [
        *["semel.call_attempted"] * 2,
        "semel.call_ended",
        *["semel.call_attempted", "semel.call_ended"] * 2,
    ]
    assert (checkout.attributes or {})["semel.event"] == "claimed", "the request at hand is another one"
    first = checkout.events[0].attributes or {}
    assert (first["semel.attempt"], first["semel.outcome"], first["semel.scope"]) == (1, "lost", f"POST {origin}")
    assert SECRET_KEY not in checkout.to_json()


def test_what_is_logged(open_front: Open, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with serving("drop", "answer", "answer", "problem outcome-unknown") as api:
        send_some(open_front(Listeners(LogListener("shop.calls"))), api)
    warned = [record for record in caplog.records if record.name == "semel" and record.levelno == logging.WARNING]
    assert [vars(record)["semel_outcome"] for record in warned] == ["doubtful"], "somebody has to decide"
    told = [record for record in caplog.records if record.name == "shop.calls"]
    assert [vars(record)["semel_event"] for record in told].count("call_ended") == 3
    assert SECRET_KEY not in caplog.text


@pytest.mark.parametrize(
    ("alert", "trouble", "quiet", "minutes"),
    [
        ("SemelCallsInDoubt", "problem outcome-unknown", 5, 1),
        ("SemelCallsInDoubt", "problem outcome-unknown", 0, 1),
        ("SemelRetryBudgetSpent", "refuse 503", 5, 3),
    ],
)
def test_the_first_call_of_a_fresh_process_fires(
    alert: str, trouble: str, quiet: int, minutes: int, tmp_path: Path
) -> None:
    registry, retry = CollectorRegistry(), Retry(budget=RetryBudget(at_least=0))
    with serving(trouble) as api:
        listener = PrometheusListener(registry=registry, origins=[origin_of(api.url)])
        scrapes = [Scrape(registry).text] * quiet
        with closing(FRONTS["httpx"](retry=retry, on_event=listener)) as front:
            front.post(api.url)
    scrapes += [Scrape(registry).text] * 40
    before: dict[int, set[str]] = {quiet - 1: set()} if quiet else {}
    check_alerts(tmp_path, scrapes, before | {quiet + minutes: {alert}, quiet + 35: set()})
