"""Two functions on one store, called 600 times at once from threads and tasks: nobody gets another's result."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import semel

KEYS = 50
REPEATS = 3
WAITING = semel.Policy(in_flight="wait", wait=60)


class Shop:
    """Two functions with the same keys and arguments, sync and async faces of each in the same scope."""

    def __init__(self, store: semel.Store, async_store: semel.AsyncStore, prefix: str) -> None:
        self.effects: Counter[str] = Counter()
        self.keys = [f"{prefix}-{number}" for number in range(KEYS)]
        self._lock = threading.Lock()
        self._async_store = async_store

        @semel.idempotent(store=store, key="key", scope="charge", policy=WAITING)
        def charge(key: str) -> list[str]:
            return self.done("charge", key)

        @semel.idempotent(store=store, key="key", scope="refund", policy=WAITING)
        def refund(key: str) -> tuple[str, str]:
            return tuple(self.done("refund", key))  # type: ignore[return-value]

        @semel.idempotent(store=async_store, key="key", scope="charge", policy=WAITING)
        async def acharge(key: str) -> list[str]:
            await asyncio.sleep(0)
            return self.done("charge", key)

        @semel.idempotent(store=async_store, key="key", scope="refund", policy=WAITING)
        async def arefund(key: str) -> tuple[str, str]:
            await asyncio.sleep(0)
            return tuple(self.done("refund", key))  # type: ignore[return-value]

        self.functions = {"charge": charge, "refund": refund}
        self.coroutines = {"charge": acharge, "refund": arefund}

    def done(self, name: str, key: str) -> list[str]:
        operation = semel.current_operation()
        assert operation is not None
        assert (operation.key.scope, operation.key.name) == (name, key)
        with self._lock:
            self.effects[f"{name} {key}"] += 1
        return [name, key]

    def calls(self) -> list[tuple[str, str]]:
        return [(name, key) for key in self.keys for _ in range(REPEATS) for name in ("charge", "refund")]

    def in_threads(self) -> int:
        with ThreadPoolExecutor(16) as threads:
            results = list(threads.map(lambda call: self.functions[call[0]](call[1]), self.calls()))
        return self.check(results)

    async def in_tasks(self) -> int:
        results = await asyncio.gather(*(self.coroutines[name](key) for name, key in self.calls()))
        await self._async_store.close()
        return self.check(results)

    def check(self, results: Sequence[Sequence[str]]) -> int:
        for (name, key), result in zip(self.calls(), results, strict=True):
            assert result == ([name, key] if name == "charge" else (name, key))
        return len(results)


def both(shop: Shop) -> int:
    """Threads and tasks at once."""
    with ThreadPoolExecutor(1) as beside:
        tasks = beside.submit(lambda: asyncio.run(shop.in_tasks()))
        return shop.in_threads() + tasks.result()


def test_threads_and_tasks_on_one_durable_store(durable_url: str, order: str) -> None:
    with semel.open_store(durable_url) as store:  # type: ignore[attr-defined]
        shop = Shop(store, semel.open_async_store(durable_url), order)
        assert both(shop) == 600
    assert shop.effects == Counter({f"{name} {key}": 1 for name, key in shop.calls()})


def test_threads_and_tasks_in_memory(order: str) -> None:
    shop = Shop(semel.open_store("memory://"), semel.open_async_store("memory://"), order)
    assert both(shop) == 600
    assert shop.effects == Counter({f"{name} {key}": 2 for name, key in shop.calls()})  # two stores: one for each face
