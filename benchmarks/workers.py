"""Several worker processes behind one port: throughput, and that every key has the same answer from all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from benchmarks.apps import SEMEL
from benchmarks.load import Round, fire, key, new_prefix
from benchmarks.places import DURABLE, Places
from benchmarks.results import PER_SECOND, Found, Note
from benchmarks.rounds import alternate, measured
from benchmarks.serving import AppServer
from benchmarks.sizes import Size

COUNTS = (1, 2, 4)
CONNECTIONS, KEYS, REPEATS = 64, 20, 4


def measure(size: Size, places: Places) -> Iterator[Found]:
    for store in DURABLE:
        with ExitStack() as stack:
            url = places.url(store, fresh="workers")
            servers = {count: stack.enter_context(AppServer(SEMEL, store, url, workers=count)) for count in COUNTS}
            cells = {count: firing(server, size) for count, server in servers.items()}
            for count, found in alternate(cells, size.rounds).items():
                yield measured("first", SEMEL, store, count, PER_SECOND, [one.per_second for one in found])
            yield Note(f"workers, {store}", same_answers(servers[max(COUNTS)]))


def firing(server: AppServer, size: Size) -> Callable[[], Round]:
    def run() -> Round:
        found = fire(server.port, CONNECTIONS, size.round_s, "new")
        assert not found.refused, f"{found.refused} of {found.requests} new keys were refused"
        assert not found.broken
        return found

    return run


def same_answers(server: AppServer) -> str:
    """Every key, each time on a new connection to whichever worker takes it, has one answer: whoever ran it."""
    prefix = new_prefix()
    keys = [key(prefix, number) for number in range(KEYS)]
    first = [server.pay([each]) for each in keys]
    for _ in range(REPEATS):
        assert [server.pay([each]) for each in keys] == first, "a key had two answers"
    ran = {json.loads(body)["by"] for [(_, body)] in first}
    whose = f"run by {len(ran)} of {max(COUNTS)} workers"
    return f"{server.store}: {KEYS} keys, {whose} and asked {REPEATS} times more, had the same answer every time"
