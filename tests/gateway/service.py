"""A service on the standard library's server that knows nothing of keys. Its ledger is a file that it appends to."""

import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

port, ledger = sys.argv[1:]


class Service(BaseHTTPRequestHandler):  # HTTP/1.0, as `python -m http.server` speaks it: a connection for each request
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        with open(ledger, "a") as file:
            file.write(f"{body}\n")
        self.send_response(200 if self.path == "/stream" else 201)
        self.send_header("Content-Type", "text/plain")
        self.send_header("X-Key", self.headers.get("Idempotency-Key", ""))
        self.end_headers()
        for number in range(50):
            self.wfile.write(f"part {number} at {time.monotonic_ns()}\n".encode())

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""


ThreadingHTTPServer(("127.0.0.1", int(port)), Service).serve_forever()
