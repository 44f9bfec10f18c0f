"""A caller's journal: intents per second, each opened and answered, which is two writes that the disk has.

Beside it stands the least that is as safe: Python's sqlite3, a lock, and two transactions with `synchronous=FULL`.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from statistics import median

from benchmarks.apps import SEMEL
from benchmarks.places import Places
from benchmarks.results import PER_SECOND, Found, Note
from benchmarks.rounds import alternate, measured
from benchmarks.sizes import Size
from semel.client import Journal
from semel.codecs.sealed import Seal
from semel.core.journal import CallRequest, CloseIntent, IntentId, KeptAnswer, OpenIntent

THREADS = (1, 64)
ONE_BY_ONE, SEALED, IN_MEMORY = "sqlite3, one by one", "semel, sealed", "semel, memory://"
REQUEST = CallRequest(
    "POST", "https://api.example/pay", (("content-type", "application/json"),), b'{"amount": 10, "to": "shop"}'
)
ANSWER = KeptAnswer.of(201, (("content-type", "application/json"),), b'{"payment": 1, "amount": 10}')
LEASE_MS, MAX_AGE_MS = 30_000, 86_400_000
numbers = itertools.count()
Once = Callable[[], None]


def measure(size: Size, places: Places) -> Iterator[Found]:
    with ExitStack() as stack:
        plain = stack.enter_context(closing(Journal(f"sqlite:///{places.fresh_file()}")))
        seal = Seal({"bench": os.urandom(32)})
        sealed = stack.enter_context(closing(Journal(f"sqlite:///{places.fresh_file()}", seal=seal)))
        bare = stack.enter_context(closing(Bare(str(places.fresh_file()))))
        ways: dict[str, Once] = {
            SEMEL: partial(intend, plain),
            SEALED: partial(intend, sealed),
            ONE_BY_ONE: bare.write,
            IN_MEMORY: partial(intend, Journal("memory://")),
        }
        for threads in THREADS:
            runs = {who: partial(per_second, once, threads, size.round_s) for who, once in ways.items()}
            rounds = alternate(runs, size.rounds)
            for who, values in rounds.items():
                yield measured("journal, intents", who, "sqlite", threads, PER_SECOND, values)
            least = median(rounds[ONE_BY_ONE])
            told = ", ".join(f"{who} {median(rounds[who]) / least:.2f}" for who in (SEMEL, SEALED))
            yield Note(f"journal, {threads} threads", f"{told} of {ONE_BY_ONE}")


def intend(journal: Journal) -> None:
    """One operation, as a transport writes it down: before the request, and after the answer."""
    number = next(numbers)
    name, key = IntentId(f"pay:{number}"), f"key-{number}"
    journal.answer(OpenIntent(name, REQUEST, key, "owner", LEASE_MS, MAX_AGE_MS))
    assert journal.answer(CloseIntent(name, key, ANSWER))


class Bare:
    """The two writes by hand."""

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("CREATE TABLE intents (name TEXT PRIMARY KEY, key TEXT, request BLOB, answer BLOB)")

    def write(self) -> None:
        number = next(numbers)
        name, key = f"pay:{number}", f"key-{number}"
        with self._lock:
            self._connection.execute("INSERT INTO intents VALUES (?, ?, ?, NULL)", (name, key, REQUEST.body))
        with self._lock:
            self._connection.execute("UPDATE intents SET answer = ? WHERE name = ?", (ANSWER.body, name))

    def close(self) -> None:
        self._connection.close()


def per_second(once: Once, threads: int, seconds: float) -> float:
    started = time.perf_counter()
    until = started + seconds

    def work(_: int) -> int:
        done = 0
        while time.perf_counter() < until:
            once()
            done += 1
        return done

    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(work, range(threads)))
    return done / (time.perf_counter() - started)
