"""OpenTelemetry: metrics, attributes on the current span, and a link from a replay to the first request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from semel.core.correlation import trace_label
from semel.core.records import Key
from semel.events import NO_KEY, OF_CALLS, Event, EventKind
from semel.stores.memory import MemoryStore
from semel.telemetry.opentelemetry import OpenTelemetryListener, observe_records
from telemetry.shop import SECRET_KEY, Shop

CAPTURE = "POST /payments/{id}/capture"
KEY = Key("shop", "POST /payments/17/capture", SECRET_KEY)
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Backend:
    """What an OpenTelemetry backend would receive. Nothing global is set: other tests have none of it."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])
        self._spans = InMemorySpanExporter()
        self._tracers = TracerProvider()
        self._tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracer = self._tracers.get_tracer("server")

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._spans.get_finished_spans()}

    def values(self, name: str) -> dict[tuple[Any, ...], float]:
        """The points of a metric, by the values of their attributes."""
        found = self._reader.get_metrics_data()
        assert found is not None
        metrics = [
            metric for each in found.resource_metrics for scope in each.scope_metrics for metric in scope.metrics
        ]
        [data] = [metric.data for metric in metrics if metric.name == name]
        return {
            tuple(value for _, value in sorted((point.attributes or {}).items())): getattr(
                point, "value", getattr(point, "count", 0)
            )
            for point in data.data_points
        }

    def close(self) -> None:
        self.meters.shutdown()
        self._tracers.shutdown()


@pytest.fixture
def backend() -> Iterator[Backend]:
    backend = Backend()
    yield backend
    backend.close()


def test_every_series_of_a_counter_begins_at_zero(backend: Backend) -> None:
    """A backend sees no increase in a series that begins at 1."""
    listener = OpenTelemetryListener(meter_provider=backend.meters, operations=[CAPTURE])
    names = ("semel.events", "semel.operations.active", "semel.replay.saved", "semel.records.purged")
    fresh = {name: backend.values(name) for name in names}
    assert {value for values in fresh.values() for value in values.values()} == {0}
    for kind in [each for each in EventKind if each not in OF_CALLS]:
        for key in (KEY, NO_KEY):
            listener(Event(kind, key, 1, owner="a", ran_ms=1 if kind is EventKind.REPLAYED else None))
    assert {name: backend.values(name).keys() for name in names} == {name: fresh[name].keys() for name in names}


def test_records_are_observed_by_state(backend: Backend) -> None:
    store = MemoryStore()
    store.claim(KEY, "f", owner="o", lease_ms=60_000, retention_ms=60_000, takeover=False)
    observe_records(store, meter_provider=backend.meters)
    found = {state: count for (state,), count in backend.values("semel.records").items()}
    assert found == {"in_progress": 1, "unknown": 0, "succeeded": 0, "failed": 0, "unreadable": 0}


def test_a_service_under_way(backend: Backend, tmp_path: Path) -> None:
    shop = Shop(tmp_path, OpenTelemetryListener(meter_provider=backend.meters, operations=[CAPTURE]))

    async def work() -> None:
        with backend.tracer.start_as_current_span("first"):
            await shop.capture(traceparent=f"00-{TRACE}-{SPAN}-01")
        with backend.tracer.start_as_current_span("repeat"):
            await shop.capture()
        await shop.capture()

    shop.run(work)
    assert shop.ledger == ["pay"]
    assert {what: count for what, count in backend.values("semel.events").items() if count} == {
        ("claimed", CAPTURE): 1,
        ("completed", CAPTURE): 1,
        ("replayed", CAPTURE): 2,
    }
    assert backend.values("semel.operations.active") == {(CAPTURE,): 0, ("other",): 0}
    assert backend.values("semel.operation.duration") == {(CAPTURE, "completed"): 1}
    assert backend.values("semel.store.call.duration") == {("ok", "claim"): 3, ("ok", "complete"): 1}
    first, repeat = backend.spans()["first"], backend.spans()["repeat"]
    assert [event.name for event in first.events] == ["semel.claimed", "semel.completed"]
    assert (first.attributes or {})["semel.transition"] == "in_progress -> succeeded"
    found = repeat.attributes or {}
    assert found["semel.event"] == "replayed"
    assert found["semel.tenant"] == "shop"
    assert found["semel.first_request"] == TRACE, "the trace whose answer it is"
    [link] = repeat.links
    assert (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") == (TRACE, SPAN)
    assert SECRET_KEY not in first.to_json() + repeat.to_json()


def test_a_replay_links_to_the_span_of_the_first_request(backend: Backend) -> None:
    listener = OpenTelemetryListener(meter_provider=backend.meters)
    owner = f"random.{trace_label(f'00-{TRACE}-{SPAN}-01')}"
    with backend.tracer.start_as_current_span("repeat"):
        listener(Event(EventKind.REPLAYED, KEY, 1, owner=owner, ran_ms=2_500))
        listener(Event(EventKind.REPLAYED, KEY, 1, owner="random.req-17"))
        listener(Event(EventKind.IN_FLIGHT, KEY, 1, owner=owner))
    span = backend.spans()["repeat"]
    [link] = span.links
    assert (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") == (TRACE, SPAN)
    assert link.context.is_remote
    assert backend.values("semel.replay.saved") == {("other",): 2.5}


def test_a_retry_in_the_same_trace_needs_no_link(backend: Backend) -> None:
    with backend.tracer.start_as_current_span("repeat") as span:
        here = span.get_span_context()
        owner = f"random.{trace_label(f'00-{here.trace_id:032x}-{SPAN}-01')}"
        OpenTelemetryListener(meter_provider=backend.meters)(Event(EventKind.REPLAYED, KEY, 1, owner=owner))
    assert not backend.spans()["repeat"].links


def test_records_that_were_purged_belong_to_no_request(backend: Backend) -> None:
    with backend.tracer.start_as_current_span("cron"):
        OpenTelemetryListener(meter_provider=backend.meters)(Event(EventKind.PURGED, NO_KEY, count=7))
    assert backend.values("semel.records.purged") == {(): 7}
    assert not backend.spans()["cron"].events


def test_without_an_sdk_nothing_happens() -> None:
    listener = OpenTelemetryListener()
    listener(Event(EventKind.CLAIMED, KEY, 1, owner="a"))
    listener.called("claim", "ok", 0.001)
