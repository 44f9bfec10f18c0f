"""`python -m apps.on_wsgiref PORT MODULE:NAME` serves an application from the standard library, in threads."""

import sys
from importlib import import_module
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIServer, make_server


class Threads(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64


if __name__ == "__main__":
    port, place = sys.argv[1:]
    module, name = place.split(":")
    with make_server("127.0.0.1", int(port), getattr(import_module(module), name), Threads) as server:
        server.serve_forever(poll_interval=0.05)
