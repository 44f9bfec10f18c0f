"""The middleware in a synchronous handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from semel.core.http import Response
from semel.django.exchange import ATTRIBUTE, DjangoExchange
from semel.django.front import Front, front
from semel.django.marks import authenticate
from semel.django.middleware import Middleware, exchange_of, unprotected
from semel.django.streams import collect
from semel.django.wire import django_response, root_of
from semel.http.marks import see
from semel.http.monitors import Monitored


class SyncMiddleware(Middleware[Front]):
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        super().__init__(front(), get_response)

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        published = self._answer_published(request)
        if published is not None:
            return django_response(published)
        self.prepare(request)
        try:
            return self._serve(request)
        finally:
            see(False)  # the thread serves further requests
            # Only the thread that ran the view ends its transaction.
            exchange = exchange_of(request)
            if exchange is not None and exchange.transaction is not None:
                exchange.transaction.end()

    def _serve(self, request: HttpRequest) -> HttpResponseBase:
        try:
            response: HttpResponseBase = self.get_response(request)
        except BaseException as error:
            if (exchange := exchange_of(request)) is not None:
                self.front.interrupt(exchange, error)
            raise
        exchange = exchange_of(request)
        return unprotected(response) if exchange is None else self._finish(exchange, response)

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponse | None:
        exchange = self.admit(request, view)
        if not isinstance(exchange, DjangoExchange):
            return exchange
        setattr(request, ATTRIBUTE, exchange)
        return None if exchange.asked_at else self.front.begin(exchange)

    def _finish(self, exchange: DjangoExchange, response: HttpResponseBase) -> HttpResponseBase:
        body: bytes | None = b""
        if exchange.running:
            try:
                response, body = collect(response, exchange.policy.result_max, exchange.held_max)
            except Exception as error:
                response = self.failed(exchange, error)
            except BaseException as error:
                self.front.interrupt(exchange, error)
                raise
        return self.front.finish(exchange, response, body)

    def _answer_published(self, request: HttpRequest) -> Response | None:
        monitored = self.published(request)
        if not isinstance(monitored, Monitored):
            return monitored
        if not monitored.asked_at:
            tenant = self.front.tenant(request)
        elif authenticate(request, monitored.asked_at):
            tenant = self.front.authenticated(request)
        else:
            return None
        plan = self.gate.monitor(monitored, tenant, root_of())
        looking = self.front.new_transaction()
        if looking is None:
            return self.front.run(plan)
        try:
            return self.front.run(plan, self.front.host.asker_on(looking))
        finally:
            looking.end()
