"""What an adapter of `semel.client` costs a caller: calls per second and the time of one, beside the bare client.

The service is the bare application, so that what is added is the caller's part alone.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from statistics import median, quantiles

import httpx

from benchmarks.apps import BARE
from benchmarks.journal import per_second
from benchmarks.places import Places
from benchmarks.results import P50, PER_SECOND, Found, Note
from benchmarks.rounds import alternate, measured
from benchmarks.serving import BODY, AppServer
from benchmarks.sizes import Size
from semel.client import Journal
from semel.client.httpx import IdempotentTransport

PLAIN, KEYED, IN_MEMORY, ON_DISK = "httpx", "semel", "semel, memory://", "semel, sqlite://"
THREADS = 16
JSON = {"Content-Type": "application/json"}
DAY = timedelta(days=1)
numbers = itertools.count()
Once = Callable[[], None]


def measure(size: Size, places: Places) -> Iterator[Found]:
    journals = {IN_MEMORY: Journal("memory://"), ON_DISK: Journal(f"sqlite:///{places.fresh_file()}")}
    with ExitStack() as stack, AppServer(BARE, "memory", "memory://") as server:
        url = f"http://127.0.0.1:{server.port}/pay"

        def client(transport: httpx.BaseTransport | None) -> httpx.Client:
            return stack.enter_context(httpx.Client(transport=transport))

        pool = partial(httpx.HTTPTransport, limits=httpx.Limits(max_connections=THREADS))
        ways: dict[str, Once] = {
            PLAIN: partial(pay, client(pool()), url),
            KEYED: partial(pay, client(IdempotentTransport(pool())), url),
        }
        for name, journal in journals.items():
            stack.callback(journal.close)
            ways[name] = partial(intend, client(IdempotentTransport(pool(), journal=journal)), url, journal)
        for threads in (1, THREADS):
            rounds = alternate(
                {who: partial(per_second, once, threads, size.round_s) for who, once in ways.items()}, size.rounds
            )
            for who, values in rounds.items():
                yield measured("client, calls", who, "httpx", threads, PER_SECOND, values)
            yield Note(f"client, {threads} threads", ratios({who: median(values) for who, values in rounds.items()}))
        middles = alternate({who: partial(middle_us, once, size.samples) for who, once in ways.items()}, size.rounds)
        for who, values in middles.items():
            yield measured("client, one call", who, "httpx", 1, P50, values)


def ratios(of: dict[str, float]) -> str:
    return ", ".join(f"{who} {of[who] / of[PLAIN]:.2f}" for who in of if who != PLAIN) + f" of {PLAIN}"


def pay(client: httpx.Client, url: str) -> None:
    assert client.post(url, content=BODY, headers=JSON).status_code < 300


def intend(client: httpx.Client, url: str, journal: Journal) -> None:
    """One operation of its own, under a durable key."""
    with journal.intent(f"pay:{next(numbers)}", max_age=DAY) as intent:
        assert client.post(url, content=BODY, headers=JSON, extensions={"semel": intent}).status_code < 300


def middle_us(once: Once, samples: int) -> float:
    taken = []
    for _ in range(max(2, samples)):
        started = time.perf_counter()
        once()
        taken.append(1e6 * (time.perf_counter() - started))
    return quantiles(taken, n=100)[49]
