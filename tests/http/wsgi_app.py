"""A WSGI application for real servers: `/pay` does what its body says, and each effect is a line in the ledger file."""

import os
import time
from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from semel import Policy
from semel.runtime.operation import current_operation
from semel.wsgi import IdempotencyMiddleware


def pay(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    body: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 10_000))
    with open(environ["ledger"], "ab", buffering=0) as ledger:
        ledger.write(body[:20] + b"\n")
    if body == b"slow":  # until the test says so, by a file beside the ledger
        while not os.path.exists(f"{environ['ledger']}.go"):
            time.sleep(0.01)
    if body == b"boom":
        raise RuntimeError("boom")
    operation = current_operation()
    reply = (operation.key.name if operation else "none").encode() + b" " + body
    start_response("201 Created", [("Content-Type", "text/plain"), ("X-A", "1"), ("X-A", "2")])
    return (reply[at : at + 3] for at in range(0, len(reply), 3))


def build(store: str, ledger: str) -> WSGIApplication:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        environ["ledger"] = ledger
        return pay(environ, start_response)

    return IdempotencyMiddleware(
        app,
        store=store,
        identify=lambda environ: "me",
        policy=Policy(body_max=1000),
        secret="a secret of the tests",
        detached_max=4,
    )


if "SEMEL_TEST_LEDGER" in os.environ:
    application = build(os.environ["SEMEL_TEST_STORE"], os.environ["SEMEL_TEST_LEDGER"])
