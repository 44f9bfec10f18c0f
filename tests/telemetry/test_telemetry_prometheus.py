"""What Prometheus scrapes: right, without keys and paths, and enough for the dashboard and the alerts in examples/."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from outbox.model_store import ModelStore
from semel.core.records import Key
from semel.core.verdicts import Handling
from semel.events import NO_KEY, OF_CALLS, REFUSALS, CallEvent, Event, EventKind
from semel.runtime.durations import CALLS
from semel.stores.memory import MemoryStore
from semel.telemetry import purges
from semel.telemetry.attempts import Attempts
from semel.telemetry.operations import OPERATIONS_MAX, Operations
from semel.telemetry.prometheus import OutboxCollector, PrometheusListener, RecordsCollector
from telemetry.shop import SECRET_KEY, Shop

EXAMPLES = Path(__file__).parents[2] / "examples"
CAPTURE = "POST /payments/{id}/capture"
KEY = Key("shop", "POST /payments/17/capture", SECRET_KEY)


class Scrape:
    """One exposition, as Prometheus' own parser reads it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.text = generate_latest(registry).decode()
        families = list(text_string_to_metric_families(self.text))
        self.samples = [sample for family in families for sample in family.samples]
        self.names = {sample.name for sample in self.samples}

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples that have these labels."""
        return sum(
            sample.value for sample in self.samples if sample.name == name and labels.items() <= sample.labels.items()
        )


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_a_service_under_way(registry: CollectorRegistry, tmp_path: Path) -> None:
    shop = Shop(tmp_path, PrometheusListener(registry=registry, operations=[CAPTURE]))

    async def work() -> None:
        await shop.capture()
        for _ in range(3):
            assert (await shop.capture()).headers["Idempotent-Replayed"] == "true"
        await shop.capture(do="another request")
        await shop.capture("second", do="refuse")
        await shop.capture("third", do="raise")

    shop.run(work)
    assert shop.ledger == ["pay", "refuse", "raise"]
    seen = Scrape(registry)
    found = {
        event: seen.value("semel_events_total", event=event, operation=CAPTURE, front="http")
        for event in ("claimed", "completed", "replayed", "mismatched", "released", "unknown")
    }
    assert found == {"claimed": 3, "completed": 2, "replayed": 3, "mismatched": 1, "released": 1, "unknown": 0}
    assert seen.value("semel_operations_in_progress") == 0
    assert seen.value("semel_operation_duration_seconds_count", outcome="completed", operation=CAPTURE) == 2
    assert seen.value("semel_operation_duration_seconds_count", outcome="released") == 1
    assert seen.value("semel_store_call_duration_seconds_count", call="claim", outcome="ok") == 7
    assert seen.value("semel_store_call_duration_seconds_count", call="complete", outcome="ok") == 2
    assert seen.value("semel_store_call_duration_seconds_count", call="release", outcome="ok") == 1
    assert "semel_replay_saved_seconds_total" in seen.names
    assert SECRET_KEY not in seen.text
    assert "/17/" not in seen.text


def test_what_is_counted_while_work_runs(registry: CollectorRegistry) -> None:
    listener = PrometheusListener(registry=registry, operations=[CAPTURE], front="gateway")
    listener(Event(EventKind.CLAIMED, KEY, 1, owner="a"))
    listener(Event(EventKind.TAKEN_OVER, KEY, 2, owner="b"))
    assert Scrape(registry).value("semel_operations_in_progress", operation=CAPTURE, front="gateway") == 2
    listener(Event(EventKind.LEFT, KEY, 1, owner="a"))
    listener(Event(EventKind.LEFT, KEY, 1, owner="a"))
    listener(Event(EventKind.RELEASED, KEY, 1, owner="of a claim that was never reported"))
    listener(Event(EventKind.REPLAYED, KEY, 1, owner="b", ran_ms=1_500))
    listener(Event(EventKind.REPLAYED, KEY, 1, owner="b", ran_ms=None))
    listener(Event(EventKind.REPLAYED, KEY, 1, owner="b", ran_ms=-5))
    purges(listener)(12)
    listener(Event(EventKind.REFUSED, NO_KEY, detail="key-missing"))
    listener(Event(EventKind.REFUSED, NO_KEY, detail="whatever a caller may have sent"))
    listener(Event(EventKind.STORE_FAILED, KEY, detail="connection to 10.0.0.7 refused"))
    seen = Scrape(registry)
    assert seen.value("semel_operations_in_progress") == 1
    assert seen.value("semel_replay_saved_seconds_total", operation=CAPTURE) == 1.5
    assert seen.value("semel_records_purged_total") == 12
    assert seen.value("semel_events_total", event="refused", reason="key-missing", operation="other") == 1
    assert seen.value("semel_events_total", event="refused", reason="other") == 1
    assert "10.0.0.7" not in seen.text


@pytest.mark.parametrize("front", ["http", "messages"])
def test_every_series_of_a_counter_or_gauge_begins_at_zero(registry: CollectorRegistry, front: str) -> None:
    """Prometheus sees no increase in a series that begins at 1."""
    listener = PrometheusListener(registry=registry, operations=[CAPTURE], front=front)
    fresh = {(sample.name, *sample.labels.items()) for sample in Scrape(registry).samples}
    assert {sample.value for sample in Scrape(registry).samples if not sample.name.endswith("_created")} == {0}
    for handling in Handling if front == "messages" else ():
        listener(Event(EventKind.DELIVERY_JUDGED, KEY, handling=handling.name.lower()))
    for kind in set(EventKind) - {EventKind.DELIVERY_JUDGED, *OF_CALLS}:
        details = REFUSALS if kind is EventKind.REFUSED else ("",)
        for key in (KEY, NO_KEY):
            for detail in details:
                listener(Event(kind, key, 1, detail, owner="a", ran_ms=1 if kind is EventKind.REPLAYED else None))
    for call in CALLS:
        listener.called(call, "ok", 0.1)
        listener.called(call, "unavailable", 0.1)
    after = {(sample.name, *sample.labels.items()) for sample in Scrape(registry).samples}
    assert {name for name, *_ in after - fresh} == {
        f"semel_operation_duration_seconds_{part}" for part in ("bucket", "count", "sum", "created")
    }


def test_two_listeners_share_a_registry(registry: CollectorRegistry) -> None:
    for front in ("api", "inbox"):
        PrometheusListener(registry=registry, front=front)(Event(EventKind.CLAIMED, KEY, 1, owner=front))
    seen = Scrape(registry)
    assert seen.value("semel_events_total", front="api") == seen.value("semel_events_total", front="inbox") == 1


def test_attempts_that_never_end_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.telemetry.attempts.ATTEMPTS_MAX", 1)
    attempts = Attempts()
    assert attempts.begin(Event(EventKind.CLAIMED, KEY, 1, owner="a"))
    assert not attempts.begin(Event(EventKind.CLAIMED, KEY, 1, owner="b"))
    assert attempts.end(Event(EventKind.COMPLETED, KEY, 1, owner="b")) is None
    assert attempts.end(Event(EventKind.COMPLETED, KEY, 1, owner="a")) is not None
    assert attempts.begin(Event(EventKind.CLAIMED, KEY, 1, owner="b"))


class TestOperations:
    operations = Operations([CAPTURE, "/refunds/", "shop.jobs.settle"])

    @pytest.mark.parametrize(
        ("scope", "name"),
        [
            ("POST /payments/17/capture", CAPTURE),
            ("POST //shop.example:8080/payments/17/capture", CAPTURE),
            ("PUT /payments/17/capture", "other"),
            ("PUT /refunds/17/items", "/refunds/"),
            ("shop.jobs.settle", "shop.jobs.settle"),
            ("", "other"),
            ("=chosen by a function", "other"),
        ],
    )
    def test_a_scope_has_the_name_of_the_first_pattern(self, scope: str, name: str) -> None:
        assert self.operations.name_of(scope) == name

    def test_there_cannot_be_many(self) -> None:
        with pytest.raises(ValueError, match="the limit is 500"):
            Operations(f"/{number}" for number in range(OPERATIONS_MAX + 1))


# The examples

METRIC = re.compile(r"\bsemel_\w+")
RECORDED = re.compile(r"\bsemel:[\w:]+")
LABEL = re.compile(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)")
OF_PROMETHEUS = {"job", "instance"}


def texts(found: Any, *names: str) -> Iterator[str]:
    """Every text under one of these names, wherever it is."""
    if isinstance(found, dict):
        for name, value in found.items():
            if name in names and isinstance(value, str):
                yield value
            else:
                yield from texts(value, *names)
    elif isinstance(found, list):
        for each in found:
            yield from texts(each, *names)


def dashboard() -> Any:
    return json.loads((EXAMPLES / "grafana" / "semel.json").read_text())


def alerts() -> Any:
    return yaml.safe_load((EXAMPLES / "prometheus" / "semel.rules.yml").read_text())


@pytest.fixture(scope="module")
def exposed() -> Scrape:
    """An exposition with every metric in it."""
    registry = CollectorRegistry()
    listener = PrometheusListener(registry=registry)
    for kind in [each for each in EventKind if each not in OF_CALLS]:
        listener(Event(kind, KEY, 1, owner="a", ran_ms=1 if kind is EventKind.REPLAYED else None))
    for kind in OF_CALLS:
        listener(CallEvent(kind, KEY, origin="https://api.example", dialect="draft-07", outcome="answered"))
    listener.called("claim", "ok", 0.001)
    RecordsCollector(MemoryStore(), registry=registry)
    OutboxCollector(ModelStore(), registry=registry)
    return Scrape(registry)


def expressions() -> list[str]:
    found = [*texts(dashboard(), "expr", "definition"), *texts(alerts(), "expr")]
    assert len(found) > 25
    return found


@pytest.mark.parametrize("expression", expressions())
def test_the_examples_ask_only_for_what_is_there(expression: str, exposed: Scrape) -> None:
    used, recorded = set(METRIC.findall(expression)), set(RECORDED.findall(expression))
    assert used or recorded
    assert used <= exposed.names
    assert recorded <= set(texts(alerts(), "record"))
    labels = {name for sample in exposed.samples if sample.name in used for name in sample.labels}
    assert set(LABEL.findall(expression)) <= labels | OF_PROMETHEUS | ({"event"} if recorded else set())
    for event in re.findall(r'event=~?"([a-z_|]+)"', expression):
        assert set(event.split("|")) <= {kind.value for kind in EventKind}
    assert expression.count("(") == expression.count(")")


def test_every_metric_and_every_event_is_in_the_dashboard(exposed: Scrape) -> None:
    asked = " ".join(texts(dashboard(), "expr"))
    bases = {re.sub(r"_(bucket|count|sum|created|total)$", "", name) for name in exposed.names}
    assert bases == {re.sub(r"_(bucket|count|total)$", "", name) for name in METRIC.findall(asked)}


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    board = dashboard()
    assert board["schemaVersion"] >= 39
    assert [variable["name"] for variable in board["templating"]["list"]] == ["datasource", "job", "front", "operation"]
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    for panel in panels:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        if panel["type"] != "row":
            assert panel["description"]
            assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


def test_the_alerts_say_what_happened_and_what_to_do() -> None:
    for rule in alerts()["groups"][0]["rules"]:
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("critical", "warning", "info")
            assert rule["annotations"].keys() == {"summary", "description"}
