"""Prometheus: `PrometheusListener()` as `on_event`. Counters and histograms, never with a key or a raw path in them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import product
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from semel.core.calls import CallEvent
from semel.core.dialects import DRAFT_07, KeyDialect
from semel.core.events import OF_CALLS, REFUSALS, Event, EventKind
from semel.core.outcomes import REASONS
from semel.core.retries import AttemptEnd
from semel.core.verdicts import Handling
from semel.runtime.durations import CALLS
from semel.store import Outboxed, Store
from semel.telemetry.attempts import Attempts
from semel.telemetry.census import STATES, Census, OutboxCensus
from semel.telemetry.operations import OTHER, Operations, check_origins

__all__ = ["OutboxCollector", "PrometheusListener", "RecordsCollector"]

CALL_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
WORK_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
WHERE = ("front", "operation")
CALLED = ("origin", "dialect", "outcome")
HTTP = "http"
"""The front of a listener that names none."""


class CallInstruments:
    """The metrics of callers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.calls = Counter(
            "semel_calls", "Calls of this process, by how they ended.", (*CALLED, "reason"), registry=registry
        )
        self.attempts = Counter(
            "semel_call_attempts", "Requests of these calls, by how they ended.", CALLED, registry=registry
        )
        self.call_duration = Histogram(
            "semel_call_duration_seconds",
            "From the first attempt to the end of a call, with the pauses.",
            CALLED,
            registry=registry,
            buckets=WORK_BUCKETS_S,
        )
        self.attempt_duration = Histogram(
            "semel_call_attempt_duration_seconds",
            "One request of a call.",
            CALLED[:2],
            registry=registry,
            buckets=WORK_BUCKETS_S,
        )
        self.calls_of = lru_cache(maxsize=4096)(self.calls.labels)
        self.attempts_of = lru_cache(maxsize=4096)(self.attempts.labels)

    def start(self, origins: Iterable[str], dialects: Iterable[str]) -> None:
        """Let the series of counters begin at 0."""
        for where in product(origins, dialects):
            for outcome, reasons in REASONS.items():
                for reason in reasons:
                    self.calls_of(*where, outcome.name.lower(), reason)
            for end in AttemptEnd:
                self.attempts_of(*where, end.name.lower())

    def count(self, event: CallEvent, origin: str) -> None:
        where, seconds = (origin, event.dialect), (event.ran_ms or 0) / 1000
        if event.kind is EventKind.CALL_ATTEMPTED:
            self.attempts_of(*where, event.outcome).inc()
            self.attempt_duration.labels(*where).observe(seconds)
        else:
            self.calls_of(*where, event.outcome, event.reason).inc()
            self.call_duration.labels(*where, event.outcome).observe(seconds)


class Instruments:
    """The metrics themselves, once in each registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.events = Counter(
            "semel_events", "Decisions about keys and messages.", ("event", "reason", *WHERE), registry=registry
        )
        self.running = Gauge(
            "semel_operations_in_progress",
            "Attempts that are running now.",
            WHERE,
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.duration = Histogram(
            "semel_operation_duration_seconds",
            "From a granted claim to its end.",
            ("outcome", *WHERE),
            registry=registry,
            buckets=WORK_BUCKETS_S,
        )
        self.saved = Counter(
            "semel_replay_saved_seconds",
            "What the first executions took whose answers were replayed.",
            WHERE,
            registry=registry,
        )
        self.calls = Histogram(
            "semel_store_call_duration_seconds",
            "Calls on the store.",
            ("call", "outcome", "front"),
            registry=registry,
            buckets=CALL_BUCKETS_S,
        )
        self.purged = Counter("semel_records_purged", "Records deleted past retention.", registry=registry)
        self.of_calls = CallInstruments(registry)
        # A child is looked up under a lock and by text; what was looked up once is kept here.
        self.events_of = lru_cache(maxsize=None)(self.events.labels)
        self.running_of = lru_cache(maxsize=None)(self.running.labels)
        self.duration_of = lru_cache(maxsize=None)(self.duration.labels)
        self.calls_of = lru_cache(maxsize=None)(self.calls.labels)

    def start(self, front: str, operations: Iterable[str]) -> None:
        """Let the series of counters, gauges and of the store's calls begin at 0.

        For Prometheus, `increase()` of a series that begins at 1 is 0: an alert would miss the first event.
        """
        for operation in operations:
            for kind in EventKind:
                if kind is not EventKind.PURGED and kind not in OF_CALLS:
                    for reason in _reasons(kind, front):
                        self.events_of(kind.value, reason, front, operation)
            self.running_of(front, operation)
            self.saved.labels(front, operation)
        for call in CALLS:
            for outcome in ("ok", "unavailable"):
                self.calls_of(call, outcome, front)


_instruments: WeakKeyDictionary[CollectorRegistry, Instruments] = WeakKeyDictionary()


class PrometheusListener:
    """Counts events, and times attempts and the store's calls.

    `operations` are patterns as in rules; the label `operation` is the first that covers a key's scope, else `other`.
    `front` tells listeners apart that share a registry.

    As `on_event` of the adapters of `semel.client` it counts and times calls and attempts. `origins` are the services
    that become a label, any other is `other`; `dialects` are those of your adapters.
    """

    def __init__(
        self,
        *,
        registry: CollectorRegistry = REGISTRY,
        operations: Iterable[str] = (),
        front: str = HTTP,
        origins: Iterable[str] = (),
        dialects: Iterable[KeyDialect] = (DRAFT_07,),
    ) -> None:
        if registry not in _instruments:
            _instruments[registry] = Instruments(registry)
        self._metrics = _instruments[registry]
        self._operations = Operations(operations)
        self._attempts = Attempts()
        self._front = front
        self._metrics.start(front, self._operations.names)
        self._origins = check_origins(origins)
        if self._origins.names != (OTHER,):
            self._metrics.of_calls.start(self._origins.names, (dialect.name for dialect in dialects))

    def __call__(self, event: Event) -> None:
        if isinstance(event, CallEvent):
            self._metrics.of_calls.count(event, self._origins.name_of(event.origin))
            return
        metrics = self._metrics
        if event.kind is EventKind.PURGED:
            metrics.purged.inc(event.count)
            return
        where = self._front, self._operations.name_of(event.key.scope)
        metrics.events_of(event.kind.value, _reason(event), *where).inc()
        if self._attempts.begin(event):
            metrics.running_of(*where).inc()
        elif (seconds := self._attempts.end(event)) is not None:
            metrics.running_of(*where).dec()
            metrics.duration_of(event.kind.value, *where).observe(seconds)
        elif event.ran_ms is not None:
            metrics.saved.labels(*where).inc(max(0, event.ran_ms) / 1000)

    def called(self, call: str, outcome: str, seconds: float) -> None:
        """Observe how long a call on the store took."""
        self._metrics.calls_of(call, outcome, self._front).observe(seconds)


class RecordsCollector(Collector):
    """The gauge `semel_records`: how many records the store holds, by state. It sees unknown outcomes before a repeat.

    `store` is a URL, or a store for threads. Records are counted in the background, at most every few seconds; while
    the store is away the gauge is absent, and the scrape is not delayed.
    """

    def __init__(self, store: Store | str, *, registry: CollectorRegistry | None = REGISTRY) -> None:
        self._census = Census(store)
        if registry is not None:
            registry.register(self)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The name, so that the registry does not have to count for it."""
        return [GaugeMetricFamily("semel_records", "Records in the store, by state.", labels=["state"])]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        [family] = self.describe()
        if (counts := self._census.latest()) is not None:
            for state in STATES:
                family.add_metric([state], getattr(counts, state))
        return [family]


class OutboxCollector(Collector):
    """The gauges of an outbox: `semel_outbox_depth` (messages that wait), `semel_outbox_oldest_seconds` (for how long
    the first of them has), `semel_outbox_dead_letters`.

    `store` is a URL, or a store for threads. Messages are counted in the background, at most every few seconds; while
    the store is away the gauges are absent, and the scrape is not delayed.
    """

    def __init__(self, store: Outboxed | str, *, registry: CollectorRegistry | None = REGISTRY) -> None:
        self._census = OutboxCensus(store)
        if registry is not None:
            registry.register(self)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The names, so that the registry does not have to count for them."""
        return [
            GaugeMetricFamily("semel_outbox_depth", "Messages that wait to be published."),
            GaugeMetricFamily("semel_outbox_oldest_seconds", "For how long the first waiting message has waited."),
            GaugeMetricFamily("semel_outbox_dead_letters", "Messages that were given up."),
        ]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        depth, oldest, dead = families = list(self.describe())
        if (counts := self._census.latest()) is not None:
            depth.add_metric([], counts.waiting)
            oldest.add_metric([], (counts.oldest_ms or 0) / 1000)
            dead.add_metric([], counts.dead)
        return families


def _reason(event: Event) -> str:
    """Why a request was refused before its key was looked at, or how a delivery ended.

    Other details are the store's own words: too many.
    """
    if event.kind is EventKind.DELIVERY_JUDGED:
        return event.handling
    if event.kind is not EventKind.REFUSED:
        return ""
    return event.detail if event.detail in REFUSALS else OTHER


def _reasons(kind: EventKind, front: str) -> tuple[str, ...]:
    """The reasons whose series begin at 0. Deliveries have none in a front for HTTP, which gets none."""
    if kind is EventKind.DELIVERY_JUDGED:
        return () if front == HTTP else tuple(handling.name.lower() for handling in Handling)
    return (*REFUSALS, OTHER) if kind is EventKind.REFUSED else ("",)
