"""Idempotency keys for Django.

    INSTALLED_APPS = [..., "semel.django"]
    MIDDLEWARE = [..., "semel.django.IdempotencyMiddleware"]  # last
    SEMEL = {"store": "django", "identify": "shop.accounts.tenant_of"}

Last, because a key is claimed when every other middleware has let the request pass: sessions, authentication, CSRF and
login checks come before any replay. The view, and middleware after ours, is the work. Middleware before ours treats a
replay like any other answer, so the headers and cookies that it adds are those of the repeat.

A view gets its own policy by `@idempotent(Policy(…))` or `@idempotency_exempt`: on a function, a class, a handler
method (`post`) or an action of a viewset; above `@api_view`. For Django REST framework see `semel.django.drf`.

The store `"django"` keeps records in Django's own database (`semel.stores.django`). `manage.py migrate` makes the
tables, `manage.py semel_purge` deletes records past retention, `manage.py semel_check` checks settings and store. In an
async project each call on it needs a thread, as all calls of Django's database layer do; stores with a URL need none.
"""

from semel.core.rules import Rule
from semel.django.middleware import IdempotencyMiddleware
from semel.http.marks import idempotency_exempt, idempotent

__all__ = ["IdempotencyMiddleware", "Rule", "idempotency_exempt", "idempotent"]
