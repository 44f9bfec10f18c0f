"""The middleware in an asynchronous handler. Begun work goes on when the caller leaves and Django cancels it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from asgiref.sync import markcoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from semel.core.http import Response
from semel.core.prefer import respond_async
from semel.django.exchange import ATTRIBUTE, DjangoExchange
from semel.django.front import AsyncFront, async_front
from semel.django.marks import authenticate
from semel.django.middleware import Middleware, exchange_of, unprotected
from semel.django.streams import acollect
from semel.django.wire import django_response, headers_of, root_of
from semel.http.marks import SAFE
from semel.http.monitors import Monitored
from semel.runtime.operation import adopt
from semel.runtime.tasks import report

BEGUN = "_semel_begun"


class AsyncMiddleware(Middleware[AsyncFront]):
    def __init__(self, get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]]) -> None:
        super().__init__(async_front(), get_response)
        markcoroutinefunction(self)

    async def __call__(self, request: HttpRequest) -> HttpResponseBase:
        published = await self._answer_published(request)
        if published is not None:
            return django_response(published)
        self.prepare(request)
        if request.method in SAFE:
            response: HttpResponseBase = await self.get_response(request)
            return response
        return await self._serve_in_task(request)

    async def _serve_in_task(self, request: HttpRequest) -> HttpResponseBase:
        """Serve in a task of its own, then take over its changes of context variables, as if there were no task."""
        context = contextvars.copy_context()
        setattr(request, BEGUN, asyncio.Event())
        work = self.front.host.tasks.spawn(self._serve(request), context)
        try:
            return await self._accept_after(request, work) or await asyncio.shield(work)
        except asyncio.CancelledError:
            exchange = exchange_of(request)
            if exchange is None:  # the request is not protected: its view is cancelled, as always
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
            else:
                exchange.caller_left = True
            raise
        finally:
            if work.done():
                adopt(context)
            else:
                work.add_done_callback(report)

    async def _accept_after(self, request: HttpRequest, work: asyncio.Task[HttpResponseBase]) -> HttpResponse | None:
        """202, when the work takes longer than the caller prefers to wait. The work goes on."""
        wanted = "HTTP_PREFER" in request.META and self.gate.secret is not None
        wait_s = respond_async(headers_of(request)) if wanted else None
        if wait_s is None:
            return None
        begun = asyncio.ensure_future(getattr(request, BEGUN).wait())
        try:
            await asyncio.wait({begun, work}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({work}, timeout=wait_s)
        finally:
            begun.cancel()
        exchange = exchange_of(request)
        if exchange is None or exchange.keyed is None or not exchange.running or not self.front.may_detach(work):
            return None
        return django_response(exchange.keyed.accepted())

    async def _serve(self, request: HttpRequest) -> HttpResponseBase:
        try:
            return await self._serve_within(request)
        finally:
            exchange = exchange_of(request)
            if exchange is not None and exchange.transaction is not None:
                await exchange.transaction.end()

    async def _serve_within(self, request: HttpRequest) -> HttpResponseBase:
        try:
            response: HttpResponseBase = await self.get_response(request)
        except BaseException as error:
            if (exchange := exchange_of(request)) is not None:
                await self.front.interrupt(exchange, error)
            raise
        exchange = exchange_of(request)
        return unprotected(response) if exchange is None else await self._finish(exchange, response)

    async def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponse | None:
        exchange = self.admit(request, view)
        if not isinstance(exchange, DjangoExchange):
            return exchange
        setattr(request, ATTRIBUTE, exchange)
        begun: asyncio.Event = getattr(request, BEGUN)
        exchange.tell_begun = partial(asyncio.get_running_loop().call_soon_threadsafe, begun.set)
        return None if exchange.asked_at else await self.front.begin(exchange)

    async def _finish(self, exchange: DjangoExchange, response: HttpResponseBase) -> HttpResponseBase:
        body: bytes | None = b""
        if exchange.running:
            try:
                response, body = await acollect(response, exchange.policy.result_max, exchange.held_max)
            except Exception as error:
                response = self.failed(exchange, error)
            except BaseException as error:
                await self.front.interrupt(exchange, error)
                raise
        return await self.front.finish(exchange, response, body)

    async def _answer_published(self, request: HttpRequest) -> Response | None:
        monitored = self.published(request)
        if not isinstance(monitored, Monitored):
            return monitored
        if not monitored.asked_at:
            tenant = await self.front.tenant(request)
        elif await sync_to_async(authenticate)(request, monitored.asked_at):
            tenant = await self.front.authenticated(request)
        else:
            return None
        plan = self.gate.monitor(monitored, tenant, root_of())
        looking = self.front.new_transaction()
        if looking is None:
            return await self.front.run(plan)
        try:
            return await self.front.run(plan, self.front.host.asker_on(looking))
        finally:
            await looking.end()
