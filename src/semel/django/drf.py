"""Django REST framework authenticates, and checks permissions, inside its views: after every middleware.

By default, a key is claimed before that. Callers are then told apart by Django's `request.user` or by a digest of their
`Authorization` header. A caller that sends the same header gets the stored answer, without a check of its permissions.

With the mixin, the key is claimed after the view has authenticated, authorised and throttled the caller. `identify`
then sees the user that the framework found. Put it first:

    class Payments(IdempotentMixin, ModelViewSet): ...

The middleware is still needed: it settles the answer when it is rendered. It also serves the monitor, the page that
tells how an operation that was accepted with 202 ended. The view that accepted it authenticates the caller there.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.urls import ResolverMatch

from semel.django.exchange import ATTRIBUTE, DjangoExchange
from semel.http.invalid import frames_of, is_in, tell_invalid

__all__ = ["IdempotentMixin"]

MISSING = object()
OWN_OR_DRF = ("semel.", "rest_framework.")
TAKING_EFFECT = frozenset({"perform_create", "perform_update", "perform_destroy"})
"""The framework's own methods that begin to change something."""


class AlreadyAnswered(Exception):
    """Ends a view whose answer is known before it runs."""

    def __init__(self, response: HttpResponse) -> None:
        super().__init__()
        self.response = response


class IdempotentMixin:
    """For `APIView` and its kin, viewsets included."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        first = next(each for each in cls.__mro__ if "initial" in vars(each) and each.__module__.startswith(OWN_OR_DRF))
        if first is not IdempotentMixin:
            raise TypeError(f"{cls.__name__}: IdempotentMixin must stand before {first.__name__}, or no key is claimed")

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """Django REST framework calls this when it has authenticated the caller and before the view runs."""
        super().initial(request, *args, **kwargs)  # type: ignore[misc]
        exchange: Any = getattr(request._request, ATTRIBUTE, MISSING)
        if exchange is MISSING:
            raise ImproperlyConfigured(f"{type(self).__name__} needs semel.django.IdempotencyMiddleware in MIDDLEWARE")
        if isinstance(exchange, DjangoExchange):
            answer = exchange.front.begin_in_view(exchange)
            if answer is not None:
                raise AlreadyAnswered(answer)

    @classmethod
    def semel_authenticate(cls, request: HttpRequest, found: ResolverMatch) -> bool:
        """Authenticate the caller as this view does, for the monitor of an operation that it has accepted.

        Permissions and throttles were checked when the operation was accepted: they are not checked again.
        """
        from rest_framework.exceptions import APIException

        view: Any = cls(**found.func.initkwargs)
        view.args, view.kwargs, view.action_map = found.args, found.kwargs, getattr(found.func, "actions", {})
        view.request = view.initialize_request(request, *found.args, **found.kwargs)
        try:
            _ = view.request.user  # this sets `request.user`, too
        except APIException:
            return False
        return True

    def handle_exception(self, exc: Exception) -> HttpResponse:
        """Django REST framework calls this for what the view raised."""
        if isinstance(exc, AlreadyAnswered):
            return exc.response
        if _is_before_the_view(exc):
            tell_invalid()
        answer: HttpResponse = super().handle_exception(exc)  # type: ignore[misc]
        return answer


def _is_before_the_view(error: Exception) -> bool:
    """Whether the framework refused the request before any code of the view could take effect.

    True for its own `create` and `update`, which validate first. A view with its own handlers may have done something
    before it validates; that cannot be told.
    """
    from rest_framework.exceptions import APIException

    called = frames_of(error)[1:]  # the frames below `dispatch`, which has caught the exception
    return isinstance(error, APIException) and all(
        is_in(frame, "rest_framework") and frame.f_code.co_name not in TAKING_EFFECT for frame in called
    )
