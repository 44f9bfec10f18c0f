"""The program: workers that die, a stop in good order, rules that change while it runs, what the admin port says."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.gatewaying import PATIENCE_S, Asked, GatewayServer, Upstream, created, request
from semel.gateway.admin import WorkerMetrics
from waiting import until

BRIEF = '[policy]\nlease = "400ms"\n'
ACCEPT = '[policy]\nin_flight = "accept"\n'
QUOTA = '[policy]\nquota = "5/minute"\n'


def late(upstream: Upstream, asked: Asked, connection: socket.socket) -> bool:
    upstream.go.wait(PATIENCE_S)
    return created(upstream, asked, connection)


@pytest.fixture(scope="module")
def two(running: tuple[GatewayServer, Upstream]) -> Iterator[GatewayServer]:
    """Two workers, for tests that leave it running."""
    with GatewayServer(running[1].port, rules=BRIEF, workers=2) as gateway:
        yield gateway


def test_a_killed_worker_is_replaced_and_leaves_the_outcome_unknown(
    two: GatewayServer, upstream: Upstream, key: str
) -> None:
    upstream.behaviours["/hold"] = late
    before = {worker.pid for worker in two.workers()}
    assert len(before) == 2
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(two.post, "/hold", key, key.encode())
        upstream.wait_for(key)
        two.kill_workers()
        assert first.exception() is not None
    upstream.go.set()
    # A connection that nobody has accepted is not lost: it waits for the next worker.
    until(lambda: b"outcome-unknown" in two.post("/hold", key, key.encode()).body, "its outcome is not unknown")
    assert upstream.effects(key) == 1
    until(lambda: len({worker.pid for worker in two.workers()} - before) == 2, "they were not replaced")
    assert two.post("/pay", f"{key}2", b"{}").status == 201


def test_a_stop_finishes_what_has_begun_and_exits_with_zero(upstream: Upstream, key: str) -> None:
    upstream.behaviours["/hold"] = late
    with GatewayServer(upstream.port, workers=2) as gateway, ThreadPoolExecutor(2) as threads:
        first = threads.submit(gateway.post, "/hold", key, key.encode())
        other = threads.submit(gateway.ask, "GET", f"/hold?{key}")
        upstream.wait_for(key)
        until(lambda: any(key in asked.path for asked in upstream.asked), "the other did not come")
        gateway.tell(signal.SIGTERM)
        until(lambda: refused(gateway.port), "it still takes connections")
        upstream.go.set()
        assert (first.result().status, other.result().status) == (201, 201)
        assert gateway.ended() == 0
    assert upstream.effects(key) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_of_its_processes_is_one_stop(upstream: Upstream, key: str, number: signal.Signals) -> None:
    """As Ctrl-C in a terminal sends it, and a service manager."""
    upstream.behaviours["/hold"] = late
    with GatewayServer(upstream.port) as gateway, ThreadPoolExecutor(1) as threads:
        first = threads.submit(gateway.post, "/hold", key, key.encode())
        upstream.wait_for(key)
        for worker in gateway.workers():
            worker.send_signal(number)
        gateway.tell(number)
        upstream.go.set()
        assert first.result().status == 201
        assert gateway.ended() == 0
        assert "Traceback" not in gateway.said()
    assert upstream.effects(key) == 1


def refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S).close()
    except ConnectionRefusedError:
        return True
    return False


def test_work_that_does_not_end_in_time_does_not_keep_a_stopping_gateway(upstream: Upstream, key: str) -> None:
    upstream.behaviours["/hold"] = late
    with GatewayServer(upstream.port, "--drain", "0.1") as gateway, gateway.open() as connection:
        connection.sendall(request("GET", f"/hold?{key}"))
        until(lambda: any(key in asked.path for asked in upstream.asked), "it did not come")
        gateway.tell(signal.SIGTERM)
        assert gateway.ended() == 0


def test_workers_end_with_their_supervisor(upstream: Upstream) -> None:
    with GatewayServer(upstream.port) as gateway:
        workers = gateway.workers()
        gateway.tell(signal.SIGKILL)
        gateway.ended()
        assert workers
    until(lambda: not any(worker.is_running() and worker.status() != "zombie" for worker in workers), "they live")


def test_rules_change_while_it_runs_in_every_worker_and_a_bad_file_changes_nothing(
    two: GatewayServer, upstream: Upstream, key: str
) -> None:
    def needs_a_key() -> set[bool]:
        """What several connections say, so that both workers are asked."""
        return {two.post("/pay", None, b"{}").status == 400 for _ in range(20)}

    assert needs_a_key() == {False}
    two.rules.write_text("[policy]\nrequired = true\n")
    two.tell(signal.SIGHUP)
    until(lambda: needs_a_key() == {True}, "the new rules are not in use")
    two.rules.write_text("[policy]\nrequired = maybe\n")
    two.tell(signal.SIGHUP)
    until(lambda: "the rules were not reloaded, and the old ones stay" in two.said(), "it said nothing")
    assert needs_a_key() == {True}
    two.kill_workers()  # who comes now is told the last good rules, whatever the file says
    until(lambda: needs_a_key() == {True}, "a new worker has other rules")
    assert two.post("/pay", key, b"{}").status == 201
    two.rules.write_text(BRIEF)
    two.tell(signal.SIGHUP)
    until(lambda: needs_a_key() == {False}, "the old rules are not back")


def test_the_admin_port(two: GatewayServer, upstream: Upstream, key: str) -> None:
    def admin(path: str) -> tuple[int, str]:
        answer = two.ask("GET", path, port=two.admin)
        return answer.status, answer.body.decode()

    def counted() -> dict[str, float]:
        status, text = admin("/-/metrics")
        assert status == 200
        lines = [line for line in text.splitlines() if line.startswith("semel_events_total")]
        assert key not in text
        return {
            event: sum(float(line.split()[-1]) for line in lines if f'"{event}"' in line)
            for event in ("claimed", "replayed", "refused")
        }

    before = counted()
    assert admin("/-/healthz") == (200, "ok\n")
    assert admin("/-/readyz") == (200, "ok\n")
    for number in range(12):
        for _ in range(2):
            two.post("/pay", f"{key}{number}", b"{}")
    two.post("/pay", "not, a key", b"{}")
    two.kill_workers()
    after = counted()
    assert {event: after[event] - before[event] for event in after} == {
        "claimed": 12.0,
        "replayed": 12.0,
        "refused": 1.0,
    }
    assert two.ask("GET", "/-/metrics").body.startswith(b"effect"), "the callers' port is the upstream's alone"


def test_an_empty_file_keeps_nobody_from_the_counters(tmp_path: Path) -> None:
    """A worker makes its file and begins to fill it a moment later, unless it dies."""
    for number, content in enumerate((b"", bytes([8, 0, 0, 0, 0, 0, 0, 0]))):  # the other is as long as its own head
        (tmp_path / f"counter_{number}.db").write_bytes(content)
    assert list(WorkerMetrics(str(tmp_path)).collect()) == []


def test_a_file_that_is_removed_meanwhile_keeps_the_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor removes what a dead worker had in progress while the counters are read in a thread."""
    gone = tmp_path / "gauge_livesum_1.db"
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: iter([gone]))
    assert list(WorkerMetrics(str(tmp_path)).collect()) == []


def test_not_ready_without_a_store(upstream: Upstream) -> None:
    with GatewayServer(upstream.port, store="redis://127.0.0.1:1/0") as gateway:
        answer = gateway.ask("GET", "/-/readyz", port=gateway.admin)
        assert answer.status == 503
        assert answer.body.startswith(b"the store does not answer: ")
        assert gateway.ask("GET", "/-/healthz", port=gateway.admin).status == 200
        assert gateway.ask("GET", "/").status == 201, "what needs no store works"
        assert "the store does not answer, and requests with a key get 503" in gateway.said()
        gateway.kill()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "Missing option '--upstream'"),
        ({"UPSTREAM": "x", "STORE": "sqlite:///x.db"}, "--upstream 'x': write http://host:port"),
        ({"UPSTREAM": "http://h", "STORE": "sqlit:///x"}, "did you mean sqlite://?"),
        (
            {"UPSTREAM": "http://h", "STORE": "sqlite:///x.db", "RULES": "/none.toml"},
            "--rules /none.toml: it cannot be read",
        ),
        (
            {"UPSTREAM": "http://h", "STORE": "sqlite:///x.db", "RULES": ACCEPT},
            'Policy.in_flight="accept" needs a link that cannot be guessed: give --secret',
        ),
        (
            {"UPSTREAM": "http://h", "STORE": "sqlite:///x.db", "RULES": QUOTA, "QUOTA_STORAGE": "nowhere://"},
            "--quota-storage cannot be used: nothing counts quotas in",
        ),
    ],
)
def test_a_wrong_call_says_what_is_wrong(settings: dict[str, str], said: str, tmp_path: Path) -> None:
    if (text := settings.get("RULES", "")).startswith("["):
        (tmp_path / "semel.toml").write_text(text)
        settings = settings | {"RULES": str(tmp_path / "semel.toml")}
    named = {f"SEMEL_GATEWAY_{name}": value for name, value in settings.items()}
    done = subprocess.run(
        [sys.executable, "-m", "semel", "gateway", "--listen", "127.0.0.1:0"],
        env=os.environ | named | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_busy_port_is_named(gateway: GatewayServer) -> None:
    command = [sys.executable, "-m", "semel", "gateway", "--upstream", "http://h", "--store", "sqlite:///x.db"]
    done = subprocess.run(
        [*command, "--listen", f"127.0.0.1:{gateway.port}"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "cannot listen: " in done.stderr
