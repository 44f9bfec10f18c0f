"""Relay processes that are killed, stopped and resumed: nothing is lost, each key keeps its order, ids never change."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox.shops import Shop, check_published, fleet, new_database
from waiting import PATIENCE_S, until

KEYS = 7


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    found = Shop(new_database(request.param, request, tmp_path))
    yield found
    found.close()


@pytest.mark.parametrize("relays", [2, 8])
def test_relays_that_are_killed_at_any_moment(shop: Shop, relays: int, tmp_path: Path) -> None:
    """A relay is killed when it has published something. SEMEL_RELAY_KILLS=200 kills more of them."""
    chance, number, kills = random.Random(relays), 0, 0
    wanted = int(os.environ.get("SEMEL_RELAY_KILLS", "6"))
    with fleet(shop.url, tmp_path, pause_s=0.002) as running:
        for _ in range(relays):
            running.start()
        due_s = time.monotonic() + PATIENCE_S * max(1, wanted / 20)
        while kills < wanted:
            assert time.monotonic() < due_s, f"after {kills} kills no relay publishes any more"
            shop.publish(range(number, number + 10), KEYS)
            number += 10
            time.sleep(0.02 + chance.random() * 0.03)
            working = {line.pid for line in running.lines()}
            if victims := [process for process in running.processes if process.pid in working]:
                running.kill(chance.choice(victims))
                running.start()
                kills += 1
        until(lambda: running.ids() == set(shop.added), f"{kills} kills, and messages are missing")
        until(lambda: shop.counts().waiting == 0)
        for process in list(running.processes):
            assert running.kill(process, signal.SIGTERM) in (0, -signal.SIGTERM)  # it may not have begun to listen
        check_published(shop, running.lines())
        assert not shop.held()


def test_a_relay_that_is_stopped_past_its_lease_and_resumed(shop: Shop, tmp_path: Path) -> None:
    """Meanwhile another relay publishes all of it. The first one may end the message that it was at, and no other."""
    shop.publish(range(150), keys=1)
    with fleet(shop.url, tmp_path, pause_s=0.002, lease_s=1, batch=200) as running:
        first = running.start_ready()
        until(lambda: len(running.lines()) > 10)
        first.send_signal(signal.SIGSTOP)
        second = running.start_ready()
        until(lambda: shop.counts().waiting == 0)
        before = len(running.lines())
        assert running.ids() == set(shop.added)
        first.send_signal(signal.SIGCONT)
        shop.publish(range(150, 170), keys=1)
        until(lambda: shop.counts().waiting == 0)
        again = [line for line in running.lines()[before:] if int(line.payload) < 150]
        assert len(again) <= 1
        assert {line.pid for line in again} <= {first.pid}
        check_published(shop, running.lines())
        assert {line.pid for line in running.lines()} >= {first.pid, second.pid}


def test_sigterm_ends_the_message_and_gives_back_the_rest(shop: Shop, tmp_path: Path) -> None:
    shop.publish(range(100), keys=1)
    with fleet(shop.url, tmp_path, pause_s=0.02, lease_s=30, batch=100) as running:
        relay = running.start_ready()
        until(lambda: len(running.lines()) > 2)
        assert len(shop.held()) == 100
        assert running.kill(relay, signal.SIGTERM) == 0
        lines = running.lines()
        assert not shop.held()
        counts = shop.counts()
        assert (counts.published, counts.waiting) == (len(lines), 100 - len(lines))
        assert 0 < len(lines) < 100
