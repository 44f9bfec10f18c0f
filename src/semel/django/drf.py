"""Django REST framework authenticates, and checks permissions, inside its views: after every middleware.

Without further ado a key is claimed before that. Callers are then told apart by Django's `request.user` or by a digest
of their `Authorization` header, and whoever sends the same header gets the answer, without asking the permissions.

With the mixin the key is claimed when the view has authenticated, authorised and throttled the caller. `identify` then
sees the user that the framework found. Put it first:

    class Payments(IdempotentMixin, ModelViewSet): ...

The middleware is needed all the same: it settles the answer when it is rendered. It also serves the monitor of what was
accepted with 202, and has the view that accepted it authenticate who asks there.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.urls import ResolverMatch

from semel.django.exchange import ATTRIBUTE, DjangoExchange
from semel.http.invalid import frames_of, is_in, tell_invalid

MISSING = object()
OWN_OR_DRF = ("semel.", "rest_framework.")
TAKING_EFFECT = frozenset({"perform_create", "perform_update", "perform_destroy"})
"""Where the framework's own handlers begin to change something."""


class AlreadyAnswered(Exception):
    """The way out of a view whose answer is known before it runs."""

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
        """Authenticate the caller as this view does, for the monitor of what it has accepted.

        Permissions and throttles are those of the request that was accepted: they are not asked for again.
        """
        from rest_framework.exceptions import APIException

        view: Any = cls(**found.func.initkwargs)
        view.args, view.kwargs, view.action_map = found.args, found.kwargs, getattr(found.func, "actions", {})
        view.request = view.initialize_request(request, *found.args, **found.kwargs)
        try:
            _ = view.request.user  # which `request` has, too, from now on
        except APIException:
            return False
        return True

    def handle_exception(self, exc: Exception) -> HttpResponse:
        if isinstance(exc, AlreadyAnswered):
            return exc.response
        if _is_before_the_view(exc):
            tell_invalid()
        answer: HttpResponse = super().handle_exception(exc)  # type: ignore[misc]
        return answer


def _is_before_the_view(error: Exception) -> bool:
    """Whether the framework refused the request before any code of the view could take effect.

    So it is with its own `create` and `update`, which validate first. A view with handlers of its own may have done
    something before it validates: nothing can tell.
    """
    from rest_framework.exceptions import APIException

    called = frames_of(error)[1:]  # what `dispatch` called, which has caught it
    return isinstance(error, APIException) and all(
        is_in(frame, "rest_framework") and frame.f_code.co_name not in TAKING_EFFECT for frame in called
    )
