"""Converts requests and answers between Django's classes and the core's values."""

from __future__ import annotations

import http.client
from io import BytesIO

from django.conf import settings
from django.http import HttpRequest, HttpResponse, RawPostDataException
from django.http.response import HttpResponseBase
from django.urls import get_script_prefix

from semel.core.fingerprint import RequestParts
from semel.core.http import Headers, Response
from semel.core.policy import Policy
from semel.http.answers import DIRECTIVE

UNKNOWN_PHRASE = "Unknown Status Code"
"""Django's phrase for a status that has no registered one."""
CUT_SHORT = b"The request body ended before its Content-Length. Nothing was run.\n"
WITHOUT_LENGTH = b"This server does not take a body in chunks. Send a Content-Length. Nothing was run.\n"


class BodyConsumed(Exception):
    """Other code read the request's stream before us, so it can be neither fingerprinted nor given to the view."""


def headers_of(request: HttpRequest) -> Headers:
    """The headers, with names in lower case. Repeated lines are joined with commas already, which no bare key may hold.

    A header that is None is absent, as it is for `META.get()`: Django's test client lets any value through.
    """
    found = [(name[5:], value) for name, value in request.META.items() if name.startswith("HTTP_")]
    found += [(name, request.META[name]) for name in ("CONTENT_TYPE", "CONTENT_LENGTH") if request.META.get(name)]
    given = [(name, value) for name, value in found if value is not None]
    return tuple((name.replace("_", "-").lower().encode(), encoded(value)) for name, value in given)


def root_of() -> str:
    """Where the project is mounted, as the caller of this thread's or task's request sees it."""
    prefix: str = get_script_prefix()
    return prefix.rstrip("/")


def parts_of(request: HttpRequest, headers: Headers, body: bytes) -> RequestParts:
    """The path is the decoded one: to Django, too, two spellings of it are one request."""
    query = str(request.META.get("QUERY_STRING") or "")
    return RequestParts(request.method or "", request.path, query, headers, body)


def body_limit(policy: Policy) -> int:
    django_limit: int | None = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    return policy.body_max if django_limit is None else min(policy.body_max, django_limit)


def read_body(request: HttpRequest, size_max: int) -> bytes | None:
    """The body, which the view can read again; None when it is larger than `size_max`."""
    if hasattr(request, "_body"):
        body: bytes = request.body
        return body if len(body) <= size_max else None
    length = request.META.get("CONTENT_LENGTH") or ""
    if str(length).isdecimal():
        if int(length) > size_max:
            return None
    elif getattr(request, "scope", None) is not None and not request._read_started:
        # Without a length Django would read without a bound. `HttpRequest.body` uses these two names, too.
        body = request.read(size_max + 1)
        if len(body) > size_max:
            return None
        request._body, request._stream = body, BytesIO(body)
        return body
    try:
        body = request.body
    except RawPostDataException:
        raise BodyConsumed(
            f"the body of {request.method} {request.path} was read as a stream before the idempotency middleware "
            "saw it: read request.body in that code instead, or exempt the view"
        ) from None
    return body


def unfit_body(request: HttpRequest, body: bytes) -> HttpResponse | None:
    """The answer when a part of the body is missing, with which Django would run the view; None when it is whole."""
    length = str(request.META.get("CONTENT_LENGTH") or "")
    if length.isdecimal():
        whole = len(body) >= int(length) or "HTTP_CONTENT_ENCODING" in request.META  # a middleware may have decoded it
        return None if whole else HttpResponse(CUT_SHORT, status=400, content_type="text/plain")
    chunked = "chunked" in str(request.META.get("HTTP_TRANSFER_ENCODING")).lower()
    if chunked and hasattr(request, "environ"):  # under WSGI, Django reads such a body as empty
        return HttpResponse(WITHOUT_LENGTH, status=411, content_type="text/plain")
    return None


def response_of(response: HttpResponseBase, body: bytes) -> Response:
    """An answer as the core knows it. Django keeps cookies apart from the headers."""
    headers = [(name.encode("latin-1"), encoded(value)) for name, value in response.headers.items()]
    headers += [(b"Set-Cookie", encoded(cookie.OutputString())) for cookie in response.cookies.values()]
    phrase: str = response.reason_phrase
    usual = phrase == http.client.responses.get(response.status_code, UNKNOWN_PHRASE)
    return Response(response.status_code, tuple(headers), body, None if usual else encoded(phrase))


def django_response(response: Response) -> HttpResponse:
    """Semel's answer, or a stored one, as Django's response."""
    reason = None if response.reason is None else response.reason.decode("latin-1")
    made = HttpResponse(response.body, status=response.status, reason=reason)
    del made.headers["Content-Type"]
    for name, value in response.headers:
        text, given = name.decode("latin-1"), value.decode("latin-1")
        if name.lower() == b"set-cookie":
            made.cookies.load(given)
        else:
            made.headers[text] = f"{made.headers[text]}, {given}" if text in made.headers else given
    return made


def strip_directives(response: HttpResponseBase) -> None:
    name = DIRECTIVE.decode()
    if name in response.headers:
        del response.headers[name]


def encoded(value: object) -> bytes:
    """Header text is latin-1 on the wire; only a test client gives anything else."""
    return str(value).encode("latin-1", "backslashreplace")
