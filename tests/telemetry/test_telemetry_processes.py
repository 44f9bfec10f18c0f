"""Several worker processes, run as the docs say: what a killed worker had in progress is not counted for ever."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from servers.process import free_port
from waiting import until

PAGE = Path(__file__).parents[2] / "docs" / "telemetry.md"
SHOP = """
import os, time
from metrics import metrics
from semel import Policy
from semel.telemetry.prometheus import PrometheusListener
from semel.wsgi import IdempotencyMiddleware

def pay(environ, start_response):
    if environ["PATH_INFO"] == "/pid":
        start_response("200 OK", [])
        return [b"%d" % os.getpid()]
    open("working", "w").write(str(os.getpid()))
    time.sleep(60)

protected = IdempotencyMiddleware(
    pay,
    store="sqlite:///semel.db",
    policy=Policy(lease=1),
    identify=lambda environ: "me",
    on_event=PrometheusListener(),
)

def app(environ, start_response):
    return (metrics if environ["PATH_INFO"] == "/metrics" else protected)(environ, start_response)
"""


def block(name: str) -> str:
    """The example of that file in the docs."""
    [found] = re.findall(rf"```python\n(# {re.escape(name)}.*?)```", PAGE.read_text(), re.DOTALL)
    text: str = found
    return text


@pytest.mark.parametrize("told", [True, False], ids=["as documented", "without child_exit"])
def test_work_of_a_killed_worker_is_not_in_progress(told: bool, tmp_path: Path) -> None:
    (tmp_path / "gunicorn.conf.py").write_text(block("gunicorn.conf.py") if told else "")
    (tmp_path / "metrics.py").write_text(
        block("metrics.py").replace("postgresql://localhost/shop", "sqlite:///semel.db")
    )
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "counters").mkdir()
    port = free_port()

    def get(path: str, method: str = "GET", **headers: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            connection.request(method, path, b"{}" if method == "POST" else None, headers)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def answers() -> bool:
        try:
            return bool(get("/pid"))
        except OSError:
            return False

    def running() -> float:
        lines = [line for line in get("/metrics").splitlines() if line.startswith("semel_operations_in_progress{")]
        return sum(float(line.split()[-1]) for line in lines)

    def hold() -> None:
        with pytest.raises((OSError, http.client.HTTPException)):
            get("/pay", "POST", **{"Idempotency-Key": "order-1"})

    command = [sys.executable, "-m", "gunicorn", "shop:app", "--workers", "2", "--bind", f"127.0.0.1:{port}"]
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "counters")}
    server = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    try:
        until(answers, "gunicorn did not start")
        held = threading.Thread(target=hold)
        held.start()
        until(lambda: (tmp_path / "working").exists() and (tmp_path / "working").read_text(), "nothing works")
        worker = int((tmp_path / "working").read_text())
        assert running() == 1
        os.kill(worker, signal.SIGKILL)
        held.join()
        if told:
            until(lambda: running() == 0, "the dead worker's work is still in progress")
        else:
            assert running() == 1, "the docs need not say it any more"
    finally:
        server.terminate()
        server.wait(20)
