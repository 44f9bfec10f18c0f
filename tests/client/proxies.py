"""A proxy that repeats by itself: it sends each request twice, and passes on the answer that helps least."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

HOP_BY_HOP = frozenset({"connection", "content-length", "date", "server", "transfer-encoding"})


@dataclass
class Proxy:
    """`statuses` has what the service answered to the two copies of each request, and the lower one is dropped."""

    service: str
    at_once: bool
    """Whether the copies are sent concurrently, or one after the other."""
    url: str = ""
    statuses: list[tuple[int, int]] = field(default_factory=list)


class ProxyHandler(BaseHTTPRequestHandler):
    proxy: Proxy
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        with ThreadPoolExecutor(2 if self.proxy.at_once else 1) as copies:
            answers = list(copies.map(lambda _: self.forward(body), range(2)))
        first, second = sorted(answers, key=lambda each: each[0].status)
        self.proxy.statuses.append((first[0].status, second[0].status))
        answer, content = second
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def forward(self, body: bytes) -> tuple[HTTPResponse, bytes]:
        service = HTTPConnection(urlsplit(self.proxy.service).netloc, timeout=20)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        service.request("POST", self.path, body, headers)
        answer = service.getresponse()
        content = answer.read()
        service.close()
        return answer, content

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def repeating(service: str, *, at_once: bool) -> Iterator[Proxy]:
    """Put such a proxy before a service."""
    proxy = Proxy(service, at_once)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OneProxy", (ProxyHandler,), {"proxy": proxy}))
    proxy.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
