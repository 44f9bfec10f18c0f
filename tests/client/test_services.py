"""Callers with a journal against semel's own servers, in processes of their own, while those fail. Effects are counted.

The demo's effects are in its bank's ledger. The service behind the gateway counts its own.
"""

import socket
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from client.fronts import FRONTS, Open, Received
from demo.running import Demo
from gateway.gatewaying import Asked, GatewayServer, Upstream, created
from semel.client import Indeterminate, Journal, Retry
from semel.core.retries import AttemptEnd

HOUR = timedelta(hours=1)
PATIENT = Retry(attempts=200, deadline=60, pause_max=0.05, retry_after_max=0.2)
PAYMENT = b'{"amount": 2500}'
CALLERS, INTENTS_EACH, KILL_EACH = 4, 15, 10


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(f"sqlite:///{tmp_path}/journal.db")) as journal:
        yield journal


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    with Demo() as running:
        yield running


@pytest.fixture
def account() -> str:
    return uuid.uuid4().hex


def key_of(journal: Journal) -> str:
    entry = journal.read("pay:42")
    assert entry is not None
    return entry.key


def test_the_demo_loses_the_answer(open_front: Open, journal: Journal, demo: Demo, account: str) -> None:
    front = open_front(journal=journal, retry=Retry(attempts=1))
    front.timeout = 1.0
    intent, url = journal.intent("pay:42", max_age=HOUR), f"{demo.address}/payments"
    with pytest.raises((front.lost, OSError)):
        front.post(url, PAYMENT, {"Account": account, "Demo-Fault": "lose-answer"}, intent)
    received = front.post(url, PAYMENT, {"Account": account}, intent)
    assert (received.status, received.report.replayed) == (201, True)
    assert demo.paid(account, key_of(journal)) == [2500]


def test_the_demo_dies_after_the_payment(open_front: Open, journal: Journal, demo: Demo, account: str) -> None:
    front = open_front(journal=journal, retry=PATIENT)
    intent, url = journal.intent("pay:42", max_age=HOUR), f"{demo.address}/payments"
    received = front.post(url, PAYMENT, {"Account": account, "Demo-Fault": "crash"}, intent)
    assert (received.status, received.report.end) == (409, AttemptEnd.UNKNOWN)
    with pytest.raises(Indeterminate, match=r"journal\.forget\('pay:42'\)"):
        front.post(url, PAYMENT, {"Account": account}, intent)
    key = key_of(journal)
    assert demo.paid(account, key) == [2500]
    assert demo.resolve(account, key).status == 200
    assert journal.forget("pay:42")
    received = front.post(url, PAYMENT, {"Account": account, "Idempotency-Key": f'"{key}"'}, intent)
    assert (received.status, received.report.replayed, journal.pending()) == (201, True, ())
    assert demo.paid(account, key) == [2500]


def test_twenty_threads_pay_the_demo_once(journal: Journal, demo: Demo, account: str) -> None:
    def pay(number: int) -> Received:
        kind = sorted(FRONTS)[number % len(FRONTS)]
        with closing(FRONTS[kind](journal=journal, retry=PATIENT)) as front:
            headers, intent = {"Account": account}, journal.intent("pay:42", max_age=HOUR)
            return front.post(f"{demo.address}/payments", PAYMENT, headers, intent)

    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(pay, range(20)))
    assert {(received.status, received.body) for received in answers} == {(201, answers[0].body)}
    assert demo.paid(account, key_of(journal)) == [2500]


def test_the_gateway_dies_with_requests_in_its_hands(tmp_path: Path) -> None:
    """What it cannot know then is in doubt, and is never sent again."""
    answers: dict[str, bytes | None] = {}

    def kill_sometimes(upstream: Upstream, asked: Asked, connection: socket.socket) -> bool:
        if len(upstream.asked) % KILL_EACH == 0:
            gateway.kill_workers()
            return False
        return created(upstream, asked, connection)

    def send(name: str, kind: str) -> bytes | None:
        with closing(FRONTS[kind](journal=journal, retry=PATIENT)) as front:
            try:
                received = front.post(url, name.encode(), intent=journal.intent(name, max_age=HOUR))
            except Indeterminate:
                return None
            return received.body if received.status == 201 else None

    def call(caller: int) -> None:
        for number in range(INTENTS_EACH):
            name = f"intent {caller}-{number};"
            answers[name] = send(name, sorted(FRONTS)[(caller + number) % len(FRONTS)])

    upstream, journal = Upstream(), Journal(f"sqlite:///{tmp_path}/journal.db")
    upstream.behaviours["/pay"] = kill_sometimes
    rules = '[policy]\nlease = "500ms"\n'
    with closing(upstream), GatewayServer(upstream.port, rules=rules, workers=2) as gateway, closing(journal):
        url = f"http://127.0.0.1:{gateway.port}/pay"
        with ThreadPoolExecutor(CALLERS) as callers:
            list(callers.map(call, range(CALLERS)))
        arrived = len(upstream.asked)
        again = {name: send(name, "httpx") for name in answers}
        assert again == answers, "an answer stays, and so does a doubt"
        assert len(upstream.asked) == arrived, "and nothing is sent for either"
    doubts = [name for name, answer in answers.items() if answer is None]
    assert len(doubts) >= CALLERS * INTENTS_EACH // KILL_EACH, "the request of each kill was in its hands"
    assert {upstream.effects(name) for name in doubts} <= {0, 1}
    assert {upstream.effects(name) for name in answers if name not in doubts} == {1}
