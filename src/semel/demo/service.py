"""The whole service: the payments API behind the middleware, the page, and the endpoints that the page watches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, quote

from semel.asgi import IdempotencyMiddleware, Rule
from semel.asgi.types import Message, Receive, Scope, Send, send_response
from semel.core.http import WELL_KNOWN, Response
from semel.core.policy import Policy
from semel.demo import page
from semel.demo.bank import Bank
from semel.demo.messages import BODY_MAX, account_of, answer, header, is_from_another_site, read_body, refusal
from semel.demo.openapi import document
from semel.demo.operator import Operator
from semel.demo.payments import CRASH, FAULT, PROTECTED, UNPROTECTED, Payments, reference_of
from semel.demo.stream import stream
from semel.demo.timeline import Timeline

LEASE_S = 2
"""Short, so that the visitor soon sees what becomes of a crash."""
LOSE_ANSWER = "lose-answer"
HELD_S_MAX = 30
"""How long an answer is kept from a caller that does not hang up."""
POLICY = Policy(required=True, lease=LEASE_S, body_max=BODY_MAX)
CLOSE = (b"connection", b"close")


class Service:
    """An ASGI application on the files in `folder`. `stopping` says that the server wants to end."""

    def __init__(self, folder: Path, *, stopping: Callable[[], bool] = lambda: False) -> None:
        self.timeline = Timeline(folder / "timeline.jsonl")
        self._bank = Bank(folder / "bank.db")
        self._front = IdempotencyMiddleware(
            Payments(self._bank, self.timeline),
            store=f"sqlite:///{quote(str(folder.resolve()))}/semel.db",
            policy=POLICY,
            rules=[Rule(f"POST {UNPROTECTED}")],
            identify=account_of,
            on_event=self.timeline.hear,
        )
        self._operator = Operator(self._front.store, POLICY, self._bank, self.timeline)
        self._stopping = stopping
        self._page = page.load()
        self._openapi = answer(200, document(POLICY))
        reads = dict.fromkeys([*self._page, "/bank", "/record", "/timeline", "/openapi.json", WELL_KNOWN], ("GET",))
        self._methods = reads | dict.fromkeys([PROTECTED, UNPROTECTED, "/operator/resolve"], ("POST",))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._front(scope, receive, send)
            return
        send = _close_afterwards(send)
        refused = self._find_refusal(scope)
        if refused is not None:
            await send_response(send, refused)
        elif scope["path"] in (PROTECTED, UNPROTECTED, WELL_KNOWN):
            loses = header(scope, FAULT) == LOSE_ANSWER
            await self._front(scope, receive, self._withhold_answer(scope, receive, send) if loses else send)
        elif scope["path"] == "/timeline":
            await stream(self.timeline, account_of(scope) or "", scope, receive, send, stopping=self._stopping)
        elif (response := await self._answer(scope, receive)) is not None:
            await send_response(send, response)

    def _find_refusal(self, scope: Scope) -> Response | None:
        methods = self._methods.get(scope["path"])
        if methods is None:
            return refusal(404, "There is nothing here", "The API is described in /openapi.json.")
        if scope["method"] not in methods:
            allowed = ", ".join(methods)
            return refusal(405, "This method is not allowed here", f"Use {allowed}.").plus((b"allow", allowed.encode()))
        if scope["method"] == "POST" and is_from_another_site(scope):
            return refusal(403, "Another site may not do this", "Use the demo's own page, or a program such as curl.")
        if account_of(scope) is None:
            return refusal(400, "There can be no such account", "1 to 40 letters, digits and hyphens name an account.")
        if header(scope, FAULT) not in ("", CRASH, LOSE_ANSWER):
            return refusal(400, "There is no such fault", f"Demo-Fault is {CRASH} or {LOSE_ANSWER}.")
        return None

    async def _answer(self, scope: Scope, receive: Receive) -> Response | None:
        account, path = account_of(scope) or "", scope["path"]
        if path == "/bank":
            return answer(200, await asyncio.to_thread(self._bank.statement, account))
        if path == "/record":
            asked = parse_qs(scope["query_string"].decode("latin-1")).get("key", [""])[0]
            return await self._operator.show(account, asked)
        if path == "/openapi.json":
            return self._openapi
        if path == "/operator/resolve":
            body = await read_body(receive)
            return await self._operator.reconcile(account, body) if isinstance(body, bytes) else body
        return self._page[path]

    def _withhold_answer(self, scope: Scope, receive: Receive, send: Send) -> Send:
        """Everything is done and stored; the answer waits until the caller has hung up."""

        async def withheld(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.timeline.add("lost", account_of(scope) or "", reference_of(scope))
                try:
                    async with asyncio.timeout(HELD_S_MAX):
                        while (await receive())["type"] != "http.disconnect":
                            pass
                except TimeoutError:
                    pass
            await send(message)  # the caller has usually hung up by now

        return withheld


def _close_afterwards(send: Send) -> Send:
    """One request for each connection: on one that it used before, a browser repeats a lost POST by itself."""

    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), CLOSE]}
        await send(message)

    return wrapped
