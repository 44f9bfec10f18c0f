"""A load generator for machines without wrk, and for rounds of less than a second.

`python -m benchmarks.generator PORT CONNECTIONS SECONDS MODE PATH PREFIX COUNT` says the same as `keys.lua` does. It
needs several times the processor time of wrk, so its ratios are flatter.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from itertools import count
from typing import cast

import uvloop

BODY = b'{"amount": 10}'
PATIENCE_S = 30.0


class Load:
    def __init__(self, mode: str, path: str, prefix: str, known: int) -> None:
        self.mode, self.prefix, self.known = mode, prefix, known
        self.head = (
            f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n"
        ).encode()
        self.numbers = count(1)
        self.spent_us: list[float] = []
        self.refused = self.broken = 0

    def request(self) -> bytes:
        if self.mode == "none":
            return self.head + b"\r\n" + BODY
        number = next(self.numbers)
        number = {"new": number, "known": number % self.known, "same": 0}[self.mode]
        return self.head + b"Idempotency-Key: %s-%012x\r\n\r\n" % (self.prefix.encode(), number) + BODY


class Caller(asyncio.Protocol):
    """One connection: the next request goes out when the answer of the last one is complete."""

    def __init__(self, load: Load, end: float) -> None:
        self.load, self.end = load, end
        self.over = asyncio.get_running_loop().create_future()
        self.got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self._send()

    def data_received(self, data: bytes) -> None:
        self.got += data
        head, found, body = self.got.partition(b"\r\n\r\n")
        if not found or not _whole(head.lower(), body):
            return
        self.load.spent_us.append((time.perf_counter() - self.sent) * 1e6)
        self.load.refused += head[9:12] >= b"400"
        self.got = b""
        if time.perf_counter() < self.end:
            self._send()
        else:
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.load.broken += time.perf_counter() < self.end
        self.over.set_result(None)

    def _send(self) -> None:
        self.sent = time.perf_counter()
        self.transport.write(self.load.request())


def _whole(head: bytes, body: bytes) -> bool:
    if b"transfer-encoding: chunked" in head:
        return body.endswith(b"0\r\n\r\n")
    _, _, rest = head.partition(b"content-length:")
    return len(body) >= int(rest.split(b"\r\n", 1)[0] or 0)


async def run(port: int, connections: int, seconds: float, load: Load) -> dict[str, float]:
    loop, started = asyncio.get_running_loop(), time.perf_counter()
    end = started + seconds
    callers = [Caller(load, end) for _ in range(connections)]
    waiting = iter(callers)
    for _ in callers:
        await loop.create_connection(lambda: next(waiting), "127.0.0.1", port)
    await asyncio.wait_for(asyncio.gather(*(caller.over for caller in callers)), seconds + PATIENCE_S)
    spent = sorted(load.spent_us)
    return {
        "requests": len(spent),
        "seconds": time.perf_counter() - started,
        "refused": load.refused,
        "broken": load.broken,
        "p50_us": spent[len(spent) // 2],
        "p99_us": spent[min(len(spent) - 1, len(spent) * 99 // 100)],
    }


def main(port: str, connections: str, seconds: str, mode: str, path: str, prefix: str, known: str) -> None:
    load = Load(mode, path, prefix, int(known))
    print(json.dumps(uvloop.run(run(int(port), int(connections), float(seconds), load))))


if __name__ == "__main__":
    main(*sys.argv[1:])
