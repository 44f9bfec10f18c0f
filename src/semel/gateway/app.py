"""The gateway as an ASGI application: the middleware around a forwarder, with a date in every answer."""

from __future__ import annotations

import uuid

from semel.asgi.types import Message, Receive, Scope, Send, send_response
from semel.core import http
from semel.errors import OutcomeUnknown
from semel.gateway.forwarder import Forwarder
from semel.gateway.headers import add_date
from semel.gateway.paths import CONTRADICTION, RuledMiddleware, read_path
from semel.gateway.reports import REPORT, Report
from semel.gateway.rules import Rules
from semel.gateway.settings import GatewaySettings
from semel.gateway.tenants import identify_by
from semel.gateway.upstream import CONNECTIONS_MAX
from semel.http.gate import Gate
from semel.runtime.listener import OnEvent, ignore, logged


class Gateway:
    """One worker's application. `apply` changes the rules for every request that comes after it."""

    def __init__(
        self,
        settings: GatewaySettings,
        rules: Rules,
        *,
        on_event: OnEvent = ignore,
        upstream_max: int = CONNECTIONS_MAX,
    ) -> None:
        self._secret, self._publish = settings.secret, settings.publish
        self._listener = logged(on_event)
        self._forwarder = Forwarder(settings, upstream_max)
        self._protected = RuledMiddleware(
            self._forwarder,
            store=settings.store,
            identify=lambda scope: None,
            publish=settings.publish,
            secret=settings.secret,
            on_event=on_event,
            quota_storage=settings.quota_storage,
        )
        self.apply(rules)

    def apply(self, rules: Rules) -> None:
        """Use these rules from now on. A running request keeps the rules that it began with."""
        gate = Gate(rules.policy, rules.rules, publish=self._publish, secret=self._secret, on_event=self._listener)
        self._protected = self._protected.under(gate, identify_by(rules.tenant, gate))
        self._forwarder.key_headers = rules.key_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._protected(scope, receive, self._close_upstream_last(send))
            return
        protected = self._protected  # for all of this request
        report = scope[REPORT] = Report(scope, protected.gate)

        async def send_dated(message: Message) -> None:
            report.see(message)
            if message["type"] == "http.response.start":
                message = {**message, "headers": add_date(message["headers"])}
            await send(message)

        read = read_path(scope, protected.gate)
        if read is None:
            await send_response(send_dated, CONTRADICTION)
            return
        try:
            await protected(read, receive, send_dated)
        except OutcomeUnknown as error:  # the request has no key; if its answer has begun, the server cuts it
            if not report.started:
                problem = http.problem("interrupted", uuid.uuid4().urn, detail=str(error), base=self._publish)
                await send_response(send_dated, problem)
        finally:
            report.end()

    def _close_upstream_last(self, send: Send) -> Send:
        """Close the connections to the upstream last, after running work has ended."""

        async def close_and_send(message: Message) -> None:
            if message["type"].startswith("lifespan.shutdown."):
                await self._forwarder.upstream.close()
            await send(message)

        return close_and_send
