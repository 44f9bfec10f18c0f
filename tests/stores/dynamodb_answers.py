"""A server in front of an emulator's that changes its answers: their time, or the whole of one."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import urlsplit

OPERATION = "X-Amz-Target"


class ChangedAnswers:
    """Hands requests on. `operations` are their names, in the order in which they came."""

    def __init__(self, endpoint: str) -> None:
        self.upstream = urlsplit(endpoint).netloc
        self.ahead_s = 0
        """How far the server's clock seems to be ahead."""
        self.refusals: dict[str, str] = {}
        """Operations that are not handed on, and the error that is answered instead."""
        self.operations: list[str] = []

    def __enter__(self) -> Self:
        answers = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                operation = self.headers[OPERATION].partition(".")[2]
                answers.operations.append(operation)
                status, headers, answer = answers.find(operation, dict(self.headers), body)
                self.send_response_only(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def find(self, operation: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        if code := self.refusals.get(operation):
            answer = json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "on purpose"})
            told = {"Content-Type": "application/x-amz-json-1.0", "Content-Length": str(len(answer))}
            return 400, told, answer.encode()
        connection = HTTPConnection(self.upstream, timeout=30)
        connection.request("POST", "/", body, headers)
        reply = connection.getresponse()
        answer_bytes = reply.read()
        told = {name: value for name, value in reply.getheaders() if name.lower() not in ("connection", "keep-alive")}
        connection.close()
        for name in told:
            if name.lower() == "date":
                moved = parsedate_to_datetime(told[name]) + timedelta(seconds=self.ahead_s)
                told[name] = format_datetime(moved, usegmt=True)
        return reply.status, told, answer_bytes
