"""Explains the failure of an `identify` that looks for a user before any middleware has authenticated one."""

from __future__ import annotations

from collections.abc import Mapping

from semel.errors import Misuse

ASGI_ORDER = (
    "Authentication and sessions have to run before semel. Starlette and FastAPI run the middleware first that was "
    "added last: call add_middleware (or protect) for semel above add_middleware for authentication. In a list "
    "(middleware=[…]) authentication comes before semel."
)
WSGI_ORDER = (
    "The middleware that sets it has to run before semel: wrap the application in semel first, then in the "
    "authentication, as in Authentication(IdempotencyMiddleware(app, …))."
)
FLASK_ORDER = (
    "Flask opens its session, and runs before_request, after semel has looked at the key: open it in identify, as in "
    "`with app.request_context(environ): return current_user.get_id()`."
)
DJANGO_ORDER = (
    'Put "django.contrib.auth.middleware.AuthenticationMiddleware" into MIDDLEWARE, and '
    '"semel.django.IdempotencyMiddleware" last. Django REST framework authenticates in its views: use '
    "semel.django.drf.IdempotentMixin there."
)
ANONYMOUS = "If anonymous callers are allowed, return None for them."
ANONYMOUS_USERS = ("AnonymousUser", "UnauthenticatedUser")
"""The classes of Django and Starlette for a caller that has not logged in."""


def explain(error: Exception, request: object, order: str) -> None:
    """Raise `Misuse`, from `error`, if `identify` failed because `request` does not show a caller.

    Returns for every other error: those are `identify`'s own.
    """
    missing = _missing(error, request)
    if missing is not None:
        raise Misuse(f"identify= {missing}. Nothing was run. {order} {ANONYMOUS}") from error


def _missing(error: Exception, request: object) -> str | None:
    """What `identify` did not find, in words; None when it failed for another reason."""
    match error:
        case KeyError(args=(str() as name,)) if isinstance(request, Mapping) and name not in request:
            return f"asked for {name!r}, which {_place(request)} does not have when semel looks at it"
        case AttributeError(name=str() as name, obj=asked) if asked is request:
            return f"asked for .{name}, which the request does not have when semel looks at it"
        case AttributeError(name=str() as name, obj=None) if not _shows_user(request):
            return f"asked None for .{name}, and {_place(request)} shows no user when semel looks at it"
        case AttributeError(name=str() as name, obj=asked) if type(asked).__name__ in ANONYMOUS_USERS:
            return f"asked an {type(asked).__name__} for .{name}"
        case AssertionError() if "must be installed to access" in str(error):  # Starlette's request.user and session
            return f"failed: {error}"
        case _:
            return None


def _place(request: object) -> str:
    if isinstance(request, Mapping):
        return "the environ" if "REQUEST_METHOD" in request else "the scope"
    return "the request"


def _shows_user(request: object) -> bool:
    if isinstance(request, Mapping):
        return request.get("REMOTE_USER" if "REQUEST_METHOD" in request else "user") is not None
    return getattr(request, "user", None) is not None
