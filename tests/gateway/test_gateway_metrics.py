"""What the gateway's admin port says of a gateway that has just started, and of the first thing that goes wrong."""

import socket
from pathlib import Path

from gateway.gatewaying import Asked, GatewayServer, Upstream
from telemetry.promtool import check_alerts

RULES = """
[policy]
lease = "400ms"

[[rules]]
match = "POST /orders/{id}"
"""


def cut(upstream: Upstream, asked: Asked, connection: socket.socket) -> bool:
    """The request has come, and its answer never will."""
    return False


def scrape(gateway: GatewayServer) -> str:
    answer = gateway.ask("GET", "/-/metrics", port=gateway.admin)
    assert answer.status == 200
    return answer.body.decode()


def test_an_alert_fires_on_the_first_event_of_a_fresh_gateway(upstream: Upstream, key: str, tmp_path: Path) -> None:
    upstream.behaviours["/orders/7"] = cut
    with GatewayServer(upstream.port, rules=RULES, workers=2) as gateway:
        fresh = scrape(gateway)
        assert gateway.post("/orders/7", key).status == 504
        after = scrape(gateway)
    left = 'semel_events_total{event="left",front="gateway",operation="POST /orders/{id}",reason=""}'
    assert f"{left} 0.0" in fresh
    assert f"{left} 1.0" in after
    assert 'semel_records{state="unknown"} 0.0' in fresh
    check_alerts(tmp_path, [fresh] * 5 + [after] * 5, {4: set(), 6: {"SemelAttemptsLeft"}})


def test_records_are_not_counted_if_an_operator_says_so(upstream: Upstream) -> None:
    with GatewayServer(upstream.port, "--no-count-records") as gateway:
        assert "semel_records{" not in scrape(gateway)


def test_a_store_that_is_away_does_not_keep_the_counters_away(upstream: Upstream) -> None:
    with GatewayServer(upstream.port, store="postgresql://nobody@127.0.0.1:1/none") as gateway:
        seen = scrape(gateway)
    assert "semel_events_total{" in seen
    assert "semel_records{" not in seen
