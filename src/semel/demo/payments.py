"""The payments API itself. It runs behind the middleware and knows nothing of keys.

The same handler is at two paths. `/payments` is protected, `/unprotected/payments` is exempt, and nothing else differs.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Annotated

import msgspec

from semel.asgi.types import Receive, Scope, Send, send_response
from semel.core.http import Response
from semel.demo.bank import Bank, Entry
from semel.demo.messages import account_of, answer, header, read_body, refusal
from semel.demo.timeline import Timeline

PROTECTED = "/payments"
UNPROTECTED = "/unprotected/payments"
FAULT = b"demo-fault"
"""A request header: `crash` kills the worker once the bank has paid, `lose-answer` keeps the answer from arriving."""
CRASH = "crash"
AMOUNT_MAX = 1_000_000
CONFIRMATION_S = 0.3
"""How long the bank takes to confirm what it has booked: time enough to click twice, or to die."""


class Payment(msgspec.Struct, forbid_unknown_fields=True):
    amount: Annotated[int, msgspec.Meta(ge=1, le=AMOUNT_MAX)]


class Payments:
    """An ASGI application."""

    def __init__(self, bank: Bank, timeline: Timeline) -> None:
        self._bank = bank
        self._timeline = timeline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        body = await read_body(receive)
        if body is not None:
            await send_response(send, body if isinstance(body, Response) else await self._pay(scope, body))

    async def _pay(self, scope: Scope, body: bytes) -> Response:
        try:
            payment = msgspec.json.decode(body, type=Payment)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return refusal(
                400, "The payment cannot be read", f'{error}. Send a body like {{"amount": 2500}}, in cents.'
            )
        account, reference = account_of(scope) or "", reference_of(scope)
        entry = await asyncio.to_thread(self._bank.charge, account, reference, payment.amount)
        if entry is None:
            return refusal(402, "The account is empty", "Nothing was charged. Use another name in the header Account.")
        self._timeline.add("charged", account, reference, amount=entry.amount)
        if header(scope, FAULT) == CRASH:
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(CONFIRMATION_S)
        return receipt(entry)


def reference_of(scope: Scope) -> str:
    """What the payment is called at the bank: the caller's key."""
    return header(scope, b"idempotency-key").strip('"')[:255]


def receipt(entry: Entry) -> Response:
    """The answer to a payment: from the handler, or from the operator after a look into the ledger."""
    return answer(201, {"payment": f"pay_{entry.number}", "amount": entry.amount, "currency": "EUR"})
