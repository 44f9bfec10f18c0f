"""What the tests of the tiered store share: its URL, copies that are made at once, and a front that fails at random."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest
import redis

from semel.core.effects import Claim
from semel.core.records import Occupied
from semel.stores.tiered import judgement
from semel.stores.tiered.aio import AsyncTieredStore
from semel.stores.tiered.layout import Copy
from semel.stores.tiered.scripts import CopyLater
from semel.stores.tiered.store import Copier
from semel.testing import Fault, FaultProxy
from semel.testing.proxy import ProxyExchange


def tiered_url(front: str, back: str, **options: object) -> str:
    more = "".join(f"&{name}={quote(str(value), safe='')}" for name, value in options.items())
    return f"tiered:?front={quote(front, safe='')}&back={quote(back, safe='')}{more}"


def copy_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make copies before the call that asked for them returns, so that the next call finds them."""
    monkeypatch.setattr(Copier, "add", Copier._work)

    async def copy(store: AsyncTieredStore, effect: CopyLater) -> None:
        await store._copiers.get()._work(effect.key)

    monkeypatch.setattr(AsyncTieredStore, "_copy_later", copy)


@contextmanager
def counted_answers() -> Iterator[Counter[str]]:
    """Count what copies answered, by the state of their records."""
    counts: Counter[str] = Counter()
    answer = judgement.answer

    def counting(copy: Copy, call: Claim, now_ms: int, hint_ms: int) -> Occupied | None:
        found = answer(copy, call, now_ms, hint_ms)
        counts["none" if found is None else found.record.state.value] += 1
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judgement, "answer", counting)
        yield counts


FAULTS = {
    Fault.CUT_BEFORE: 0.04,
    Fault.CUT_AFTER: 0.04,
    Fault.HALF_CLOSE: 0.02,
    Fault.GARBLE: 0.02,
    Fault.DELAY: 0.02,
}
"""How often each happens to a request."""


class UnsteadyFront:
    """A Redis behind a proxy that cuts, delays and garbles at random, and is flushed, and gets old copies back."""

    def __init__(self, url: str, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._redis: Any = redis.Redis.from_url(url)
        self._proxy = FaultProxy(url)
        self._kept: list[tuple[bytes, bytes, int]] = []

    @contextmanager
    def running(self) -> Iterator[str]:
        """Its URL. Connections that were cut are tried again at once, so that nearly every call meets it."""
        with self._redis, self._proxy as proxy:
            proxy.inject(Fault.DELAY, when=self._tamper, times=None, delay_s=0)
            for fault, share in FAULTS.items():
                proxy.inject(fault, when=partial(self._meets, fault, share), times=None, delay_s=0.01)
            yield proxy.url

    def _meets(self, fault: Fault, share: float, exchange: ProxyExchange) -> bool:
        if self._random.random() >= share:
            return False
        self.done[fault.name] += 1
        return True

    def _tamper(self, exchange: ProxyExchange) -> bool:
        """Before a request goes on: keep a copy, bring an old one back, or lose everything. Never takes the fault."""
        chance = self._random.random()
        if chance < 0.02:
            self._redis.flushdb()
            self.done["flushed"] += 1
        elif chance < 0.3 and self._kept:
            self._restore(*self._random.choice(self._kept))
        elif chance < 0.7 and (name := self._redis.randomkey()):
            self._keep(name)
        return False

    def _keep(self, name: bytes) -> None:
        value, expires_ms = self._redis.dump(name), self._redis.pexpiretime(name)
        if value is not None and expires_ms > 0:
            self._kept.append((name, value, expires_ms))
            del self._kept[:-50]

    def _restore(self, name: bytes, value: bytes, expires_ms: int) -> None:
        """As after a failover to a replica that was behind: with the end of its life, which does not move."""
        if expires_ms > time.time() * 1000:
            self._redis.restore(name, expires_ms, value, replace=True, absttl=True)
            self.done["restored"] += 1
