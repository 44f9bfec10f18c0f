"""A caller that is killed with -9 at one point of its call: `python -m client.killed JOURNAL URL POINT`."""

import os
import signal
import sys
from contextlib import closing
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from client.fronts import FRONTS
from semel.client import Journal, Retry, exchange
from semel.core.call_values import SendRequest
from semel.core.effects import Effect

POINTS = [f"{when} {what}" for what in ("OpenIntent", "send", "CloseIntent") for when in ("before", "after")]
"""In the order of a call."""
REPEAT_POINTS = [f"{when} {what}" for what in ("RenewIntent", "BeginAttempt") for when in ("before", "after")]


def kill_at(point: str) -> None:
    """Let this process kill itself before or after an effect of its calls."""

    def reach(when: str, effect: Effect[Any]) -> None:
        what = "send" if isinstance(effect, SendRequest) else type(effect).__name__
        if f"{when} {what}" == point:
            os.kill(os.getpid(), signal.SIGKILL)

    class Killed(exchange.SyncExchange):
        def perform(self, effect: Effect[Any]) -> Any:
            reach("before", effect)
            reply = super().perform(effect)
            reach("after", effect)
            return reply

    class AsyncKilled(exchange.AsyncExchange):
        async def perform(self, effect: Effect[Any]) -> Any:
            reach("before", effect)
            reply = await super().perform(effect)
            reach("after", effect)
            return reply

    exchange.SyncExchange, exchange.AsyncExchange = Killed, AsyncKilled  # type: ignore[misc]


def pay(journal_url: str, url: str, point: str, name: str = "pay:42", kind: str = "httpx") -> bytes:
    kill_at(point)
    retry = Retry(pause_max=0.02, deadline=20)
    with (
        closing(Journal(journal_url)) as journal,
        closing(FRONTS[kind](retry=retry, journal=journal, lease=0.1)) as front,
        journal.intent(name, max_age=timedelta(hours=1)) as intent,
    ):
        return front.post(url, name.encode(), intent=intent).body


def pay_once(journal_url: str, url: str, point: str, name: str, kind: str, answer: Connection) -> None:
    """What a process runs that `client.kills` starts."""
    answer.send(pay(journal_url, url, point, name, kind))


if __name__ == "__main__":
    sys.stdout.buffer.write(pay(*sys.argv[1:]))
