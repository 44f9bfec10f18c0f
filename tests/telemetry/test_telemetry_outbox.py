"""What metrics and logs say of messages, and that each alert about them fires."""

import asyncio
import logging
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

from outbox.model_store import MINUTE_MS, ModelStore
from outbox.recording import MemoryOutbox, RecordingPublisher, message
from semel.core.messages import Message
from semel.errors import BrokerUnavailable, Poison
from semel.outbox import Relay
from semel.stores.memory import AsyncMemoryStore, MemoryStore
from semel.telemetry import LogListener, census
from semel.telemetry.census import OutboxCensus
from semel.telemetry.opentelemetry import observe_outbox
from semel.telemetry.prometheus import OutboxCollector, PrometheusListener
from telemetry.promtool import check_alerts


@pytest.fixture(autouse=True)
def count_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census, "EVERY_S", 0)
    monkeypatch.setattr(census, "SHARE", 0)


def gauges(registry: CollectorRegistry) -> dict[str, float]:
    return {sample.name: sample.value for family in registry.collect() for sample in family.samples}


def test_the_gauges_of_an_outbox() -> None:
    store, registry = ModelStore(), CollectorRegistry()
    OutboxCollector(store, registry=registry)
    zero = dict.fromkeys(("semel_outbox_depth", "semel_outbox_oldest_seconds", "semel_outbox_dead_letters"), 0.0)
    assert gauges(registry) == zero
    store.add("wait-1", key="a")
    store.add("dead-1")
    store.kill("dead-1")
    store.now_ms += MINUTE_MS
    assert gauges(registry) == {
        "semel_outbox_depth": 1,
        "semel_outbox_oldest_seconds": 60,
        "semel_outbox_dead_letters": 1,
    }


def test_opentelemetry_has_the_same_gauges() -> None:
    store, reader = ModelStore(), InMemoryMetricReader()
    meters = MeterProvider([reader])
    observe_outbox(store, meter_provider=meters)
    store.add("wait-1")
    store.now_ms += MINUTE_MS
    data = reader.get_metrics_data()
    assert data is not None
    [scope] = data.resource_metrics[0].scope_metrics
    found = {metric.name: [point.value for point in metric.data.data_points] for metric in scope.metrics}  # type: ignore[union-attr]
    assert found == {"semel.outbox.depth": [1], "semel.outbox.oldest": [60], "semel.outbox.dead_letters": [0]}
    meters.shutdown()


def test_only_a_store_with_an_outbox_is_counted() -> None:
    with pytest.raises(TypeError, match="has no outbox"):
        OutboxCensus(MemoryStore())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="belongs to an event loop"):
        OutboxCensus(MemoryOutbox())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="has no outbox"):
        OutboxCensus(AsyncMemoryStore())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give the store"):
        OutboxCensus("memory://")


async def fail_as_told(message: Message) -> None:
    if message.topic == "poison":
        raise Poison("never")
    if message.topic == "odd":
        raise ValueError("odd")
    if message.topic == "away":
        raise BrokerUnavailable("gone")


def test_a_relay_counts_by_topic(caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    listener = PrometheusListener(registry=registry, operations=["orders"], front="relay")

    async def main() -> None:
        store = MemoryOutbox()
        store.add(message(1), message(2), *(message(9 + at, topic=one) for at, one in enumerate(["poison", "odd"])))
        async with Relay(store, RecordingPublisher(fail_as_told), on_event=listener) as relay:
            assert await relay.run_once() == 2
            store.add(message(20, topic="away"))
            assert await relay.run_once() == 0

    with caplog.at_level(logging.INFO, "semel"):
        asyncio.run(main())
    found = {
        (sample.labels["event"], sample.labels["operation"]): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "semel_events_total" and sample.value
    }
    assert found == {
        ("message_published", "orders"): 2,
        ("message_dead", "other"): 1,
        ("message_failed", "other"): 1,
        ("relay_paused", "other"): 1,
    }
    lines = {(line.levelname, line.getMessage()) for line in caplog.records}
    assert lines == {
        ("ERROR", "message_dead message=id-9 topic=poison attempt=1 detail=never"),
        ("WARNING", "message_failed message=id-10 topic=odd attempt=1 detail=ValueError: odd"),
        ("WARNING", "relay_paused detail=gone"),
    }


def test_a_log_of_your_own_has_a_line_for_each_message(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        store = MemoryOutbox()
        store.add(message(1))
        async with Relay(store, RecordingPublisher(), on_event=LogListener("shop.messages")) as relay:
            await relay.run_once()

    with caplog.at_level(logging.INFO, "shop.messages"):
        asyncio.run(main())
    [line] = caplog.records
    fields = {name: value for name, value in vars(line).items() if name.startswith("semel_")}
    assert fields == {
        "semel_event": "message_published",
        "semel_message": "id-1",
        "semel_topic": "orders",
        "semel_attempt": 1,
    }


class TestAlerts:
    def scrape(self, store: ModelStore) -> str:
        registry = CollectorRegistry()
        OutboxCollector(store, registry=registry)
        return generate_latest(registry).decode()

    def test_a_dead_letter(self, tmp_path: Path) -> None:
        store = ModelStore()
        quiet = self.scrape(store)
        store.add("dead-1")
        store.kill("dead-1")
        check_alerts(tmp_path, [quiet] * 5 + [self.scrape(store)] * 5, {4: set(), 6: {"SemelDeadLetters"}})

    def test_a_backlog_that_is_old(self, tmp_path: Path) -> None:
        store = ModelStore()
        store.add("wait-1")
        store.now_ms += 4 * MINUTE_MS
        young = self.scrape(store)
        store.now_ms += 2 * MINUTE_MS
        check_alerts(tmp_path, [young] * 5 + [self.scrape(store)] * 10, {8: set(), 12: {"SemelOutboxBehind"}})

    def test_a_relay_that_pauses(self, tmp_path: Path) -> None:
        registry = CollectorRegistry()
        listener = PrometheusListener(registry=registry, front="relay")
        scrapes = [generate_latest(registry).decode()] * 3

        async def main() -> None:
            store = MemoryOutbox()
            store.add(message(20, topic="away"))
            async with Relay(store, RecordingPublisher(fail_as_told), on_event=listener) as relay:
                for _ in range(8):
                    await relay.run_once()
                    scrapes.append(generate_latest(registry).decode())

        asyncio.run(main())
        check_alerts(tmp_path, scrapes, {2: set(), 9: {"SemelRelayPaused"}})
