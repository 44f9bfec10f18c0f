"""The front: the gate, the store and the keeper of leases that all instances of the middleware share in a process.

There is one for threads and one for tasks. Django makes a new middleware for every handler (each test client has one),
so the middleware must not own a store.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from asgiref.sync import async_to_sync, sync_to_async
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import got_request_exception, setting_changed
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.log import log_response

from semel.core.effects import Plan
from semel.django import config
from semel.django.config import Config
from semel.django.exchange import ATTRIBUTE, DjangoExchange
from semel.django.wire import encoded
from semel.errors import SemelError
from semel.http.callers import DJANGO_ORDER, explain
from semel.http.gate import Gate
from semel.http.quota import AsyncQuotas, Quotas, counting
from semel.runtime.drive import adrive, drive
from semel.runtime.host import Asker, AsyncAsker, AsyncHost, Host
from semel.runtime.listener import logged
from semel.runtime.readiness import async_look_at, look_at
from semel.stores.open import open_async_store, open_store

T = TypeVar("T")
logger = logging.getLogger("semel")


class Shared:
    """What the fronts for threads and for tasks share."""

    def __init__(self, given: Config) -> None:
        self.config = given
        self.in_transactions = given.in_transactions
        try:
            self.gate = Gate(
                given.policy,
                given.rules,
                publish=given.publish,
                secret=given.secret,
                on_event=logged(given.on_event),
                in_transactions=self.in_transactions,
            )
        except SemelError as error:
            raise ImproperlyConfigured(f"settings.SEMEL: {error}") from error
        if given.on_django and not apps.is_installed("semel.django"):
            raise ImproperlyConfigured(
                'settings.SEMEL["store"] is "django", whose tables are made by the migrations of "semel.django": '
                "add it to INSTALLED_APPS"
            )
        # `manage.py check` looks at Django's own database. The front does not: no request would close its connection.
        self._looked = given.on_django or self.in_transactions
        if given.identify is None:
            logger.warning(
                self.gate.unidentified(
                    'settings.SEMEL has no "identify"',
                    'Set "identify" to a function from the request to the account\'s name.',
                )
            )

    @staticmethod
    def report(request: HttpRequest, error: Exception) -> None:
        """Report an exception as Django does: by its signal, which error trackers listen to, and in its log."""
        try:
            raise error
        except Exception:
            got_request_exception.send(sender=None, request=request)
        response = HttpResponse(status=500)
        log_response(
            "%s: %s", response.reason_phrase, request.path, response=response, request=request, exception=error
        )

    def _caller(self, request: HttpRequest, user: Any) -> str | None:
        authorization: object = request.META.get("HTTP_AUTHORIZATION")
        return self.gate.caller(
            str(user.pk) if user is not None and user.is_authenticated else None,
            None if authorization is None else encoded(authorization),
        )


class Front(Shared):
    """For threads."""

    def __init__(self, given: Config) -> None:
        super().__init__(given)
        self.store: Any = _open_store(given, open_store, wants_async=False)
        if inspect.iscoroutinefunction(given.identify):
            raise ImproperlyConfigured(
                'settings.SEMEL["identify"] is a coroutine function, and this handler is synchronous '
                "(or a middleware after ours is)"
            )
        quotas = Quotas(given.quota_storage)
        if self.gate.has_quota:
            _ = quotas.limiter  # fails at start-up if something is missing
        self.host = Host(self.store, on_event=given.on_event, others=counting(quotas), waiters_max=given.waiters_max)

    def new_transaction(self) -> Any:
        """The transaction of a request, where the store gives each request one; else None."""
        return self.store.request() if self.in_transactions else None

    def run(self, plan: Plan[T], asker: Asker | None = None) -> T:
        return drive(plan, (asker or self.host.asker).perform)

    def look_once(self) -> None:
        """Log what is wrong with the store, in the background, when the first request comes."""
        if not self._looked:
            self._looked = True
            self.host.background.do(lambda: look_at(self.store))

    def tenant(self, request: HttpRequest) -> str | None:
        """The caller's name: from `identify`, else the authenticated user, else the holder of the credentials."""
        if self.config.identify is not None:
            try:
                caller: Any = self.config.identify(request)
            except Exception as error:
                explain(error, request, DJANGO_ORDER)
                raise
            return None if caller is None else caller
        return self._caller(request, getattr(request, "user", None))

    authenticated = tenant

    def begin(self, exchange: DjangoExchange) -> HttpResponse | None:
        return exchange.begun(self.host.begin(exchange.key(self.tenant(exchange.request)), exchange.asker))

    begin_in_view = begin

    def finish(self, exchange: DjangoExchange, response: HttpResponseBase, body: bytes | None) -> HttpResponseBase:
        """Settle, and return the response to send."""
        if (ended := exchange.end(response, body)) is None:
            return response
        return exchange.answer(response, ended, self.host.settle(*exchange.attempt, ended, exchange.asker))

    def interrupt(self, exchange: DjangoExchange, error: BaseException) -> None:
        """Settle a view that ended without an answer."""
        if (ended := exchange.end_interrupted(error)) is not None:
            self.host.settle(*exchange.attempt, ended, exchange.asker)


class Drain(Enum):
    """Whether the work that is running when the server stops is waited for."""

    UNTOLD = "semel is not told when the server stops"
    WARNED = "the same, and the log says so"
    TOLD = "the application tells semel, and waits"


class AsyncFront(Shared):
    """For tasks."""

    def __init__(self, given: Config) -> None:
        super().__init__(given)
        self.store: Any = _open_store(given, open_async_store, wants_async=True)
        quotas = AsyncQuotas(given.quota_storage)
        if self.gate.has_quota:
            _ = quotas.limiter
        self.host = AsyncHost(
            self.store, on_event=given.on_event, others=counting(quotas), waiters_max=given.waiters_max
        )
        self._drain = Drain.UNTOLD

    def new_transaction(self) -> Any:
        return self.store.request() if self.in_transactions else None

    async def run(self, plan: Plan[T], asker: AsyncAsker | None = None) -> T:
        return await adrive(plan, (asker or self.host.asker).perform)

    def look_once(self) -> None:
        if not self._looked:
            self._looked = True
            self.host.tasks.spawn(async_look_at(self.store))

    def expect_drain(self) -> None:
        """The application waits for the tasks when the server stops: `semel.django.asgi` does."""
        self._drain = Drain.TOLD

    def may_detach(self, work: asyncio.Task[Any]) -> bool:
        """Whether the work may go on without its caller."""
        if self._drain is Drain.UNTOLD:
            self._drain = Drain.WARNED
            logger.warning(
                "An operation was accepted with 202, but semel is not told when this server stops: an operation that "
                "runs then is cut off, and its outcome is unknown. Serve "
                "semel.django.asgi.get_asgi_application(), with lifespan on."
            )
        return self.host.tasks.may_detach(work)

    async def tenant(self, request: HttpRequest) -> str | None:
        """The same. A plain `identify` may read `request.user`, which blocks, so it is called in Django's thread."""
        if self.config.identify is not None:
            return await self._call_identify(request)
        auser: Any = getattr(request, "auser", None)  # set by Django's authentication
        return self._caller(request, None if auser is None else await auser())

    async def authenticated(self, request: HttpRequest) -> str | None:
        """The same after a view has authenticated the caller: `request.user` is the user that the view found."""
        if self.config.identify is not None:
            return await self._call_identify(request)
        return self._caller(request, getattr(request, "user", None))

    async def _call_identify(self, request: HttpRequest) -> str | None:
        identify: Any = self.config.identify
        ask: Any = identify if inspect.iscoroutinefunction(identify) else sync_to_async(identify)
        try:
            name: str | None = await ask(request)
        except Exception as error:
            explain(error, request, DJANGO_ORDER)
            raise
        return name

    async def begin(self, exchange: DjangoExchange) -> HttpResponse | None:
        keyed = exchange.key(await self.tenant(exchange.request))
        return exchange.begun(await self.host.begin(keyed, exchange.asker))

    async def finish(
        self, exchange: DjangoExchange, response: HttpResponseBase, body: bytes | None
    ) -> HttpResponseBase:
        if (ended := exchange.end(response, body)) is None:
            return response
        return exchange.answer(response, ended, await self.host.settle(*exchange.attempt, ended, exchange.asker))

    async def interrupt(self, exchange: DjangoExchange, error: BaseException) -> None:
        if (ended := exchange.end_interrupted(error)) is not None:
            await self.host.settle(*exchange.attempt, ended, exchange.asker)

    def begin_in_view(self, exchange: DjangoExchange) -> HttpResponse | None:
        """For a view in a thread: the claim is made in the event loop that the store belongs to."""
        answer: HttpResponse | None = async_to_sync(self._begin_authenticated)(exchange)
        return answer

    async def _begin_authenticated(self, exchange: DjangoExchange) -> HttpResponse | None:
        keyed = exchange.key(await self.authenticated(exchange.request))
        return exchange.begun(await self.host.begin(keyed, exchange.asker))


AnyFront = Front | AsyncFront


@cache
def front() -> Front:
    return Front(config.read())


@cache
def async_front() -> AsyncFront:
    return AsyncFront(config.read())


def _forget(*, setting: str, **_: object) -> None:
    """Tests change settings (`override_settings`): the next handler makes a new front."""
    if setting in ("SEMEL", "DATABASES"):
        front.cache_clear()
        async_front.cache_clear()


def _note_exception(*, request: HttpRequest | None = None, **_: object) -> None:
    """Django signals an exception that the application did not handle, and then answers for it."""
    exchange: DjangoExchange | None = getattr(request, ATTRIBUTE, None)
    error = sys.exc_info()[1]
    if exchange is not None and isinstance(error, Exception):
        exchange.reported(error)


setting_changed.connect(_forget, dispatch_uid="semel.django.forget")
got_request_exception.connect(_note_exception, dispatch_uid="semel.django.hear")


def _open_store(given: Config, open_url: Callable[[str], T], *, wants_async: bool) -> T:
    store: Any = given.store
    if isinstance(store, str):
        try:
            return open_url(store)
        except SemelError as error:
            raise ImproperlyConfigured(f'settings.SEMEL["store"]: {error}') from error
    if inspect.iscoroutinefunction(store.close) is not wants_async:
        needed = "an async store: semel.open_async_store(url)" if wants_async else "a sync store: semel.open_store(url)"
        if getattr(store, "in_transactions", False):
            needed = f"semel.transaction.{'Async' if wants_async else ''}TransactionStore"
        raise ImproperlyConfigured(
            f'settings.SEMEL["store"] is a {type(store).__name__}, and this handler needs {needed}; a URL serves both'
        )
    opened: T = store
    return opened
