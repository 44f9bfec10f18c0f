"""OpenTelemetry: `OpenTelemetryListener()` as `on_event`. Metrics, and attributes and links on the current span.

Only the API is used: without an SDK in the process nothing happens, as is usual there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

from opentelemetry import trace
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter
from opentelemetry.trace import Link, Span, SpanContext, TraceFlags

from semel.core.calls import CallEvent
from semel.core.correlation import trace_of
from semel.core.dialects import DRAFT_07, KeyDialect
from semel.core.events import OF_CALLS, Event, EventKind
from semel.core.outbox import OutboxCounts
from semel.core.outcomes import REASONS
from semel.core.retries import AttemptEnd
from semel.store import Outboxed, Store
from semel.telemetry.attempts import Attempts
from semel.telemetry.census import STATES, Census, OutboxCensus
from semel.telemetry.operations import OTHER, Operations, check_origins

__all__ = ["OpenTelemetryListener", "observe_outbox", "observe_records"]


class CallMeters:
    """The metrics of callers."""

    def __init__(self, meter: Meter) -> None:
        self._calls = meter.create_counter("semel.calls", "{call}", "Calls of this process, by how they ended.")
        self._attempts = meter.create_counter(
            "semel.call.attempts", "{request}", "Requests of these calls, by how they ended."
        )
        self._duration = meter.create_histogram(
            "semel.call.duration", "s", "From the first attempt to the end of a call, with the pauses."
        )
        self._attempt_duration = meter.create_histogram("semel.call.attempt.duration", "s", "One request of a call.")

    def start(self, origins: Iterable[str], dialects: Iterable[str]) -> None:
        """Let the series of counters begin at 0."""
        for origin, dialect in product(origins, dialects):
            where = {"semel.origin": origin, "semel.dialect": dialect}
            for outcome, reasons in REASONS.items():
                for reason in reasons:
                    self._calls.add(0, _ended(where, outcome.name.lower(), reason))
            for end in AttemptEnd:
                self._attempts.add(0, where | {"semel.outcome": end.name.lower()})

    def count(self, event: CallEvent, origin: str) -> None:
        where, seconds = {"semel.origin": origin, "semel.dialect": event.dialect}, (event.ran_ms or 0) / 1000
        if event.kind is EventKind.CALL_ATTEMPTED:
            self._attempts.add(1, where | {"semel.outcome": event.outcome})
            self._attempt_duration.record(seconds, where)
        else:
            self._calls.add(1, _ended(where, event.outcome, event.reason))
            self._duration.record(seconds, where | {"semel.outcome": event.outcome})


def _ended(where: dict[str, str], outcome: str, reason: str) -> dict[str, str]:
    return where | {"semel.outcome": outcome} | ({"semel.reason": reason} if reason else {})


class OpenTelemetryListener:
    """Counts events, times attempts and the store's calls, and says on the current span what became of the key.

    A replay links the current span to the trace of the request whose answer it is, if that came with a `traceparent`.
    `operations` are patterns as in rules; the attribute `semel.operation` is the first that covers a key's scope.

    As `on_event` of the adapters of `semel.client` it counts and times calls and attempts, and adds an event for each
    to the current span. `origins` are the services that become an attribute, any other is `other`; `dialects` are those
    of your adapters.
    """

    def __init__(
        self,
        *,
        meter_provider: MeterProvider | None = None,
        operations: Iterable[str] = (),
        origins: Iterable[str] = (),
        dialects: Iterable[KeyDialect] = (DRAFT_07,),
    ) -> None:
        meter = get_meter("semel", meter_provider=meter_provider)
        self._operations = Operations(operations)
        self._attempts = Attempts()
        self._events = meter.create_counter("semel.events", "{event}", "Decisions about keys and messages.")
        self._running = meter.create_up_down_counter(
            "semel.operations.active", "{operation}", "Attempts that are running now."
        )
        self._duration = meter.create_histogram("semel.operation.duration", "s", "From a granted claim to its end.")
        self._saved = meter.create_counter(
            "semel.replay.saved", "s", "What the first executions took whose answers were replayed."
        )
        self._calls = meter.create_histogram("semel.store.call.duration", "s", "Calls on the store.")
        self._purged = meter.create_counter("semel.records.purged", "{record}", "Records deleted past retention.")
        # A series that begins at 1 has no increase: an alert on the first event would miss it.
        for operation in self._operations.names:
            for kind in EventKind:
                if kind is not EventKind.PURGED and kind not in OF_CALLS:
                    self._events.add(0, {"semel.event": kind.value, "semel.operation": operation})
            self._running.add(0, {"semel.operation": operation})
            self._saved.add(0, {"semel.operation": operation})
        self._purged.add(0)
        self._origins, self._of_calls = check_origins(origins), CallMeters(meter)
        if self._origins.names != (OTHER,):
            self._of_calls.start(self._origins.names, (dialect.name for dialect in dialects))

    def __call__(self, event: Event) -> None:
        span = trace.get_current_span()
        if isinstance(event, CallEvent):
            self._of_calls.count(event, self._origins.name_of(event.origin))
            if span.is_recording():  # attributes are of the request that this process handles, which may call others
                span.add_event(f"semel.{event.kind.value}", _attributes(event))
            return
        self._count(event)
        if span.is_recording() and event.kind is not EventKind.PURGED:
            _describe(span, event)

    def called(self, call: str, outcome: str, seconds: float) -> None:
        """Record how long a call on the store took."""
        self._calls.record(seconds, {"semel.store.call": call, "semel.outcome": outcome})

    def _count(self, event: Event) -> None:
        if event.kind is EventKind.PURGED:
            self._purged.add(event.count)
            return
        where = {"semel.operation": self._operations.name_of(event.key.scope)}
        handling = {"semel.handling": event.handling} if event.handling else {}
        self._events.add(1, {"semel.event": event.kind.value, **handling, **where})
        if self._attempts.begin(event):
            self._running.add(1, where)
        elif (seconds := self._attempts.end(event)) is not None:
            self._running.add(-1, where)
            self._duration.record(seconds, {"semel.outcome": event.kind.value, **where})
        elif event.ran_ms is not None:
            self._saved.add(max(0, event.ran_ms) / 1000, where)


def observe_records(store: Store | str, *, meter_provider: MeterProvider | None = None) -> None:
    """Observe the gauge `semel.records`: how many records the store holds, by `semel.state`.

    `store` is a URL, or a store for threads. Records are counted in the background, at most every few seconds; while
    the store is away nothing is observed.
    """
    census = Census(store)

    def observe(_: CallbackOptions) -> Iterable[Observation]:
        counts = census.latest()
        if counts is None:
            return []
        return [Observation(getattr(counts, state), {"semel.state": state}) for state in STATES]

    get_meter("semel", meter_provider=meter_provider).create_observable_gauge(
        "semel.records", [observe], "{record}", "Records in the store, by state."
    )


def observe_outbox(store: Outboxed | str, *, meter_provider: MeterProvider | None = None) -> None:
    """Observe the gauges `semel.outbox.depth` (messages that wait), `semel.outbox.oldest` (for how many seconds the
    first of them has) and `semel.outbox.dead_letters`.

    `store` is a URL, or a store for threads. Messages are counted in the background, at most every few seconds; while
    the store is away nothing is observed.
    """
    census, meter = OutboxCensus(store), get_meter("semel", meter_provider=meter_provider)

    def observer(value: Callable[[OutboxCounts], float]) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            counts = census.latest()
            return [] if counts is None else [Observation(value(counts))]

        return observe

    waiting, dead = observer(lambda counts: counts.waiting), observer(lambda counts: counts.dead)
    oldest = observer(lambda counts: (counts.oldest_ms or 0) / 1000)
    meter.create_observable_gauge("semel.outbox.depth", [waiting], "{message}", "Messages that wait to be published.")
    meter.create_observable_gauge(
        "semel.outbox.oldest", [oldest], "s", "For how long the first waiting message has waited."
    )
    meter.create_observable_gauge("semel.outbox.dead_letters", [dead], "{message}", "Messages that were given up.")


def _describe(span: Span, event: Event) -> None:
    """The attributes say what became of the key last; a span event for each step says when."""
    span.set_attributes(_attributes(event))
    span.add_event(f"semel.{event.kind.value}")
    if event.kind is EventKind.REPLAYED and (link := _origin(event)) is not None:
        span.add_link(link.context, link.attributes)


def _attributes(event: Event) -> dict[str, str | int]:
    return {f"semel.{name}": value for name, value in event.fields().items()}


def _origin(event: Event) -> Link | None:
    """The request whose answer is replayed. Its owner names the trace, and the span that called us in it."""
    found = trace_of(event.owner)
    if found is None or found[0] == trace.get_current_span().get_span_context().trace_id:
        return None
    context = SpanContext(*found, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return Link(context, {"semel.link": "original"})
