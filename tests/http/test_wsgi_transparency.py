"""What middleware around ours, and callers on the wire, notice of us in a first execution: nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import Context, ContextVar, Token
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest
from wsgi_calls import TEXT, FaultyStore, environ_of

from semel import Policy
from semel.core.effects import Claim
from semel.runtime.operation import current_operation
from semel.stores.memory import MemoryStore
from semel.wsgi import IdempotencyMiddleware

# Context variables that the application sets

language: ContextVar[str] = ContextVar("language", default="none")
opened: ContextVar[str] = ContextVar("opened")

SECRET = "a secret of the tests"


class Speaking:
    """An application that sets one variable in every step, and another one from its call to its close."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Speaking:
        self.closing: Token[str] = opened.set("by the application")
        language.set("in the call")
        start_response("200 OK", [TEXT])
        self.parts = self.speak()
        return self

    def speak(self) -> Iterator[bytes]:
        assert language.get() == "in the call"
        for number in range(3):
            language.set(f"in part {number}")
            yield b"x" * 10

    def __iter__(self) -> Iterator[bytes]:
        return self.parts

    def close(self) -> None:
        assert language.get() == "in part 2"
        language.set("in close")
        opened.reset(self.closing)


def seen_outside(app: Any, **request: Any) -> dict[str, tuple[str, str]]:
    """What a middleware around `app` finds in the variables after each step. Ends in a context of its own."""
    found: dict[str, tuple[str, str]] = {}

    def look(step: str) -> None:
        assert current_operation() is None
        found[step] = language.get(), opened.get("unset")

    def serve() -> None:
        parts = app(environ_of(**request), lambda *_: lambda chunk: None)
        look("called")
        for _ in parts:
            pass
        look("sent")
        parts.close()
        look("closed")

    Context().run(serve)
    return found


def wrapped(*, store: Any = None, **settings: Any) -> IdempotencyMiddleware:
    store = MemoryStore() if store is None else store
    return IdempotencyMiddleware(
        Speaking(), store=store, identify=lambda environ: "me", secret="a secret of the tests", **settings
    )


@pytest.mark.parametrize(
    ("settings", "prefer"),
    [
        ({}, ""),
        ({"policy": Policy(result_max=5)}, ""),
        ({"store": FaultyStore(Claim), "policy": Policy(on_store_error="open")}, ""),
        ({}, "respond-async, wait=20"),
        ({"policy": Policy(result_max=5)}, "respond-async, wait=20"),
    ],
    ids=["kept", "too large", "unprotected", "detached", "detached, too large"],
)
def test_context_variables_of_the_application_are_there_outside(settings: dict[str, Any], prefer: str) -> None:
    bare, found = seen_outside(Speaking()), seen_outside(wrapped(**settings), HTTP_PREFER=prefer)
    assert bare["called"][1] == found["called"][1] == "by the application"
    assert found["called"][0].startswith("in "), "some parts are made earlier than without us"
    assert found["sent"] == bare["sent"] == ("in part 2", "by the application")
    assert found["closed"] == bare["closed"] == ("in close", "unset")


def test_a_replay_sets_nothing() -> None:
    app = wrapped()
    seen_outside(app)
    assert set(seen_outside(app).values()) == {("none", "unset")}
