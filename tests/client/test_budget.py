"""The retry budget of a process: a fleet of callers does not multiply an outage, and what was held back is not lost."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from itertools import cycle, islice

import pytest

from client.api import Api, serving
from client.fronts import FRONTS
from semel.client import CallReport, Journal, Retry, RetryBudget, report_of
from semel.client.budget import ORIGINS_MAX, PROCESS_BUDGET
from semel.core.retries import RepeatLimit

HOUR = timedelta(hours=1)
CALLERS, ATTEMPTS = 50, 8
SHOP = "https://shop.example"


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outage() -> Iterator[Api]:
    with serving(*["refuse 503"] * 1_000) as api:
        yield api


def send_all(api: Api, retry: Retry) -> Counter[RepeatLimit | None]:
    """Send one request from each of many callers at once, through all the adapters, and count why they gave up."""
    kinds = list(islice(cycle(FRONTS.values()), CALLERS))
    together = threading.Barrier(CALLERS)

    def call(number: int) -> CallReport:
        with closing(kinds[number](retry=retry)) as front:
            together.wait(20)
            return front.post(api.url).report

    with ThreadPoolExecutor(CALLERS) as threads:
        reports = list(threads.map(call, range(CALLERS)))
    assert sum(report.attempts for report in reports) == len(api.requests), "reports are true"
    return Counter(report.limit for report in reports)


def test_a_fleet_without_a_budget_multiplies_an_outage(outage: Api) -> None:
    retry = Retry(attempts=ATTEMPTS, pause_max=0.02, budget=None)
    assert send_all(outage, retry) == {RepeatLimit.ATTEMPTS: CALLERS}
    assert len(outage.requests) == CALLERS * ATTEMPTS


def test_a_fleet_shares_the_budget_of_its_process_by_default(outage: Api) -> None:
    began_s = time.monotonic()
    limits = send_all(outage, Retry(attempts=ATTEMPTS, pause_max=0.02))
    refilled = 50 * (time.monotonic() - began_s) / 60
    assert CALLERS + 50 <= len(outage.requests) <= CALLERS * 1.1 + 50 + refilled
    assert limits[RepeatLimit.BUDGET] > CALLERS / 2
    assert Retry().budget is Retry(attempts=2).budget is PROCESS_BUDGET
    with serving("refuse 503") as other, closing(FRONTS["httpx"]()) as front:
        assert front.post(other.url).status == 201, "the outage of one service takes nothing from another"


@pytest.mark.parametrize("kind", FRONTS)
def test_what_is_held_back_stays_in_the_journal_and_is_sent_later(outage: Api, kind: str, clock: Clock) -> None:
    budget = RetryBudget(ratio=0, at_least=2, per=60, clock=clock)
    retry = Retry(attempts=ATTEMPTS, pause_max=0.02, budget=budget)
    with closing(Journal("memory://")) as journal, closing(FRONTS[kind](retry=retry, journal=journal)) as front:
        intent = journal.intent("pay:42", max_age=HOUR)
        received = front.post(outage.url, intent=intent)
        assert (received.status, received.report.attempts) == (503, 3), "the last answer, after both repeats"
        assert received.report.limit is RepeatLimit.BUDGET
        (left,) = journal.pending()
        assert "the retry budget of this process is spent" in left.error
        assert front.post(outage.url, intent=intent).report.attempts == 1, "a first request is always sent"
        outage.behaviours[:] = ["refuse 503"]
        assert front.post(outage.url, intent=intent).status == 503
        outage.behaviours[:] = ["refuse 503"]
        clock.now_s += 60
        received = front.post(outage.url, intent=intent)
        assert (received.status, received.report.attempts, received.report.limit) == (201, 2, None)
        assert (len({key for _, key, _ in outage.requests}), list(outage.effects.values())) == (1, [1])


@pytest.mark.parametrize("kind", FRONTS)
def test_the_error_of_the_library_says_that_the_budget_is_spent(kind: str) -> None:
    retry = Retry(pause_max=0.02, budget=RetryBudget(ratio=1.5, at_least=0))
    with serving(*["drop"] * 8) as api, closing(FRONTS[kind](retry=retry)) as front:
        with pytest.raises(front.lost) as lost:
            front.post(api.url)
        assert len(api.requests) == 2, "the first request pays for one repeat"
    assert report_of(lost.value).limit is RepeatLimit.BUDGET


@pytest.mark.parametrize("kind", FRONTS)
def test_waiting_for_ones_own_operation_costs_nothing(kind: str) -> None:
    retry = Retry(attempts=6, pause_max=0.02, budget=RetryBudget(ratio=0, at_least=0))
    with serving(*["problem in-progress"] * 4) as api, closing(FRONTS[kind](retry=retry)) as front:
        assert (front.post(api.url).status, len(api.requests)) == (201, 5)
        api.behaviours[:] = ["problem in-progress"] * 9
        received = front.post(api.url)
        assert (received.report.attempts, received.report.limit) == (6, RepeatLimit.ATTEMPTS), "it is still bounded"


def test_the_tokens_go_back_to_the_least_from_both_sides(clock: Clock) -> None:
    budget = RetryBudget(ratio=0.1, at_least=5, per=60, clock=clock)
    assert [budget.withdraw(SHOP) for _ in range(6)] == [True] * 5 + [False]
    clock.now_s += 60
    assert budget.left(SHOP) == pytest.approx(5 * (1 - 0.368), rel=0.01)
    for _ in range(1_000):
        budget.deposit(SHOP)
    assert budget.left(SHOP) == pytest.approx(103.2, rel=0.01), "a service that is called often gets more"
    clock.now_s += 600
    assert budget.left(SHOP) == pytest.approx(5, rel=0.01), "and not for what was long ago"
    assert budget.left("https://never.example") == 5


def test_threads_get_no_more_than_there_is(clock: Clock) -> None:
    budget = RetryBudget(ratio=1, at_least=0, clock=clock)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: budget.deposit(SHOP), range(1_000)))
        taken = list(threads.map(lambda _: budget.withdraw(SHOP), range(2_000)))
    assert sum(taken) == 1_000


def test_a_budget_knows_only_so_many_services(clock: Clock) -> None:
    budget = RetryBudget(ratio=1, at_least=1, clock=clock)
    for number in range(ORIGINS_MAX):
        budget.deposit(f"https://{number}.example")
    budget.deposit("https://0.example")
    budget.deposit("https://new.example")
    assert [budget.left(f"https://{name}.example") for name in (0, 1, 2, "new")] == [3, 1, 2, 2]


@pytest.mark.parametrize(
    "wrong", [{"ratio": -0.1}, {"ratio": float("nan")}, {"at_least": -1}, {"per": 0}, {"per": float("inf")}]
)
def test_a_budget_has_bounds(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be a number between"):
        RetryBudget(**wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="budget must be a RetryBudget, or None for no bound, not float"):
        Retry(budget=0.1)  # type: ignore[arg-type]
