"""A shop that charges cards at a bank, protected by semel. `python shop.py PORT_FILE` serves it on a free port."""

import asyncio
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import bank
import uvicorn

from semel import Policy
from semel.asgi import IdempotencyMiddleware


def number_of(order: str) -> int:
    """Of four orders, one waits a second before the bank has charged and one after it: a kill finds some of each."""
    return int(order.rpartition("-")[2])


async def pay(scope: Any, receive: Any, send: Any) -> None:
    """POST /payments: the bank is another company, so its charge and the shop's record cannot be one transaction."""
    order = json.loads((await receive())["body"])["order"]
    await asyncio.sleep(1 if number_of(order) % 4 == 0 else 0.02)  # killed here, nothing was charged
    bank.charge(order)
    await asyncio.sleep(1 if number_of(order) % 4 == 2 else 0.02)  # killed here, it was, and no answer was sent
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(bank.receipt(order)).encode()})


def serve(port_file: Path) -> None:
    protected = IdempotencyMiddleware(
        pay,
        store=os.environ["SEMEL_STORE"],
        policy=Policy(required=True, lease=0.5),  # so that this example need not wait for 30 seconds
        identify=lambda scope: "shop",
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port_file.write_text(str(listening.getsockname()[1]))
        config = uvicorn.Config(protected, fd=listening.fileno(), lifespan="off", log_level="error")
        uvicorn.Server(config).run()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
