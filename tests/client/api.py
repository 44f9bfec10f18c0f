"""A small API on a real socket: it takes effect once for each key, and then misbehaves as it is told."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Api:
    """What the server has done, and what it will do: one behaviour for each of the next requests."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
        self.requests: list[tuple[str, str, bytes]] = []
        self.behaviours: list[str] = []
        self.url = ""
        self.lock = threading.Lock()
        self.may_answer = threading.Event()
        self.may_answer.set()


class Handler(BaseHTTPRequestHandler):
    api: Api
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        key = self.headers.get("idempotency-key", "")
        with self.api.lock:
            self.api.requests.append((self.path, key, body))
            behaviour = self.api.behaviours.pop(0) if self.api.behaviours else "answer"
            replayed = bool(key) and self.api.effects[key] > 0
            if not behaviour.startswith("refuse") and not replayed:
                self.api.effects[key] += 1
        self.api.may_answer.wait(20)
        match behaviour.split():
            case ["drop"]:
                self.close_connection = True
            case ["redirect", status, where]:
                self.answer(int(status), b"", {"location": where})
            case ["refuse", status, *retry_after]:
                self.answer(int(status), b"", {"retry-after": retry_after[0]} if retry_after else {})
            case ["problem", kind]:
                document = json.dumps({"type": f"urn:semel:{kind}"}).encode()
                self.answer(409, document, {"content-type": "application/problem+json"})
            case ["502"]:
                self.answer(502, b"bad gateway", {})
            case _:
                self.answer(201, b"paid", {"idempotent-replayed": "true"} if replayed else {})

    def do_GET(self) -> None:
        self.do_POST()

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def serving(*behaviours: str) -> Iterator[Api]:
    api = Api()
    api.behaviours += behaviours
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("ApiHandler", (Handler,), {"api": api}))
    api.url = f"http://127.0.0.1:{server.server_port}/pay"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.may_answer.set()
        server.shutdown()
        server.server_close()
        thread.join()
