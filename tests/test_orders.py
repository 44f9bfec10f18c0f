"""The example in examples/orders runs, on SQLite and webhooks, and on PostgreSQL and RabbitMQ."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from servers.process import free_port
from servers.rabbitmq import Rabbitmq

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "orders"
LAST = re.compile(r"^(\d+) orders, (\d+) shipments$", re.MULTILINE)


def play(**settings: str) -> str:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, **settings, "ORDERS_PORT": str(free_port()), "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, str(FOLDER / "run.py")], env=environment, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(said: str) -> None:
    [(orders, shipments)] = LAST.findall(said)
    assert (orders, shipments) == ("12", "12")
    assert said.count("kill -9") == 3


def test_with_nothing_but_python() -> None:
    said = play(ORDERS_BROKER=f"http://127.0.0.1:{free_port()}/")
    check(said)
    [shown] = re.findall(r"\$ python run\.py\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    assert said == shown, "the README shows what is printed"


@pytest.mark.timeout(150)
def test_with_postgresql_and_rabbitmq(postgres_url: str, rabbitmq_server: Rabbitmq) -> None:
    check(play(ORDERS_STORE=postgres_url, ORDERS_BROKER=rabbitmq_server.url))
