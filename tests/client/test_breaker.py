"""Circuit breakers, through every adapter: what they see of each attempt. While one is open, nothing is sent."""

import asyncio
from collections.abc import Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import timedelta

import pytest

from client.api import serving
from client.fronts import FRONTS, AsyncFront
from semel.client import AttemptEnd, FailedAttempt, Journal, RepeatLimit, Retry, RetryBudget, report_of
from semel.core.calls import origin_of
from semel.errors import CircuitOpen, Misuse
from waiting import until

HOUR = timedelta(hours=1)


class FuseBlown(Exception):
    """What a library raises while its breaker is open."""


class Fuse:
    """Opens after some failures in a row. It raises on leaving, as pybreaker does when it opens."""

    def __init__(self, failures_max: int = 100) -> None:
        self.is_open, self.failures, self.failures_max = False, 0, failures_max
        self.seen: list[tuple[str, object]] = []

    @contextmanager
    def __call__(self, origin: str) -> Iterator[None]:
        if self.is_open:
            raise FuseBlown("too many failures")
        try:
            yield
        except BaseException as error:
            self.seen.append((origin, error.end if isinstance(error, FailedAttempt) else type(error)))
            self.failures += 1
            self.is_open = self.failures >= self.failures_max
            raise FuseBlown("this one was too much") from error
        self.seen.append((origin, None))


@pytest.mark.parametrize("kind", FRONTS)
def test_while_it_is_open_nothing_is_sent_and_the_intent_stays_open(kind: str) -> None:
    fuse, budget = Fuse(), RetryBudget(ratio=1)
    fuse.is_open = True
    retry = Retry(breaker=fuse, budget=budget)
    with (
        serving() as api,
        closing(Journal("memory://")) as journal,
        closing(FRONTS[kind](retry=retry, journal=journal)) as front,
    ):
        origin = origin_of(api.url)
        with pytest.raises(CircuitOpen, match=f"breaker of {origin} is open, so no request was sent; an in") as refused:
            front.post(api.url, intent=journal.intent("pay:42", max_age=HOUR))
        assert isinstance(refused.value.__cause__, FuseBlown)
        report = report_of(refused.value)
        assert (report.attempts, report.end, bool(report.key)) == (0, AttemptEnd.HELD_BACK, True)
        with pytest.raises(CircuitOpen):
            front.post(api.url)
        (left,) = journal.pending()
        assert left.error == "a circuit breaker is open: the request was not sent: too many failures"
        assert (api.requests, left.owner, budget.left(origin)) == ([], "", 50), "what was not sent pays for no repeat"
        fuse.is_open = False
        received = front.post(api.url, intent=journal.intent("pay:42", max_age=HOUR))
        assert (received.status, received.report.key, received.report.attempts) == (201, report.key, 1)
        assert list(api.effects.values()) == [1]


@pytest.mark.parametrize("kind", FRONTS)
def test_it_sees_each_attempt_once(kind: str) -> None:
    fuse = Fuse()
    retry = Retry(breaker=fuse, pause_max=0.02)
    troubles = ("refuse 503", "drop", "answer", "problem key-reused")
    with serving(*troubles) as api, closing(FRONTS[kind](retry=retry)) as front:
        assert front.post(api.url).status == 201
        assert front.post(api.url).status == 409
        origin = origin_of(api.url)
        ends = [AttemptEnd.LATER, AttemptEnd.LOST, None, None]
        assert fuse.seen == [(origin, end) for end in ends], "what the service refuses does not speak against it"
    with closing(FRONTS[kind](retry=Retry(breaker=fuse, attempts=1))) as front, pytest.raises(front.lost):
        front.post(api.url)
    assert fuse.seen[4:] == [(origin, AttemptEnd.UNREACHED)]


@pytest.mark.parametrize("kind", FRONTS)
def test_one_that_opens_ends_the_repeats(kind: str) -> None:
    retry = Retry(breaker=Fuse(failures_max=2), pause_max=0.02)
    with (
        serving(*["502"] * 8) as api,
        closing(Journal("memory://")) as journal,
        closing(FRONTS[kind](retry=retry, journal=journal)) as front,
    ):
        with pytest.raises(CircuitOpen, match="no request was sent again, after 2 before") as refused:
            front.post(api.url, intent=journal.intent("pay:42", max_age=HOUR))
        assert len(api.requests) == report_of(refused.value).attempts == 2
        assert [entry.id.name for entry in journal.pending()] == ["pay:42"]


@pytest.mark.parametrize("kind", FRONTS)
def test_one_that_opens_with_the_last_attempt_takes_no_answer_away(kind: str) -> None:
    retry = Retry(breaker=Fuse(failures_max=1), budget=RetryBudget(at_least=0))
    with serving("502") as api, closing(FRONTS[kind](retry=retry)) as front:
        received = front.post(api.url)
        assert (received.status, received.report.limit) == (502, RepeatLimit.BUDGET)


@pytest.mark.parametrize("kind", [kind for kind, front in FRONTS.items() if issubclass(front, AsyncFront)])
def test_an_attempt_that_is_cancelled_is_ended(kind: str) -> None:
    fuse = Fuse()
    with serving() as api, closing(FRONTS[kind](retry=Retry(breaker=fuse))) as front:
        assert isinstance(front, AsyncFront)
        api.may_answer.clear()

        async def cancel() -> None:
            sending = asyncio.ensure_future(front.asend("POST", api.url, b"{}", {}, None))
            await asyncio.to_thread(until, lambda: api.requests)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending

        front.runner.run(cancel())
        assert fuse.seen == [(origin_of(api.url), asyncio.CancelledError)]


@pytest.mark.parametrize("kind", FRONTS)
def test_what_is_no_context_manager_is_refused(kind: str) -> None:
    @asynccontextmanager
    async def fuse(origin: str):  # type: ignore[no-untyped-def]
        yield

    with serving() as api, closing(FRONTS[kind](retry=Retry(breaker=fuse))) as front:  # type: ignore[arg-type]
        with pytest.raises(Misuse, match="must give a context manager for an origin, used with a plain `with`"):
            front.post(api.url)
        assert not api.requests
    with pytest.raises(TypeError, match="breaker must be a function from an origin to a context manager, not 3"):
        Retry(breaker=3)  # type: ignore[arg-type]
