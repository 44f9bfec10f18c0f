"""The actions as a Django project, which `django_app` serves through ASGI and `django_wsgi` through WSGI.

A store of "django" keeps its records in the project's own database, a file in the folder or what `SEMEL_TEST_DATABASE`
(a URL of PostgreSQL) names.
"""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import django
from apps.actions import FOLDER, Answer, settings
from django import conf
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase


def database() -> dict[str, object]:
    url = urlsplit(os.environ.get("SEMEL_TEST_DATABASE", ""))
    if not url.scheme:
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": FOLDER / "site.db", "OPTIONS": {"timeout": 20}}
    place = {"NAME": url.path[1:], "USER": url.username, "HOST": url.hostname, "PORT": url.port}
    return {"ENGINE": "django.db.backends.postgresql", **place}


def identify(request: HttpRequest) -> str | None:
    caller: str | None = request.headers.get("Caller")
    return caller


def configure(urls: str, open_store: Callable[[], Any]) -> None:
    """Set the project up, with the views of the module `urls`."""
    store = "django" if os.environ["SEMEL_TEST_STORE"] == "django" else open_store()
    conf.settings.configure(
        SECRET_KEY="only for tests",
        ALLOWED_HOSTS=["*"],
        DATABASES={"default": database()},
        INSTALLED_APPS=["semel.django"],
        MIDDLEWARE=["semel.django.IdempotencyMiddleware"],
        ROOT_URLCONF=urls,
        LOGGING={  # Django's own choice is to send letters
            "version": 1,
            "disable_existing_loggers": False,
            "handlers": {"server": {"class": "logging.StreamHandler"}},
            "root": {"handlers": ["server"]},
        },
        SEMEL={"store": store, "identify": identify, **settings()},
    )
    django.setup()


def key_of(request: HttpRequest) -> str:
    key: str = request.headers.get("Idempotency-Key", "-").strip('"')
    return key


def response_of(answer: Answer, chunks: Iterator[bytes] | AsyncIterator[bytes]) -> HttpResponseBase:
    """The answer, streamed if it has several chunks."""
    if len(answer.chunks) > 1:
        response: HttpResponseBase = StreamingHttpResponse(chunks, status=answer.status)
    else:
        response = HttpResponse(answer.chunks[0], status=answer.status)
    del response.headers["Content-Type"]
    for name, value in answer.headers:
        if name == "set-cookie":
            response.cookies.load(value)
        else:  # Django has one line for each name
            response.headers[name] = value
    return response
