"""The sync face: each thread uses the connection that Django has for it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TypeVar

from semel.core.effects import Effect, Read, Renew
from semel.core.outbox import CountMessages, ListMessages, checked_call
from semel.store import Clock, Counts, Filter, Migration, Page
from semel.stores.django.driver import Lender
from semel.stores.django.requests import is_over
from semel.stores.faces import Face
from semel.stores.sql import migrations

T = TypeVar("T")
READS = (Read, ListMessages, CountMessages)
PURGE_AT_ONCE = 500
"""A purge is cut into transactions of this size, with room for others between them."""


class DjangoStore(Face):
    """For threads of any number of processes, on `settings.DATABASES[alias]`."""

    def __init__(self, alias: str = "default", *, clock: Clock | None = None) -> None:
        self._lender = Lender(alias)
        self._clock = clock

    def _call(self, call: Effect[T]) -> T:
        engine = self._lender.engine
        if (look := engine.look(call, self._now_ms())) is not None and (found := self._lender.run(look)) is not None:
            replayed: T = found
            return replayed
        reply: T = self._lender.run(
            engine.answer(call, self._now_ms()),
            alone=engine.transactional and not isinstance(call, READS),
            hand_back=_outside_of_requests(call),
        )
        return reply

    def doubts(self, before: frozenset[str] | None) -> frozenset[str]:
        return self._lender.run(self._lender.engine.doubts(before), hand_back=True)

    def purge(self, *, limit: int) -> int:
        engine, gone = self._lender.engine, 0
        while gone < limit:
            size = min(limit - gone, PURGE_AT_ONCE)
            found = self._lender.run(engine.purge(size, self._now_ms()), alone=engine.transactional)
            gone += found
            if found < size:
                break
        return gone

    def scan(self, filter: Filter = Filter(), *, cursor: str | None = None, limit: int = 100) -> Page:
        return self._lender.run(self._lender.engine.scan(filter, cursor, limit, self._now_ms()))

    def counts(self) -> Counts:
        return self._lender.run(self._lender.engine.counts(self._now_ms()))

    def outbox(self, call: Effect[T]) -> T:
        return self._call(checked_call(call))

    def migrations(self) -> Sequence[Migration]:
        """With the entries in the book of migrations, so that Django's own migrations run exactly these statements."""
        return migrations.printable(self._lender.engine.migrations())

    def migrate(self) -> Sequence[int]:
        """What `manage.py migrate semel` does, for those who do not use Django's migrations."""
        return self._lender.migrate()

    def close(self) -> None:
        """The connections are Django's, and it closes them."""

    def _now_ms(self) -> int | None:
        return None if self._clock is None else self._clock()


def _outside_of_requests(call: Effect[T]) -> bool:
    """Whether Django closes no connection afterwards: the thread is one of ours, or the request is over."""
    return isinstance(call, Renew) or threading.current_thread().name.startswith("semel-") or is_over()
