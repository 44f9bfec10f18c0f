"""Idempotency keys for Django.

    INSTALLED_APPS = [..., "semel.django"]
    MIDDLEWARE = [..., "semel.django.IdempotencyMiddleware"]  # last
    SEMEL = {"store": "django", "identify": "shop.accounts.tenant_of"}

Last, because a key is claimed when every other middleware has let the request pass: sessions, authentication, CSRF and
login checks come before any replay. What the view does, and middleware after ours, is the work. Middleware before ours
treats a replay like any other answer, so its own headers and cookies are those of the repeat.

A view is told apart from the rest by `@idempotent(Policy(…))` or `@idempotency_exempt`: on a function, a class, a
handler method (`post`) or an action of a viewset; above `@api_view`. For Django REST framework see `semel.django.drf`.

`"django"` as the store keeps records in Django's own database (`semel.stores.django`); `manage.py migrate` makes the
tables, `manage.py semel_purge` deletes what is past retention, `manage.py semel_check` says how it is. In an async
project it needs a thread for each call, as all of Django's database layer does; stores with a URL do not.
"""

from semel.core.rules import Rule
from semel.django.middleware import IdempotencyMiddleware
from semel.http.marks import idempotency_exempt, idempotent

__all__ = ["IdempotencyMiddleware", "Rule", "idempotency_exempt", "idempotent"]
