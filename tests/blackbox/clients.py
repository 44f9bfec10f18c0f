"""Clients: each retries its operation, with its key, on any server, until it is told how it ended."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from blackbox.deployment import CONTROL

TIMEOUT_S = 1.5
TRIES_MAX = 60
BODY, OTHER_BODY = "amount=10", "amount=99"
OF_THE_MOMENT = ("date", "server", "connection", "idempotent-replayed")
NOT_STORED = ("idempotency-stored", "false")


@dataclass(frozen=True)
class Reply:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def success(self) -> bool:
        return self.status == 201

    @property
    def marked(self) -> bool:
        """The server says that it could not store this answer."""
        return NOT_STORED in self.headers

    @property
    def said(self) -> str:
        """The status, and the kind of problem: `409 in-progress`."""
        kind = self.body.partition(b'"type":')[2].partition(b"#")[2].partition(b'"')[0].decode()
        return f"{self.status} {kind}".strip()

    @property
    def lasting(self) -> tuple[object, ...]:
        """What must be the same in every answer for a key."""
        kept = [header for header in self.headers if header[0] not in OF_THE_MOMENT and header != NOT_STORED]
        return self.status, tuple(kept), self.body


@dataclass(frozen=True)
class Operation:
    arm: str
    key: str
    action: str = "pay"


@dataclass
class Told:
    """All that clients were told about one key."""

    successes: list[Reply] = field(default_factory=list)
    others: list[Reply] = field(default_factory=list)
    """Answers to another request under the same key."""


class Clients:
    """Everything they asked and heard. `ports` are where the servers can be reached."""

    def __init__(self, ports: Sequence[int], arms: Sequence[str], seed: int) -> None:
        self.told: dict[Operation, Told] = defaultdict(Told)
        self.said: dict[str, Counter[str]] = defaultdict(Counter)
        """By arm: how often each answer was given, and how often none."""
        self.ended = False
        self._ports = ports
        self._random = random.Random(seed)
        self._protected = [arm for arm in arms if arm != CONTROL]
        self._count = 0

    @property
    def answered(self) -> int:
        """Requests on protected arms that got an answer."""
        return sum(sum(self.said[arm].values()) - self.said[arm]["no answer"] for arm in self._protected)

    @property
    def protected(self) -> list[Operation]:
        return [operation for operation in self.told if operation.arm != CONTROL]

    async def run(self) -> None:
        """One client: operation after operation, until the end is called."""
        while not self.ended:
            operation = self._choose()
            at_once = self._random.choice((1, 1, 1, 2, 3))
            if operation.arm == CONTROL:  # its duplicates must come from retries, nobody asks for one
                await self.complete(operation)
                continue
            await asyncio.gather(*(self.complete(operation) for _ in range(at_once)))
            for _ in range(self._random.randrange(6)):
                await self.ask(operation, BODY)
            if self.told[operation].successes and self._random.random() < 0.2:  # else it might be the first
                await self.ask(operation, OTHER_BODY)

    def _choose(self) -> Operation:
        if self.told and self._random.random() < 0.15:
            known = self._random.choice(list(self.told))
            if known.arm != CONTROL:
                return known
        self._count += 1
        arm = CONTROL if self._random.random() < 0.08 else self._random.choice(self._protected)
        action = "slow" if arm != CONTROL and self._random.random() < 0.01 else "pay"
        return Operation(arm, f"key-{self._count}", action)

    async def complete(self, operation: Operation) -> Reply | None:
        """Retry until the operation has ended one way or the other, or patience has."""
        for _ in range(TRIES_MAX):
            reply = await self.ask(operation, BODY)
            if reply is not None and (reply.success or reply.said == "409 outcome-unknown"):
                return reply
            if self.ended:
                return None
            await asyncio.sleep(self._random.uniform(0.02, 0.2))
        return None

    async def ask(self, operation: Operation, body: str) -> Reply | None:
        """One request. None when there was no whole answer in time: it may have happened."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                reply = await self._exchange(self._random.choice(self._ports), operation, body.encode())
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            self.said[operation.arm]["no answer"] += 1
            return None
        self.said[operation.arm][reply.said] += 1
        told = self.told[operation]
        if body == OTHER_BODY:
            told.others.append(reply)
        elif reply.success:
            told.successes.append(reply)
        return reply

    async def _exchange(self, port: int, operation: Operation, body: bytes) -> Reply:
        head = f"POST /{operation.arm}/{operation.action} HTTP/1.1\r\nIdempotency-Key: {operation.key}\r\n"
        return await exchange(port, head, body)


async def exchange(port: int, head: str, body: bytes = b"") -> Reply:
    """One request on a connection of its own. `head` has no end yet. Cancelling leaves, without a goodbye."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        more = f"Host: box\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write((head + more).encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines[1:] if line)
        headers = tuple((name.lower(), value.strip()) for name, _, value in pairs)
        size = int(dict(headers).get("content-length", 0))
        return Reply(int(lines[0].split()[1]), headers, await reader.readexactly(size))
    except IndexError:
        raise ValueError("not an answer") from None
    finally:
        with suppress(OSError):
            writer.transport.abort()
