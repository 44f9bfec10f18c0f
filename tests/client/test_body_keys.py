"""Services that read the key in the body: a JSON field, or a field of a form. Effects are counted at the server."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

import httpx
import pytest

from semel.client import AWS_EC2, SQUARE, Indeterminate, Journal, KeyDialect, Retry
from semel.client.httpx import IdempotentTransport

HOUR = timedelta(hours=1)
SQUARE_REUSED = b'{"errors": [{"category": "INVALID_REQUEST_ERROR", "code": "IDEMPOTENCY_KEY_REUSED"}]}'
EC2_REUSED = b"<Response><Errors><Error><Code>IdempotentParameterMismatch</Code></Error></Errors></Response>"


class BodyKeyed:
    """A service that does one thing for each key in a body, and refuses a key that comes with other fields."""

    def __init__(self) -> None:
        self.seen: dict[str, dict[str, object]] = {}
        self.requests: list[bytes] = []
        self.drops = 0
        self.url = ""

    def handle(self, body: bytes, content_type: str) -> tuple[int, bytes]:
        is_form = content_type == "application/x-www-form-urlencoded"
        fields: dict[str, object] = dict(parse_qsl(body.decode())) if is_form else json.loads(body)
        key = str(fields.pop("ClientToken" if is_form else "idempotency_key"))
        self.requests.append(body)
        if self.seen.setdefault(key, fields) != fields:
            return 400, EC2_REUSED if is_form else SQUARE_REUSED
        return 200, b"done"


@contextmanager
def body_keyed() -> Iterator[BodyKeyed]:
    service = BodyKeyed()

    class BodyKeyHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            status, body = service.handle(self.rfile.read(length), self.headers["content-type"])
            if service.drops:
                service.drops -= 1
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), BodyKeyHandler)
    service.url = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def request(dialect: KeyDialect, amount: int) -> dict[str, Any]:
    return {"json": {"amount": amount}} if dialect is SQUARE else {"data": {"Action": "RunInstances", "Min": amount}}


def client(dialect: KeyDialect, journal: Journal) -> httpx.Client:
    retry = Retry(attempts=4, pause_max=0.02)
    return httpx.Client(
        transport=IdempotentTransport(httpx.HTTPTransport(), journal=journal, retry=retry, dialect=dialect)
    )


dialects = pytest.mark.parametrize("dialect", [SQUARE, AWS_EC2], ids=lambda each: each.name)


@dialects
def test_a_key_in_the_body_outlives_lost_answers_and_other_runs(dialect: KeyDialect) -> None:
    journal = Journal("memory://")
    with body_keyed() as service, client(dialect, journal) as http:
        service.drops = 2
        first = http.post(
            service.url, extensions={"semel": journal.intent("pay:1", max_age=HOUR)}, **request(dialect, 5)
        )
        again = http.post(
            service.url, extensions={"semel": journal.intent("pay:1", max_age=HOUR)}, **request(dialect, 5)
        )
        assert (first.status_code, again.status_code, again.content) == (200, 200, b"done")
        assert len(service.seen) == 1, "one effect"
        assert len(service.requests) == 3
        assert len(set(service.requests)) == 1, "the same bytes each time"


@dialects
def test_a_key_that_the_service_refuses_does_not_close_the_intent(dialect: KeyDialect) -> None:
    journal = Journal("memory://")
    intent = journal.intent("pay:1", max_age=HOUR)
    with body_keyed() as service, client(dialect, journal) as http:
        service.drops = 4
        with pytest.raises(httpx.TransportError):
            http.post(service.url, extensions={"semel": intent}, **request(dialect, 5))
        (key,) = service.seen
        service.seen[key] = {"amount": "another request's"}
        refused = http.post(service.url, extensions={"semel": intent}, **request(dialect, 5))
        assert refused.status_code == 400
        with pytest.raises(Indeterminate, match="the server could not say how the operation ended"):
            http.post(service.url, extensions={"semel": intent}, **request(dialect, 5))
        assert len(service.requests) == 5
