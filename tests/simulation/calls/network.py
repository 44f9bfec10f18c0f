"""The way between clients and servers: it loses, delays, repeats and reorders, and its proxies answer by themselves."""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from typing import TYPE_CHECKING

from semel.core.call_values import SendFailure, SendRequest
from semel.core.http import Response
from semel.core.retries import AttemptEnd, CallAnswer
from simulation.calls.scenario import TIMEOUT_MS, WayFault
from simulation.process import Request
from simulation.scenario import Operation
from simulation.store import DELAYS_MS

if TYPE_CHECKING:
    from simulation.calls.process import ProgramRun, ServerProcess
    from simulation.calls.world import CallWorld

RETRY_AFTER = ("0", "1", "30", "1000000000", "soon", "date")


class Exchange:
    """One request as its sender sees it: one answer or failure, however often the request arrives."""

    stops = True

    def __init__(self, network: Network, run: ProgramRun, effect: SendRequest, back_ms: int) -> None:
        self.network, self.run, self.effect = network, run, effect
        self.key = dict(effect.headers).get("Idempotency-Key", run.call.key)
        self.reply: asyncio.Future[CallAnswer | SendFailure] = run.process.loop.create_future()
        self.back_ms = back_ms
        self.dropped = 0
        """How many answers of the server get lost."""
        self.crash_ms: int | None = None
        """When the server dies, after the request arrived."""
        self.requests: list[Request] = []

    def answered(self, request: Request, response: Response) -> None:
        """The server has answered."""
        if self.dropped:
            self.dropped -= 1
            return
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers)
        answer = CallAnswer(response.status, headers, response.body)
        self.network.world.time.after_ms(self.back_ms, self.end, answer)

    def end(self, reply: CallAnswer | SendFailure) -> None:
        """The sender gets this, unless it has something already or is dead."""
        if self.run.process.loop.dead or self.reply.done():
            self.network.world.reached.add("answer to nobody")
            return
        self.run.process.world.note(self.run.name, "gets {}", reply)
        self.reply.set_result(reply)

    def give_up(self) -> None:
        """The sender waits no longer. The server may hear of it."""
        if not self.reply.done():
            self.end(SendFailure(AttemptEnd.LOST, "no answer in time"))
            if self.network.world.time.rng.random() < 0.5:
                for request in self.requests:
                    request.disconnect()


class Network:
    def __init__(self, world: CallWorld) -> None:
        self.world = world
        self._away_until_s = 0.0
        self._exchanges: list[Exchange] = []

    def heal(self) -> None:
        self._away_until_s = 0.0

    def send(
        self, run: ProgramRun, effect: SendRequest, fault: WayFault | None
    ) -> asyncio.Future[CallAnswer | SendFailure]:
        exchange = Exchange(self, run, effect, self._delay_ms())
        self._exchanges.append(exchange)
        after, go_ms = self.world.time.after_ms, self._delay_ms()
        after(TIMEOUT_MS, exchange.give_up)
        if self.world.time.now_s < self._away_until_s:
            self.world.reached.add("network away")
            after(go_ms, exchange.end, UNREACHED)
        elif fault is None:
            after(go_ms, self._arrive, exchange)
        else:
            self._strike(fault, exchange, go_ms)
        return exchange.reply

    def _strike(self, fault: WayFault, exchange: Exchange, go_ms: int) -> None:
        after, ms = self.world.time.after_ms, fault.ms
        match fault.kind:
            case "unreached":
                after(go_ms, exchange.end, UNREACHED)
            case "outage":
                self._away_until_s = self.world.time.now_s + ms / 1000
                after(go_ms, exchange.end, UNREACHED)
            case "lost":
                pass
            case "late":
                after(go_ms, exchange.end, LOST)
                after(go_ms + ms, self._arrive, exchange)
            case "reply-lost":
                exchange.dropped = 1
                after(go_ms, self._arrive, exchange)
                after(go_ms + ms, exchange.end, LOST)
            case "repeated":  # by a proxy that lost the first answer
                exchange.dropped = 1
                after(go_ms, self._arrive, exchange)
                after(go_ms + ms, self._arrive, exchange)
            case "duplicated":
                after(go_ms, self._arrive, exchange)
                after(go_ms + ms, self._arrive, exchange)
            case "slow-request":
                after(ms, self._arrive, exchange)
            case "slow-reply":
                exchange.back_ms = ms
                after(go_ms, self._arrive, exchange)
            case "server-crash":
                exchange.crash_ms = ms % 1_000
                after(go_ms, self._arrive, exchange)
            case "gateway" | "server-error":  # a proxy answers before the server does
                status = 500 if fault.kind == "server-error" else 502 if ms < 1_000 else 504
                after(go_ms, self._arrive, exchange)
                after(go_ms, exchange.end, CallAnswer(status))
            case "throttled":
                asked = RETRY_AFTER[ms % len(RETRY_AFTER)]
                asked = formatdate(self.world.date_ms() / 1000 + ms / 100) if asked == "date" else asked
                after(go_ms, exchange.end, CallAnswer(503 if ms < 1_000 else 429, (("Retry-After", asked),)))
            case "unauthorized":
                after(go_ms, exchange.end, CallAnswer(401))
            case "moved":
                after(go_ms, exchange.end, CallAnswer(307, (("Location", "https://elsewhere.example/"),)))
            case _:  # the client dies
                after(go_ms, self._arrive, exchange)

    def _arrive(self, exchange: Exchange) -> None:
        servers = [server for server in self.world.servers() if not server.loop.dead]
        if not servers:
            exchange.end(UNREACHED)
            return
        server = self.world.time.rng.choice(servers)
        planned = self.world.scenario.intents[exchange.run.ask.intent]
        operation = Operation("ann", "/pay", exchange.key, exchange.effect.body.decode(), planned.works)
        request = Request(server, exchange, operation, [])  # type: ignore[arg-type]  # who asks is told the answer
        exchange.requests.append(request)
        self.world.reached.update(["carried twice"] if len(exchange.requests) > 1 else [])
        self.world.note(exchange.run.name, "r{} arrives at {}", request.number, server.name)
        if exchange.crash_ms is not None:
            self.world.time.after_ms(exchange.crash_ms, server.crash, exchange.crash_ms + 10)

    def reset(self, server: ServerProcess) -> None:
        """It is dead, and its connections with it."""
        for exchange in self._exchanges:
            if not exchange.reply.done() and any(request.process is server for request in exchange.requests):
                self.world.time.after_ms(self._delay_ms(), exchange.end, LOST)

    def _delay_ms(self) -> int:
        return DELAYS_MS[int(self.world.time.rng.random() * len(DELAYS_MS))]


UNREACHED = SendFailure(AttemptEnd.UNREACHED, "connection refused")
LOST = SendFailure(AttemptEnd.LOST, "connection reset")
