"""A small API on a real socket: it takes effect once for each key, and then misbehaves as it is told."""

import gzip
import json
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

EARLY_HINT = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n"


class Api:
    """What the server has done, and what it will do: one behaviour for each of the next requests."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
        self.requests: list[tuple[str, str, bytes]] = []
        self.credentials: list[str] = []
        self.behaviours: list[str | bytes] = []
        """Bytes are sent as they are, and the connection is closed after them."""
        self.url = ""
        self.lock = threading.Lock()
        self.may_answer = threading.Event()
        self.may_answer.set()


class Handler(BaseHTTPRequestHandler):
    api: Api
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        key = self.headers["idempotency-key"] or self.headers["paypal-request-id"] or ""
        with self.api.lock:
            self.api.credentials.append(self.headers.get("authorization", ""))
            self.api.requests.append((self.path, key, body))
            behaviour = self.api.behaviours.pop(0) if self.api.behaviours else "answer"
            replayed = bool(key) and self.api.effects[key] > 0
            if not str(behaviour).startswith("refuse") and not replayed:
                self.api.effects[key] += 1
        self.api.may_answer.wait(20)
        if isinstance(behaviour, bytes):
            self.wfile.write(behaviour)
            self.close_connection = True
            return
        match behaviour.split():
            case ["drop"]:
                self.close_connection = True
            case ["stall"]:
                self.await_client()
            case ["stall-half"]:
                self.answer(201, b"pa", {"content-length": "4"})
                self.await_client()
            case ["hint-only"]:
                self.wfile.write(EARLY_HINT)
                self.await_client()
                with suppress(OSError):
                    self.answer(201, b"late", {})
            case ["redirect", status, where]:
                self.answer(int(status), b"", {"location": where})
            case ["refuse", status, *retry_after]:
                self.answer(int(status), b"", {"retry-after": retry_after[0]} if retry_after else {})
            case ["problem", kind]:
                document = json.dumps({"type": f"urn:semel:{kind}"}).encode()
                self.answer(409, document, {"content-type": "application/problem+json"})
            case ["refuse-digest"]:
                challenge = 'Digest realm="api", nonce="1", qop="auth", algorithm=MD5'
                self.answer(401, b"", {"www-authenticate": challenge})
            case ["gzip"]:
                self.answer(201, gzip.compress(b"paid"), {"content-encoding": "gzip"})
            case ["long"]:
                self.answer(201, b"long" * 500_000, {})
            case ["json"]:
                self.answer(201, b'{"paid": true}', {"content-type": "application/json"})
            case ["half"]:
                self.answer(201, b"pa", {"content-length": "4"})
                self.close_connection = True
            case ["502"]:
                self.answer(502, b"bad gateway", {})
            case _:
                stored = {"idempotent-replayed": "true"} if replayed else {}
                self.answer(201, b"paid", {"x-number": str(self.api.effects.total()), **stored})

    def do_GET(self) -> None:
        self.do_POST()

    def do_PUT(self) -> None:
        self.do_POST()

    def do_HEAD(self) -> None:
        self.answer(200, b"", {"content-length": "7", "content-encoding": "gzip"})

    def do_OPTIONS(self) -> None:
        self.do_POST()

    def await_client(self) -> None:
        """Wait until the client closes the connection, or uses it for something else."""
        self.close_connection = True
        self.connection.settimeout(20)
        self.connection.recv(1)

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class ApiServer(ThreadingHTTPServer):
    request_queue_size = 128
    """A fleet connects at once, and none of it is to be refused."""


@contextmanager
def serving(*behaviours: str | bytes, certificate: tuple[Path, Path] | None = None) -> Iterator[Api]:
    api = Api()
    api.behaviours += behaviours
    server = ApiServer(("127.0.0.1", 0), type("ApiHandler", (Handler,), {"api": api}))
    scheme = "http"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket, scheme = context.wrap_socket(server.socket, server_side=True), "https"
    api.url = f"{scheme}://127.0.0.1:{server.server_port}/pay"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.may_answer.set()
        server.shutdown()
        server.server_close()
        thread.join()
