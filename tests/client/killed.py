"""A caller that is killed with -9 at one point of its call: `python -m client.killed JOURNAL URL POINT`."""

import os
import signal
import sys
from datetime import timedelta
from typing import Any

import httpx

from semel.client import Journal, Retry
from semel.client.httpx import IdempotentTransport
from semel.core.journal import JournalCall

POINTS = [
    f"{when} {what}" for what in ("OpenIntent", "send", "CloseIntent") for when in ("before", "after")
]  # in the order of a call


class Killer:
    def __init__(self, point: str) -> None:
        self.point = point

    def reach(self, point: str) -> None:
        if point == self.point:
            os.kill(os.getpid(), signal.SIGKILL)


class KilledJournal(Journal):
    killer = Killer("")

    def answer(self, call: JournalCall[Any]) -> Any:
        self.killer.reach(f"before {type(call).__name__}")
        reply = super().answer(call)
        self.killer.reach(f"after {type(call).__name__}")
        return reply


class KilledTransport(httpx.HTTPTransport):
    killer = Killer("")

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.killer.reach("before send")
        response = super().handle_request(request)
        self.killer.reach("after send")
        return response


def pay(journal_url: str, url: str, point: str) -> bytes:
    journal, transport = KilledJournal(journal_url), KilledTransport()
    journal.killer = transport.killer = Killer(point)
    retry = Retry(pause_max=0.02, deadline=20)
    with (
        httpx.Client(transport=IdempotentTransport(transport, journal=journal, retry=retry, lease=0.1)) as http,
        journal.intent("pay:42", max_age=timedelta(hours=1)) as intent,
    ):
        return http.post(url, json={"amount": 5}, extensions={"semel": intent}).content


if __name__ == "__main__":
    sys.stdout.buffer.write(pay(*sys.argv[1:]))
