"""A 202 of semel says that the operation goes on: a caller waits for the answer, and never takes it for one."""

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from client.protected import protecting
from semel import Policy
from semel.client import Journal, Retry
from semel.client.httpx import IdempotentTransport
from semel.core.journal import IntentState
from waiting import until

SLOW = b"amount=slow"
PREFERS: dict[str, dict[str, str]] = {"by policy": {}, "by preference": {"prefer": "respond-async"}}


def client(journal: Journal, attempts: int) -> httpx.Client:
    retry = Retry(attempts=attempts, pause_max=0.02, retry_after_max=0.02)
    return httpx.Client(transport=IdempotentTransport(httpx.HTTPTransport(), journal=journal, retry=retry))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(f"sqlite:///{tmp_path}/journal.db")


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("why", PREFERS)
def test_a_repeat_that_is_accepted_waits_for_the_answer(why: str, journal: Journal) -> None:
    policy = Policy(in_flight="accept") if why == "by policy" else Policy()
    repeated = {"idempotency-key": "k1"} | PREFERS[why]
    answers: list[httpx.Response] = []
    with protecting(policy, secret="a secret of the tests") as shop, client(journal, attempts=1_000) as http:
        shop.may_answer.clear()
        url, intent = f"{shop.url}/v1/charges", journal.intent("pay:1", max_age=timedelta(hours=1))
        extensions = {"semel": intent}

        def repeat() -> None:
            answers.append(http.post(url, content=SLOW, headers=repeated, extensions=extensions))

        first = in_thread(lambda: httpx.post(url, content=SLOW, headers={"idempotency-key": "k1"}))
        until(lambda: shop.effects)
        repeating = in_thread(repeat)
        assert httpx.post(url, content=SLOW, headers=repeated).status_code == 202
        assert not answers
        shop.may_answer.set()
        repeating.join(20)
        first.join(20)
        assert [answer.json()["id"] for answer in answers] == ["ch_1"]
        assert shop.effects == {SLOW: 1}
        assert journal.pending() == ()


def test_an_intent_stays_open_if_the_operation_goes_on_for_longer(journal: Journal) -> None:
    with protecting(Policy(), secret="a secret of the tests") as shop, client(journal, attempts=2) as http:
        shop.may_answer.clear()
        with journal.intent("pay:1", max_age=timedelta(hours=1)) as intent:
            headers, extensions = {"prefer": "respond-async"}, {"semel": intent}
            answer = http.post(f"{shop.url}/v1/charges", content=SLOW, headers=headers, extensions=extensions)
            assert answer.status_code == 202
        (entry,) = journal.pending()
        assert entry.state is IntentState.OPEN
        shop.may_answer.set()
        with journal.intent("pay:1", max_age=timedelta(hours=1)) as intent:
            answer = http.post(f"{shop.url}/v1/charges", content=SLOW, extensions={"semel": intent})
            assert answer.json()["id"] == "ch_1"
        assert shop.effects == {SLOW: 1}
