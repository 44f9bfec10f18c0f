"""`semel relay`: what it publishes, says and ends with."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from cli.calls import run
from outbox.shops import Shop
from servers.mariadb import Mariadb
from servers.process import free_port
from waiting import until

NOWHERE = "redis://127.0.0.1:9"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    found = Shop(f"sqlite:///{tmp_path}/shop.db")
    yield found
    found.close()


@pytest.fixture
def broker(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        client.flushdb()
        yield client


def relay(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "semel", "relay", *words], stderr=subprocess.PIPE, text=True)


def test_once_publishes_what_waits(shop: Shop, broker: redis.Redis, redis_url: str) -> None:
    shop.publish(range(20), keys=3)
    process = relay(shop.url, "--to", redis_url, "--once", "--batch", "7")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert broker.xlen("orders") == 20
    assert said.splitlines()[-1].endswith("ended: 20 messages published, 0 dead")
    assert shop.counts().published == 20


def test_mariadb(mariadb_server: Mariadb, broker: redis.Redis, redis_url: str) -> None:
    shop = Shop(mariadb_server.create_database("cli_relay"))
    shop.publish(range(5), keys=2)
    listed = run("outbox", "list", "--store", shop.url, "--json")
    assert [f"id-{number}" in listed.stdout for number in range(5)] == [True] * 5
    _, said = relay(shop.url, "--to", redis_url, "--once").communicate(timeout=60)
    assert said.splitlines()[-1].endswith("ended: 5 messages published, 0 dead")
    assert (broker.xlen("orders"), shop.counts().published) == (5, 5)
    shop.close()
    mariadb_server.drop_database("cli_relay")


def test_it_runs_until_it_is_told_to_stop(shop: Shop, broker: redis.Redis, redis_url: str) -> None:
    port = free_port()
    words = ("--metrics", f"127.0.0.1:{port}", "--topic", "orders", "--poll", "50ms", "--log-format", "json")
    process = relay(shop.url, "--to", redis_url, *words)
    try:
        for number in range(3):
            shop.publish([number])
            until(lambda: broker.xlen("orders") == number + 1)  # noqa: B023
        until(lambda: shop.counts().waiting == 0)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            metrics = answer.read().decode()
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert 'semel_events_total{event="message_published",front="relay",operation="orders",reason=""} 3.0' in metrics
    assert "semel_outbox_depth 0.0" in metrics
    lines = [json.loads(line) for line in said.splitlines()]
    assert lines[0]["message"].startswith("publishing messages of sqlite:///")
    assert lines[-1]["message"] == "ended: 3 messages published, 0 dead"


def test_the_end_says_what_is_away(shop: Shop, redis_url: str) -> None:
    shop.publish([1])
    process = relay(shop.url, "--to", NOWHERE, "--once")
    assert "127.0.0.1:9" in process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert shop.counts().waiting == 1
    assert not shop.held()
    process = relay("postgresql://127.0.0.1:9/shop", "--to", redis_url, "--once")
    process.communicate(timeout=60)
    assert process.returncode == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "amqq://localhost"), "did you mean amqp://"),
        (("--to", NOWHERE, "--lease", "1s", "--timeout", "900ms"), "at least twice timeout=0.9 s"),
        (("--to", NOWHERE, "--batch", "0"), "'--batch': 0 is not in the range 1<=x<=1000"),
        (("--to", NOWHERE, "--order", "none", "--dead-block"), "dead_block=True would have no effect"),
        (("--to", NOWHERE, "--metrics", "here"), "is not HOST:PORT"),
        ((), "Missing option '--to'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(shop: Shop, words: tuple[str, ...], said: str) -> None:
    done = run("relay", shop.url, *words)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())


def test_a_store_without_an_outbox_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    done = run("relay", NOWHERE, "--to", NOWHERE)
    assert done.exit_code == 2
    assert "has no outbox" in done.stderr
    done = run("relay", f"sqlite:///{tmp_path}/none.db", "--to", NOWHERE)
    assert done.exit_code == 2
    assert "there is no such file" in done.stderr
