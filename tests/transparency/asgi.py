"""ASGI: applications behind semel, and every unsafe request made twice."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from semel.asgi import IdempotencyMiddleware
from semel.asgi.types import App, Message, Receive, Scope, Send
from semel.stores.open import open_async_store
from transparency.trial import HEADER, MARK, POLICY, Answer, ExecutedAgain, Trial

KEY = HEADER.lower().encode()
OPTIONS: dict[str, Any] = {"policy": POLICY, "identify": lambda scope: "tests", "publish": None}


def protected(app: App) -> App:
    return Repeating(IdempotencyMiddleware(Keyless(app), store=open_async_store("memory://"), **OPTIONS), app)


class Keyless:
    """Stands between semel and the application. Hides the key, because the suite's tests know of none."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trial: Trial | None = scope.get(MARK)
        if trial is not None:
            hide(scope, trial)
        await self.app(scope, receive, send)


def hide(scope: Scope, trial: Trial) -> None:
    trial.enter()
    del scope[MARK]
    scope["headers"] = [each for each in scope["headers"] if each != (KEY, trial.key.encode())]


class Repeating:
    """The outermost application. `shown` is the one whose attributes the tests may ask for."""

    def __init__(self, app: App, shown: object) -> None:
        self.app = app
        self._shown = shown

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shown, name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"].upper() not in POLICY.methods or KEY in dict(scope["headers"]):
            await self.app(scope, receive, send)
            return
        trial, first = Trial(), Answer()
        received: list[Message] = []
        scope[MARK] = trial
        scope["headers"] = [*scope["headers"], (KEY, trial.key.encode())]
        repeat = {**scope}

        async def noted_receive() -> Message:
            message = await receive()
            received.append(dict(message))
            return message

        try:
            await self.app(scope, noted_receive, noting(first, send))
        finally:
            if trial.entered and first.is_complete:
                await self._repeat(trial, repeat, received, first)

    async def _repeat(self, trial: Trial, scope: Scope, received: list[Message], first: Answer) -> None:
        again = Answer()

        async def receive() -> Message:
            return received.pop(0) if received else {"type": "http.disconnect"}

        async def nowhere(message: Message) -> None:
            pass

        with suppress(ExecutedAgain):  # the trial has counted it
            await self.app(scope, receive, noting(again, nowhere))
        trial.compare(f"{scope['method']} {scope['path']}", first, again)


def noting(answer: Answer, send: Send) -> Send:
    async def noted(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = str(message["status"])
            answer.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
        elif message["type"] == "http.response.body":
            answer.body += message.get("body", b"")
            answer.is_complete = not message.get("more_body", False)
        await send(message)

    return noted
