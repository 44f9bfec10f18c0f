"""Callers: each order is asked for under its key until it is answered, and sometimes twice at once."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Sequence

import aiohttp

from chain.setting import CUSTOMERS

TIMEOUT = aiohttp.ClientTimeout(total=10)
REST_S = 0.05


class Callers:
    """Several callers at once. `answered` are the names of the orders that were answered 201, by path."""

    def __init__(self, ports: Sequence[int], seed: int) -> None:
        self._ports = ports
        self._random = random.Random(seed)
        self.is_ending = False
        self.answered: dict[str, set[str]] = {"orders": set(), "direct": set()}
        self.refusals: list[str] = []
        """Answers that no order may get."""

    def count(self) -> int:
        return len(self.answered["orders"])

    async def run(self, callers: int) -> None:
        """Until `is_ending`. What was begun is answered first."""
        async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
            await asyncio.gather(
                *(self._call(session, "direct" if number == 0 else "orders") for number in range(callers))
            )

    async def _call(self, session: aiohttp.ClientSession, path: str) -> None:
        while not self.is_ending:
            name, customer = str(uuid.uuid4()), f"c{self._random.randrange(CUSTOMERS)}"
            twins = 2 if path == "orders" and self._random.random() < 0.2 else 1
            await asyncio.gather(*(self._place(session, path, customer, name) for _ in range(twins)))
            self.answered[path].add(name)

    async def _place(self, session: aiohttp.ClientSession, path: str, customer: str, name: str) -> None:
        while True:
            url = f"http://127.0.0.1:{self._random.choice(self._ports)}/{path}/{customer}"
            try:
                async with session.post(url, headers={"Idempotency-Key": name}) as reply:
                    text = await reply.text()
                    if reply.status == 201:
                        return
                    if reply.status not in (409, 500, 502, 503) or (reply.status == 500 and path == "orders"):
                        self.refusals.append(f"{path}: {reply.status} {text}")
                        return
            except (TimeoutError, aiohttp.ClientError):
                pass
            await asyncio.sleep(REST_S * self._random.uniform(0.5, 2))
