"""The middleware: one name in MIDDLEWARE, for threads and for tasks, and what both share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import Resolver404, get_resolver

from semel.core.http import Headers, Response
from semel.django.exchange import ATTRIBUTE, DjangoExchange
from semel.django.front import AsyncFront, Front
from semel.django.marks import claims_in_view, mark_on, marked_views
from semel.django.wire import body_limit, django_response, headers_of, read_body, root_of, strip_directives, unfit_body
from semel.http.answers import Answers
from semel.http.document import published
from semel.http.gate import Admitted, Refused, too_large_body
from semel.http.marks import SAFE, UNMARKED, see
from semel.http.monitors import Monitored

if TYPE_CHECKING:
    from semel.django.tasks import AsyncMiddleware
    from semel.django.threads import SyncMiddleware

F = TypeVar("F", Front, AsyncFront)


class IdempotencyMiddleware:
    """Makes retries of unsafe requests safe, as `settings.SEMEL` says. Put it last in MIDDLEWARE."""

    sync_capable = True
    async_capable = True

    def __new__(  # type: ignore[misc]  # Django only needs a callable that makes a middleware
        cls,
        get_response: Callable[[HttpRequest], HttpResponseBase] | Callable[[HttpRequest], Awaitable[HttpResponseBase]],
    ) -> SyncMiddleware | AsyncMiddleware:
        from semel.django.tasks import AsyncMiddleware
        from semel.django.threads import SyncMiddleware

        made: Any = AsyncMiddleware if iscoroutinefunction(get_response) else SyncMiddleware
        instance: SyncMiddleware | AsyncMiddleware = made(get_response)
        return instance


class Middleware(Generic[F]):
    """The key is claimed in `process_view`, when every other middleware has let the request pass and the view is known.

    The answer is settled when `get_response` returns, rendered and whole.
    """

    def __init__(self, front: F, get_response: Any) -> None:
        self.front: F = front
        self.gate = front.gate
        self.get_response = get_response

    def admit(self, request: HttpRequest, view: object) -> DjangoExchange | HttpResponse | None:
        """None when the request is not protected, an answer when it is refused, else its exchange."""
        if request.method in SAFE:
            see(True)
            return None
        headers = headers_of(request)
        admitted = self._admit_view(request, view, headers)
        if admitted is None:
            return None
        answers = self.gate.answers(root_of())
        if isinstance(admitted, Refused):
            return django_response(self._refuse(admitted, answers, request, headers))
        limit = body_limit(admitted.policy)
        body = read_body(request, limit)
        if body is None:
            return django_response(self._refuse(too_large_body(limit, admitted.policy), answers, request, headers))
        return unfit_body(request, body) or DjangoExchange(
            self.front, request, admitted, answers, headers, body, in_view=claims_in_view(view)
        )

    def _refuse(self, refused: Refused, answers: Answers, request: HttpRequest, headers: Headers) -> Response:
        return self.gate.refuse(refused, answers, request.method or "", request.path, headers)

    def _admit_view(self, request: HttpRequest, view: object, headers: Headers) -> Admitted | Refused | None:
        method = request.method or ""
        mark = mark_on(view, method)
        see(mark is not UNMARKED)
        return self.gate.admit(method, request.path_info, headers, mark)

    def prepare(self, request: HttpRequest) -> None:
        """Keep the body of a form with files: reading `request.POST` consumes it, and CSRF does that before us."""
        setattr(request, ATTRIBUTE, None)
        self.front.look_once()
        if request.method in SAFE or request.content_type != "multipart/form-data":
            return
        try:
            view = get_resolver(getattr(request, "urlconf", None)).resolve(request.path_info).func
        except Resolver404:
            return
        admitted = self._admit_view(request, view, headers_of(request))
        if isinstance(admitted, Admitted):  # else `process_view` refuses it, or lets it pass
            read_body(request, body_limit(admitted.policy))

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        exchange = exchange_of(request)
        return None if exchange is None else exchange.raised(exception)

    def published(self, request: HttpRequest) -> Monitored | Response | None:
        """The policy document, or the accepted operation that the path names; None when it is neither."""
        if request.method != "GET" or not request.path_info.startswith(self.gate.published_at):
            return None
        return published(self.gate, request.path_info, headers_of(request), root=root_of(), marks=marked_views)

    def failed(self, exchange: DjangoExchange, error: Exception) -> HttpResponseBase:
        """A streamed answer broke off while it was collected: the work has raised, and Django does not see that."""
        answer = exchange.raised(error)
        if answer is None:
            self.front.report(exchange.request, error)
            answer = exchange.broke_off(error)
        return answer


def unprotected(response: HttpResponseBase) -> HttpResponseBase:
    """Drop the directives from the answer to a request without a key: they have no effect there, and are not sent."""
    strip_directives(response)
    return response


def exchange_of(request: HttpRequest) -> DjangoExchange | None:
    exchange: DjangoExchange | None = getattr(request, ATTRIBUTE, None)
    return exchange
