"""How long the gateway waits for a caller: for a head, for a body, for the next request, and until an answer is taken.

A head has one bound from its first byte to its end. A body has a bound that grows with what has arrived, so that a
large upload may take its time and a dripping one may not. Time in which the gateway itself does not read is not
counted. The kernel limits the sending of answers (TCP_USER_TIMEOUT): it ends a connection if the caller reads nothing.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from semel.gateway.connections import CallerConnections
from semel.gateway.http1 import MessageRefused, Part, StrictProtocol
from semel.gateway.settings import GatewaySettings

FULL = "There are {} connections already. Nothing was run: try again later."
GIVEN_WAY = "The gateway is full, and this request has not arrived in whole: send it again later."
LATE_HEAD = "The head of the request did not arrive within {:g} s."
LATE_BODY = "The body of the request came too slowly: {:g} s are allowed, and one more for every {} bytes."


class MeasuredFlow(FlowControl):
    """Counts the time in which nothing is read from the caller."""

    def __init__(self, transport: asyncio.Transport, protocol: TimedProtocol) -> None:
        super().__init__(transport)
        self._protocol = protocol
        self._paused_at = 0.0
        self._paused_s = 0.0

    def paused_s(self, now: float) -> float:
        return self._paused_s + (now - self._paused_at if self.read_paused else 0)

    def pause_reading(self) -> None:
        if not self.read_paused:
            self._paused_at = self._protocol.loop.time()
            super().pause_reading()
            self._protocol.stop_waiting()

    def resume_reading(self) -> None:
        if self.read_paused:
            now = self._protocol.loop.time()
            self._paused_s += now - self._paused_at
            super().resume_reading()
            self._protocol.wait_again(now)


class TimedProtocol(StrictProtocol):
    """Answers 408 and closes when a request does not arrive in time, and 503 when there are too many connections."""

    flow: MeasuredFlow

    def __init__(self, settings: GatewaySettings, connections: CallerConnections, **given: Any) -> None:
        super().__init__(**given)
        self.timeout_keep_alive = settings.idle_timeout_s  # type: ignore[assignment]  # any number of seconds will do
        self._settings = settings
        self._callers = connections
        self._awaited = Part.NOTHING
        """The part that the timer waits for."""
        self._timer: asyncio.TimerHandle | None = None
        self._body_began = 0.0
        self._body_size = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = MeasuredFlow(transport, self)  # pyright: ignore[reportIncompatibleVariableOverride]
        most = self._callers.callers_max
        if len(self.connections) > most and not self._callers.make_room(self.loop.time()):
            self._refuse(MessageRefused(FULL.format(most), 503))
            return
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
            sock: socket.socket = transport.get_extra_info("socket")
            sock.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(self._settings.send_timeout_s * 1000))
            )
        self._callers.await_head(self)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._await(Part.NOTHING)
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.transport.is_closing():
            self._await(self._part_awaited())

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        now = self.loop.time()
        self._body_began, self._body_size = now - self.flow.paused_s(now), 0
        if self._callers.retiring and self._part is Part.BODY:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._body_size += len(body)
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() or self._is_serving():
            return
        if self._part is Part.NOTHING:  # idle, for which the server has set its timer
            self._callers.await_head(self)
        else:
            self._unset_keepalive_if_required()
            self._await(self._part)

    def give_way(self) -> None:
        """Make room for another connection."""
        if self._awaited is Part.NOTHING:
            self.connections.discard(self)
            self.transport.close()  # idle: an answer would be taken for that to the next request
        else:
            self._refuse(MessageRefused(GIVEN_WAY, 503))

    def retire(self) -> None:
        """Say `Connection: close` in the answer that is due. An idle connection stays, for a request on its way."""
        if self._is_serving() and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """Close, if it is idle. A head that has begun has its own bound, and its answer is the last one."""
        if self._awaited is not Part.HEAD:
            super().shutdown()

    def stop_waiting(self) -> None:
        """The gateway has stopped reading, so the caller is not late."""
        self._callers.forget(self)

    def wait_again(self, now: float) -> None:
        if self._awaited is Part.BODY:
            self._callers.await_body(self, now)

    def _refuse(self, refused: MessageRefused) -> None:
        super()._refuse(refused)
        self.connections.discard(self)  # it is closing, so the server no longer counts it

    def _is_serving(self) -> bool:
        latest: RequestResponseCycle | None = self.cycle
        return latest is not None and not latest.response_complete

    def _part_awaited(self) -> Part:
        """The part that the caller has to send next.

        It need not send another head while it waits for an answer. Empty lines before a head are part of the head.
        """
        if self._part is Part.BODY:
            return Part.BODY
        return Part.NOTHING if self._is_serving() else Part.HEAD

    def _await(self, part: Part) -> None:
        now = self.loop.time()
        if part is Part.NOTHING:
            self._callers.forget(self)
        elif part is Part.BODY and not self.flow.read_paused:
            self._callers.await_body(self, now)
        if part is self._awaited:
            return
        self._awaited = part
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if part is Part.HEAD:
            self._callers.await_head(self)
            self._timer = self.loop.call_at(now + self._settings.head_timeout_s, self._expire)
        elif part is Part.BODY:
            self._timer = self.loop.call_at(now + self._settings.body_timeout_s, self._expire)

    def _expire(self) -> None:
        settings, now = self._settings, self.loop.time()
        if self.transport.is_closing():
            return
        if self._awaited is Part.HEAD:
            self._refuse(MessageRefused(LATE_HEAD.format(settings.head_timeout_s), 408))
            return
        earned = settings.body_timeout_s + self._body_size / settings.body_rate + self.flow.paused_s(now)
        if (left := self._body_began + earned - now) > 0:
            self._timer = self.loop.call_later(left, self._expire)
        elif self.flow.read_paused:  # the next part may be here already
            self._timer = self.loop.call_later(settings.body_timeout_s, self._expire)
        else:
            self._refuse(MessageRefused(LATE_BODY.format(settings.body_timeout_s, settings.body_rate), 408))
