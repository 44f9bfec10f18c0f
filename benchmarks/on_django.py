"""The same application on Django REST framework: bare, with semel, and with the peer that knows no other framework.

Django is slower than Starlette, so these are compared with a bare application of their own. They run on threads, which
keep their connections to a database; under ASGI Django has a thread, and a connection, for each request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from benchmarks.places import DURABLE, path_of

if TYPE_CHECKING:
    from benchmarks.apps import Shop

BARE_DJANGO, SEMEL_DJANGO, DRF_IDEMPOTENCY = "bare Django app", "semel on Django", "drf-idempotency"
ON_DJANGO = (BARE_DJANGO, SEMEL_DJANGO, DRF_IDEMPOTENCY)
CONTENDERS = ((BARE_DJANGO, ""), *((who, store) for who in (SEMEL_DJANGO, DRF_IDEMPOTENCY) for store in DURABLE))
PLAIN = {
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "UNAUTHENTICATED_USER": None,
}


def build(shop: Shop, who: str, store: str, url: str) -> Any:
    """The WSGI application as `who` protects it, with its records at `url`."""
    from django.conf import settings
    from django.core.management import call_command
    from django.core.wsgi import get_wsgi_application

    protection = {BARE_DJANGO: lambda *_: {}, SEMEL_DJANGO: semel, DRF_IDEMPOTENCY: drf_idempotency}[who]
    settings.configure(ALLOWED_HOSTS=["*"], USE_TZ=True, REST_FRAMEWORK=PLAIN, **protection(store, url))
    settings.ROOT_URLCONF = routes(shop)
    app = get_wsgi_application()
    if settings.DATABASES:
        call_command("migrate", verbosity=0)
    return app


def routes(shop: Shop) -> tuple[Any, ...]:
    """Made when the settings are there: the framework reads them when it is imported."""
    from django.http import HttpRequest, JsonResponse
    from django.urls import path
    from rest_framework.decorators import api_view
    from rest_framework.response import Response

    @api_view(["POST"])  # type: ignore[untyped-decorator]
    def pay(request: Any) -> Response:
        return Response(shop.charge(request.data["amount"]))

    def told(request: HttpRequest) -> JsonResponse:
        return JsonResponse({"effects": shop.effects})

    return path("pay", pay), path("effects", told)


def semel(store: str, url: str) -> dict[str, Any]:
    return {
        "MIDDLEWARE": ["semel.django.IdempotencyMiddleware"],
        "SEMEL": {"store": url, "identify": lambda request: "shop-1"},
    }


def drf_idempotency(store: str, url: str) -> dict[str, Any]:
    given: dict[str, Any] = {"MIDDLEWARE": ["drf_idempotency.middleware.IdempotencyMiddleware"]}
    if store == "redis":
        backend = "drf_idempotency.backends.redis.RedisBackend"
        return given | {"IDEMPOTENCY": {"BACKEND": backend, "BACKEND_OPTIONS": {"url": url}}}
    return given | {"INSTALLED_APPS": ["drf_idempotency"], "DATABASES": {"default": database(store, url)}}


def database(store: str, url: str) -> dict[str, Any]:
    """As quick as Django can be made: connections are kept, and SQLite is set as semel sets it."""
    if store == "sqlite":
        init = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL"
        options = {"timeout": 20, "transaction_mode": "IMMEDIATE", "init_command": init}
        place = {"ENGINE": "django.db.backends.sqlite3", "NAME": path_of(url), "OPTIONS": options}
    else:
        at = urlsplit(url)
        where = {"NAME": at.path[1:], "USER": at.username, "HOST": at.hostname, "PORT": at.port}
        place = {"ENGINE": "django.db.backends.postgresql", **where}
    return {**place, "CONN_MAX_AGE": None}
