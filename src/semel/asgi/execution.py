"""The work of one keyed request: its answer is collected, settled, and only then sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from semel.admission import Keyed
from semel.answers import NO_ANSWER, Ended
from semel.asgi.types import Message
from semel.core import http
from semel.core.decisions import Settlement, Superseded
from semel.core.http import Response
from semel.core.records import Lease
from semel.core.tables import Ending
from semel.drive import adrive
from semel.running import Operation

if TYPE_CHECKING:
    from semel.asgi.exchange import Exchange


class Execution:
    """The work of one exchange: collects the answer, settles the lease, and only then lets the answer go."""

    def __init__(self, exchange: Exchange, keyed: Keyed, lease: Lease) -> None:
        self.exchange = exchange
        self.keyed = keyed
        self.answers = exchange.answers
        self.lease = lease
        self.kept = exchange.front.keeper.keep(lease, lease_ms=exchange.policy.lease_ms)
        self.operation = Operation(lease, self.kept)
        self.ended = False
        self._settled = False
        self._status = 0
        self._headers: http.Headers = ()
        self._chunks: list[bytes] = []
        self._size = 0
        self._streaming = False
        self._pending: Ended | None = None

    async def send(self, message: Message) -> None:
        """What the application sends. The first message that says so ends the answer; nothing changes it later."""
        more = message["type"] != "http.response.body" or message.get("more_body", False)
        try:
            if self._streaming:
                await self._stream(message)
            elif not self.ended and self._pending is None:
                await self._collect(message, more)
        finally:
            if not more:
                self.exchange.app_answered.set()

    async def _collect(self, message: Message, more: bool) -> None:
        if message["type"] == "http.response.start":
            if self._status:
                raise RuntimeError("the application started its answer twice")
            self._status = message["status"]
            self._headers = tuple((bytes(name), bytes(value)) for name, value in message.get("headers", ()))
        elif message["type"] == "http.response.body":
            if not self._status:
                raise RuntimeError("the application sent a body before the start of its answer")
            self._chunks.append(message.get("body", b""))
            self._size += len(self._chunks[-1])
            if self._size > self.exchange.policy.result_max:
                await self._overflow(more)
            elif not more:
                await self._whole()

    async def _whole(self) -> None:
        response = Response(self._status, self._headers, b"".join(self._chunks))
        done = self._reported() or self.answers.answered(
            response, self.exchange.policy, nothing_done=self.operation.nothing_was_done
        )
        if response.status < 500:
            await self.finish(done)
        else:  # frameworks answer 500 for an exception and then let it go on: it comes before the next step of the loop
            self._pending = done
            self.exchange.front.spawn(self.finish())

    def _reported(self) -> Ended | None:
        """The work raised, its framework has reported that, and is answering for it with a status of 500 or more."""
        error = self.operation.reported
        if error is None or self._status < 500 or self.operation.nothing_was_done:
            return None
        if isinstance(error, tuple(self.exchange.policy.release_exceptions)):
            return Ended(Ending.NOTHING_DONE, None, Response(self._status, self._headers, b"".join(self._chunks)))
        return self.answers.declared(error) or self.answers.raised()

    async def finish(self, done: Ended | None = None) -> None:
        """Settle with `done`, or with the answer that is pending, then answer.

        The first call decides, and every call waits for it. Cancelling whoever waits does not stop it.
        """
        exchange = self.exchange
        done, self._pending = done or self._pending, None
        if done is None or self.ended:
            while exchange.finishing is not None and not exchange.finishing.done():
                await asyncio.shield(exchange.finishing)
            return
        self.ended = True
        finishing = exchange.finishing = asyncio.get_running_loop().create_future()
        try:
            await self._finish(done)
        except asyncio.CancelledError:
            if not self._settled:  # the store's reply was lost: the same owner asks again, and is answered alike
                exchange.finishing = exchange.front.spawn(self._finish(done))
            raise
        finally:
            finishing.set_result(None)

    async def _finish(self, done: Ended) -> None:
        settlement = await self.settle(done)
        await self.exchange.respond(self.answers.settled(settlement, done))

    async def settle(self, done: Ended) -> Settlement:
        exchange = self.exchange
        self.ended, self._pending = True, None
        exchange.front.keeper.stop(self.kept)
        settlement = await adrive(self.keyed.settle(self.lease, done), exchange.front.perform)
        self._settled = True
        return settlement

    async def leave(self, ending: Ending) -> None:
        """Settle without an answer: the framework, or nobody, gives one. If an answer was given already, it stands."""
        if not self.ended:
            await self.settle(Ended(ending, None, NO_ANSWER))
        elif ending is not Ending.INTERRUPTED:
            await self.finish()

    async def _overflow(self, more: bool) -> None:
        """Too large to keep: a tombstone is stored first, then the answer streams on, whole."""
        exchange = self.exchange
        response = Response(self._status, self._headers, b"")
        done = self.answers.too_large(response, exchange.policy, nothing_done=self.operation.nothing_was_done)
        settlement: Settlement = await asyncio.shield(exchange.front.spawn(self.settle(done)))
        final = self.answers.settled(settlement, done)
        body = b"".join(self._chunks)
        self._chunks.clear()
        if isinstance(settlement, Superseded):  # the store's answer goes out, this one nowhere
            await exchange.respond(final)
        elif not exchange.answering:
            exchange.answering = self._streaming = True
            exchange.app_answered.set()  # nothing depends on the rest: an endless stream may end when its caller leaves
            await exchange.wire_send(
                {"type": "http.response.start", "status": final.status, "headers": list(final.headers)}
            )
            await self._stream({"type": "http.response.body", "body": body, "more_body": more})

    async def _stream(self, message: Message) -> None:
        if not self.exchange.caller_left:
            await self.exchange.wire_send(message)
