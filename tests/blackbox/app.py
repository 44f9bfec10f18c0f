"""The application: `POST /{arm}/pay` writes one line into the ledger and answers. Each arm is protected by one store.

The arm `none` is not protected: it shows that the faults of a run do make duplicates. Settings come from the
environment, as `deployment` sets them.
"""

import asyncio
import json
import os
import random
import uuid
from typing import Any

from semel import Policy
from semel.asgi import IdempotencyMiddleware

LEDGER = os.environ["SEMEL_BOX_LEDGER"]
LEASE_S = float(os.environ["SEMEL_BOX_LEASE_S"])
STORES: dict[str, str] = json.loads(os.environ["SEMEL_BOX_STORES"])
PAUSE_S = 0.01
"""Up to this long before and after the effect, so that faults come before, between and after."""


def take_effect(arm: str, key: str, body: str) -> str:
    """One line, on the disk before anybody is told."""
    effect = uuid.uuid4().hex
    descriptor = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{arm} {key} {body} {effect}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return effect


async def pay(scope: Any, receive: Any, send: Any) -> None:
    arm = scope["path"].split("/")[1]
    body = (await receive())["body"].decode()
    key = dict(scope["headers"])[b"idempotency-key"].decode()
    await asyncio.sleep(random.random() * PAUSE_S)
    effect = await asyncio.to_thread(take_effect, arm, key, body)
    slow_s = 1.5 * LEASE_S if scope["path"].endswith("/slow") else 0  # alive only because its lease is renewed
    await asyncio.sleep(slow_s + random.random() * PAUSE_S)
    answer = json.dumps({"key": key, "effect": effect}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


policy = Policy(required=True, lease=LEASE_S)
arms: dict[str, Any] = {
    arm: IdempotencyMiddleware(pay, store=url, policy=policy, identify=lambda scope: "shop")
    for arm, url in STORES.items()
}


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["method"] == "POST":
        await arms.get(scope["path"].split("/")[1], pay)(scope, receive, send)
    else:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})
