"""The actions as a plain WSGI application."""

from collections.abc import Iterable
from http import HTTPStatus
from wsgiref.types import StartResponse, WSGIEnvironment

from apps.actions import act_blocking, blocking_protection

from semel.wsgi import IdempotencyMiddleware


def plain(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    if environ["REQUEST_METHOD"] != "POST":
        start_response("404 Not Found", [("content-length", "0")])
        return []
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    key: str = environ.get("HTTP_IDEMPOTENCY_KEY", "-").strip('"')
    answer = act_blocking(environ["PATH_INFO"].strip("/"), key)
    status = HTTPStatus(answer.status)
    start_response(f"{status.value} {status.phrase}", answer.headers)
    return (chunk for chunk in answer.chunks)


app = IdempotencyMiddleware(plain, detached_max=8, **blocking_protection())  # wsgiref says that it has one thread
