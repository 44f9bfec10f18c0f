"""The upstream of the soak: it counts what takes effect, and is never killed. `GET /ledger` tells."""

import asyncio
import json
from collections import defaultdict
from typing import Any

ARRIVED: dict[str, list[str]] = defaultdict(list)
"""For each operation the downstream keys that it came with, one for each time it came."""


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    if scope["path"] == "/ledger":
        answer = json.dumps(ARRIVED).encode()
    else:
        key = dict(scope["headers"]).get(b"idempotency-key", b"").decode()
        ARRIVED[body.decode()].append(key)
        await asyncio.sleep(0.01)  # so that there is work in the hands of whoever is killed
        # At least once is for upstreams that tell a second time by the downstream key: this is such a one.
        answer = b"%b came %d times" % (body, len(set(ARRIVED[body.decode()])))
    headers = [(b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": answer})
