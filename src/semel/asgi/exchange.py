"""One keyed request: everything about it that changes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, assert_never
from urllib.parse import quote, unquote

from semel.admission import Answered, Keyed, Unprotected
from semel.answers import Answers, without_directives
from semel.asgi.execution import Execution
from semel.asgi.types import Message, Receive, Scope, Send, send_response
from semel.core import http
from semel.core.decisions import Run
from semel.core.fingerprint import RequestParts
from semel.core.http import Response
from semel.core.protocol import abandon
from semel.core.records import Lease
from semel.core.tables import Ending
from semel.drive import adrive
from semel.errors import NotExecuted, OutcomeUnknown
from semel.gate import Admitted
from semel.running import Operation, enter
from semel.tasks import report

if TYPE_CHECKING:
    from semel.asgi.middleware import IdempotencyMiddleware

UNSTORABLE = frozenset(
    f"http.response.{name}" for name in ("pathsend", "zerocopysend", "trailers", "push", "early_hint", "debug")
)
"""Extensions whose answers could not be stored: for a keyed request the server is said to lack them."""


class Unfinished(RuntimeError):
    """The application returned before its answer was complete."""


class Exchange:
    """Acquire, run the application, settle, answer. The caller may leave at any moment; what has begun goes on.

    The application runs in a task of its own; a replay needs none.
    """

    def __init__(
        self,
        front: IdempotencyMiddleware,
        admitted: Admitted,
        answers: Answers,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self.front = front
        self.policy = admitted.policy
        self.admitted = admitted
        self.answers = answers
        self.scope = scope
        self.wire_receive = receive
        self.wire_send = send
        self.body: bytes | None = None
        self.caller_left = False
        self.answering = False
        self.finishing: asyncio.Future[None] | None = None
        """Somebody is storing the answer, and sends it then."""

    async def run(self) -> None:
        """Read the request and claim its key. A store gives back the claim of a caller who leaves meanwhile."""
        body = await self._read_body()
        if body is None:
            return
        self.body = body
        front, scope = self.front, self.scope
        query = scope.get("query_string", b"").decode("latin-1")
        request = RequestParts(scope["method"].upper(), raw_path(scope), query, tuple(scope["headers"]), body)
        keyed = Keyed(front, self.admitted, self.answers, await front.tenant(scope), request)
        begun = await adrive(keyed.begin(), front.perform)
        if isinstance(begun, Answered):
            await send_response(self.wire_send, begun.response)
        else:
            await self._outlived(keyed, begun)

    async def _read_body(self) -> bytes | None:
        """The whole body, or None when there is nothing to serve: it was too large, or the client left meanwhile."""
        size_max = self.policy.body_max
        length = dict(self.scope["headers"]).get(b"content-length", b"")
        size = int(length.lstrip(b"0")[:18] or 0) if length.isdigit() else 0  # Python refuses thousands of digits
        body = bytearray()  # a list of parts would cost thirty times their size when they drip
        while size <= size_max:
            message = await self.wire_receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            size = len(body)
            if size <= size_max and not message.get("more_body", False):
                return bytes(body)
        await send_response(self.wire_send, self.answers.too_large_body(self.policy.body_max))
        return None

    async def _outlived(self, keyed: Keyed, begun: Run | Unprotected) -> None:
        """Run the work in a task that outlives its caller."""
        self.app_answered = asyncio.Event()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        work = self.front.spawn(self._work(keyed, begun))
        work.add_done_callback(self._ended)
        try:
            if keyed.accept_s is None or not await self._accepted_after(work, keyed, keyed.accept_s):
                await self._over  # not the work itself: whoever is cancelled takes along what it waits for
                work.result()
        except asyncio.CancelledError:
            self.caller_left = True
            raise
        finally:
            if not work.done():  # nobody waits for it any more, so nobody else would tell how it failed
                work.add_done_callback(report)

    async def _work(self, keyed: Keyed, begun: Run | Unprotected) -> None:
        match begun:
            case Run(lease) if self.caller_left:  # nothing has begun, and nobody would get the answer
                await adrive(abandon(lease), self.front.perform)
            case Run(lease):
                await self._execute(keyed, lease)
            case Unprotected(lease):
                self.answering = True  # by the application
                enter(Operation(lease))
                await self.front.app(self.scope, self._replayed_receive, self._marked_send)
            case _:
                assert_never(begun)

    async def _execute(self, keyed: Keyed, lease: Lease) -> None:
        run = Execution(self, keyed, lease)
        if self.scope.get("extensions"):
            self.scope["extensions"] = {
                name: value for name, value in self.scope["extensions"].items() if name not in UNSTORABLE
            }
        enter(run.operation)
        try:
            await self.front.app(self.scope, self._replayed_receive, run.send)
        except (NotExecuted, OutcomeUnknown) as error:
            await run.finish(self.answers.declared(error))
        except tuple(self.policy.release_exceptions):
            await run.leave(Ending.NOTHING_DONE)
            raise
        except Exception:
            if run.operation.nothing_was_done:
                await run.leave(Ending.NOTHING_DONE)
            else:
                await run.finish(self.answers.raised())
            raise
        except BaseException:  # truly cancelled: nobody may say how it ended, so renewal stops and the lease lapses
            await run.leave(Ending.INTERRUPTED)
            raise
        await run.finish()
        if not run.ended:
            await run.finish(self.answers.raised())
            which = f"{self.scope['method']} {self.scope['path']}"
            raise Unfinished(f"the application returned with its answer to {which} unfinished")

    async def _accepted_after(self, work: asyncio.Task[Any], keyed: Keyed, wait_s: int) -> bool:
        """Answer 202 when the work takes longer than the caller prefers to wait. The work goes on."""
        await asyncio.wait([self._over], timeout=wait_s)
        if self.answering or work.done() or not self.front.tasks.may_detach(work):
            return False
        self.answering = True
        await send_response(self.wire_send, keyed.accepted())
        return True

    async def respond(self, response: Response) -> None:
        """Send the one answer of this exchange."""
        if not self.answering:
            self.answering = True
            if not self.caller_left:
                await send_response(self.wire_send, response)

    def _ended(self, _: object) -> None:
        """The work has ended, and there is nothing to wait for unless somebody is still storing its answer."""
        if self.finishing is not None and not self.finishing.done():
            self.finishing.add_done_callback(self._ended)
        elif not self._over.done():  # by the caller's cancellation
            self._over.set_result(None)

    async def _replayed_receive(self) -> Message:
        """The body that was read. Later the application learns that the client left, once its answer is complete."""
        if self.body is not None:
            body, self.body = self.body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.app_answered.wait()
        return await self.wire_receive()

    async def _marked_send(self, message: Message) -> None:
        """Fail open: the application's own answer, with the mark that nothing was stored."""
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*without_directives(message.get("headers", ())), http.NOT_STORED]}
        await self.wire_send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.app_answered.set()


def raw_path(scope: Scope) -> str:
    """The path as received: still percent-encoded, so that no two of them become one.

    Unless something in front of us rewrote the path: then what it was before says nothing about what will run.
    """
    path: str = scope["path"]
    raw = scope.get("raw_path", b"").partition(b"?")[0].decode("latin-1")
    return raw if (raw == path and "%" not in raw) or unquote(raw) == path else quote(path)
