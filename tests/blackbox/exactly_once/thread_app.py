"""The same service for threads (waitress), on SQLAlchemy sessions."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

import waitress

from blackbox.exactly_once.connections import ThreadConnections, thread_connections_of
from blackbox.exactly_once.orders import (
    ARMS,
    WAIT_S,
    Block,
    Change,
    Give,
    Kind,
    Order,
    Part,
    Pause,
    Step,
    Write,
    answer_of,
    parts_of,
    status_of,
    steps,
)
from blackbox.exactly_once.setting import POLICY, SECRET, URLS, Attempt, raised
from semel.transaction import TransactionStore
from semel.wsgi import IdempotencyMiddleware

THREADS = 16
STATUS = {200: "200 OK", 201: "201 Created", 402: "402 Payment Required", 500: "500 Internal Server Error"}


class TimedOut(BaseException):
    """As gevent's, or a server's that gives a request up: no handler for `Exception` sees it."""


class Payments:
    def __init__(self, connections: ThreadConnections, store: TransactionStore[Any]) -> None:
        self._connections = connections
        self._store = store

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        order = Order.read(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        parts = self._parts(order, start_response)
        if order.kind in (Kind.LARGE, Kind.TORN):
            return parts
        return [b"".join(parts)]

    def _parts(self, order: Order, start_response: Any) -> Iterator[bytes]:
        """Rows are written between the parts of a large answer."""
        with Attempt(order) as attempt:
            connection, is_begun = self._store.current(), False
            for step in steps(order, attempt.run, attempt.chance):
                if isinstance(step, Part):
                    if not is_begun:
                        start(start_response, status_of(order), sum(map(len, parts_of(order, attempt.run))))
                    is_begun = True
                    yield step.data
                else:
                    self._perform(step, attempt, connection)
            if not is_begun:
                answer = answer_of(order, attempt.run)
                start(start_response, status_of(order), len(answer))
                yield answer

    def _perform(self, step: Step, attempt: Attempt, connection: Any) -> None:
        match step:
            case Write() | Change():
                asked_s = time.monotonic()
                self._connections.execute(connection, *attempt.statement(step))
                attempt.wrote(asked_s)
            case Pause(seconds) | Block(seconds):
                time.sleep(seconds)
            case Give(up=Kind.CUT_OFF):
                attempt.fault("was cut off by a BaseException")
                raise TimedOut("on purpose")
            case Give(up=kind):
                attempt.fault(kind)
                raise raised(kind)
            case _:
                raise TypeError(step)


def start(start_response: Any, status: int, size: int) -> None:
    start_response(STATUS[status], [("content-type", "application/json"), ("content-length", str(size))])


pools = {arm.name: thread_connections_of(arm.name, URLS[arm.name]) for arm in ARMS if arm.in_threads}
stores = {arm: TransactionStore(pool.begin, wait=WAIT_S) for arm, pool in pools.items()}
fronts = {
    arm: IdempotencyMiddleware(
        Payments(pools[arm], store),
        store=store,
        policy=POLICY,
        secret=SECRET,
        publish=f"/{arm}/.well-known/idempotency",
        identify=lambda environ: "shop",
    )
    for arm, store in stores.items()
}


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    arm = environ["PATH_INFO"].split("/")[1]
    if arm in fronts:
        try:
            return fronts[arm](environ, start_response)
        except TimedOut:  # the server would never answer, and what raises it in a real one does
            start(start_response, 500, 0)
            return []
    told = json.dumps({arm: pool.lent() for arm, pool in pools.items()}).encode()
    start(start_response, 200, len(told))
    return [told]


if __name__ == "__main__":
    waitress.serve(app, host="127.0.0.1", port=int(os.environ["SEMEL_BOX_PORT"]), threads=THREADS)
