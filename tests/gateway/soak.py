"""Requests through a gateway whose workers are killed all the time.

`PYTHONPATH=tests python -m gateway.soak [REQUESTS]`, from the root of the repository.

Callers repeat every request until they get a final answer, as callers should. In the end no operation took effect
twice, no key is stuck, and every answer is still the first one.
"""

import asyncio
import random
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from gateway.gatewaying import GatewayServer
from semel import open_store
from semel.store import Inspectable
from servers.process import Server

RULES = """
[policy]
lease = "2s"

[[rules]]
match = "/again/"
lease = "2s"
guarantee = "at-least-once"
"""
PATHS = ("/pay", "/again/pay")
FINAL_S = 60


class LedgerServer(Server):
    def prepare(self) -> None:
        """Nothing is needed."""

    def command(self) -> Sequence[str | Path]:
        here = str(Path(__file__).parent)
        serve = [sys.executable, "-m", "uvicorn", "--app-dir", here, "--lifespan", "off", "--log-level", "error"]
        return [*serve, "--no-access-log", "--port", str(self.port), "ledger:app"]

    def probe(self) -> None:
        socket.create_connection(("127.0.0.1", self.port), timeout=1).close()


@dataclass
class Soak:
    """The callers' side: what was asked, and what each operation was told in the end."""

    gateway: GatewayServer
    wanted: int
    kill_every_s: float
    kills_min: int
    requests: int = 0
    kills: int = 0
    told: dict[str, str] = field(default_factory=dict)
    statuses: Counter[str] = field(default_factory=Counter)

    @property
    def going_on(self) -> bool:
        return self.requests < self.wanted or self.kills < self.kills_min

    async def run(self, callers: int) -> None:
        async with aiohttp.ClientSession() as session:
            killing = asyncio.create_task(self._kill())
            await asyncio.gather(*(self._call(session, number) for number in range(callers)))
            killing.cancel()

    async def _kill(self) -> None:
        while True:
            await asyncio.sleep(self.kill_every_s)
            workers = self.gateway.workers()
            if workers:
                random.choice(workers).send_signal(signal.SIGKILL)
                self.kills += 1

    async def _call(self, session: aiohttp.ClientSession, caller: int) -> None:
        number = 0
        while self.going_on:
            number += 1
            name = f"{PATHS[number % 2]} {caller}-{number}"
            self.told[name] = await self.final(session, name)
            if number % 4 == 0 and self.told[name] != "unknown":
                assert await self.final(session, name) == self.told[name], "another answer for the same key"

    async def final(self, session: aiohttp.ClientSession, name: str) -> str:
        """Repeat until there is a final answer. It must come: no key may stay in progress."""
        deadline = time.monotonic() + FINAL_S
        while True:
            assert time.monotonic() < deadline, f"{name} is stuck"
            self.requests += 1
            kind, text = await self._ask(session, name)
            self.statuses[kind] += 1
            if kind in ("answered", "replayed"):
                return text
            if kind == "409 outcome-unknown":
                return "unknown"
            await asyncio.sleep(0.05)

    async def _ask(self, session: aiohttp.ClientSession, name: str) -> tuple[str, str]:
        url = f"http://127.0.0.1:{self.gateway.port}{name.split()[0]}"
        try:
            async with session.post(url, data=name.encode(), headers={"Idempotency-Key": name.split()[1]}) as answer:
                text = await answer.text()
                if answer.status == 201:
                    return "replayed" if "idempotent-replayed" in answer.headers else "answered", text
                return f"{answer.status} {text.partition('#')[2].partition(chr(34))[0]}", text
        except (aiohttp.ClientError, OSError):
            return "connection lost", ""


def check(soak: Soak, arrived: dict[str, list[str]], store: Inspectable) -> dict[str, object]:
    """The promises, counted. What was told as an answer took effect once; what is unknown at most once."""
    pay, again = ({name: keys for name, keys in arrived.items() if name.startswith(path + " ")} for path in PATHS)
    doubled = [name for name, keys in pay.items() if len(keys) > 1]
    other_keys = [name for name, keys in again.items() if len(set(keys)) > 1]
    lost = [name for name, told in soak.told.items() if told != "unknown" and name not in arrived]
    unknown = sum(told == "unknown" for told in soak.told.values())
    counts = store.counts()
    assert not doubled, f"took effect twice: {doubled[:5]}"
    assert not other_keys, f"came with another downstream key: {other_keys[:5]}"
    assert not lost, f"answered without an effect: {lost[:5]}"
    assert not any(soak.told[name] == "unknown" for name in soak.told if name.startswith(PATHS[1]))
    assert (counts.in_progress, counts.unknown) == (0, unknown), f"stuck: {counts}"
    return {
        "requests": soak.requests,
        "operations": len(soak.told),
        "kills": soak.kills,
        "sent again, at least once": sum(len(keys) > 1 for keys in again.values()),
        "unknown, at most once": unknown,
        **dict(sorted(soak.statuses.items())),
    }


def main(wanted: int, *, callers: int = 32, kill_every_s: float = 1.0, kills_min: int = 3) -> dict[str, object]:
    with LedgerServer() as upstream, GatewayServer(upstream.port, rules=RULES, workers=2) as gateway:
        soak = Soak(gateway, wanted, kill_every_s, kills_min)

        async def run() -> dict[str, list[str]]:
            await soak.run(callers)
            async with aiohttp.ClientSession() as session:
                for name in random.sample(sorted(soak.told), min(500, len(soak.told))):
                    assert await soak.final(session, name) == soak.told[name], f"{name} has another answer now"
                async with session.get(f"http://127.0.0.1:{upstream.port}/ledger") as answer:
                    ledger: dict[str, list[str]] = await answer.json(content_type=None)
                    return ledger

        arrived = asyncio.run(run())
        store = open_store(f"sqlite:///{gateway.folder}/semel.db")
        assert isinstance(store, Inspectable)
        try:
            return check(soak, arrived, store)
        finally:
            store.close()


if __name__ == "__main__":
    started_s = time.monotonic()
    figures = main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000, kills_min=30)
    print(*(f"{name:<28}{value}" for name, value in figures.items()), sep="\n")
    print(f"{'seconds':<28}{time.monotonic() - started_s:.0f}")
