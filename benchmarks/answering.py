"""Whether a contender has stored an answer when it gives it: only then can a crash not become a second execution.

A handler is let run to its end while the store cannot take anything. Who answers nevertheless did not wait for it.
"""

from __future__ import annotations

import http.client
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

from benchmarks.load import key, new_prefix
from benchmarks.places import Places, path_of
from benchmarks.serving import HELD, AppServer

WAIT_S = 0.5


def stores_first(server: AppServer, places: Places, url: str) -> bool | None:
    """None: it cannot be told, because the store is not ours to stop, or the handler is not one that can be held."""
    answered = threading.Event()

    def request() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        headers = {"Idempotency-Key": key(new_prefix(), 0), "Content-Type": "application/json"}
        with closing(connection):
            connection.request("POST", "/pay", body=HELD, headers=headers)
            connection.getresponse().read()
            answered.set()

    if server.store not in places.stoppable:
        return None
    asking = threading.Thread(target=request, daemon=True)
    asking.start()
    while not server.held():
        if answered.wait(0.01):
            return None
    with stopped(server.store, places, url):
        server.let_go()
        early = answered.wait(WAIT_S)
    asking.join(30)
    return not early


@contextmanager
def stopped(store: str, places: Places, url: str) -> Iterator[None]:
    """Nobody can write there."""
    if store == "sqlite":
        with closing(sqlite3.connect(path_of(url), isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")
        return
    server = places.stoppable[store]
    assert server is not None
    server.pause()
    try:
        yield
    finally:
        server.resume()
