"""The work of one keyed request under exactly-once: one task begins its transaction, commits, and then answers.

The application runs in a second task, and the first task waits for it. Frameworks cancel what they run (a timeout, a
caller that left), and that must not reach a commit. Only the first task ends the transaction. Nothing is settled before
the answer is whole, and nothing is sent before the transaction has ended. If the first task is cancelled during its
commit, it just ends: the repeat finds out whether the transaction was committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from contextvars import copy_context
from enum import Enum
from typing import TYPE_CHECKING, assert_never

from semel.asgi.execution import DEBUG, UNSTORABLE, AsgiExecution
from semel.asgi.handlers import ask_handler
from semel.asgi.types import Message, Receive, Scope, Send, send_response
from semel.codecs.responses import AnswerNotKept
from semel.core import http
from semel.core.decisions import Run, Settlement, Superseded
from semel.core.http import Response
from semel.core.records import Lease
from semel.core.tables import Ending
from semel.errors import NotExecuted, OutcomeUnknown
from semel.http.admission import Answered, Keyed
from semel.http.answers import NO_ANSWER, Ended, Unfinished
from semel.http.held import HeldBody
from semel.runtime.calls import Unprotected
from semel.runtime.operation import Operation, Outside, adopt, enter
from semel.runtime.tasks import report

if TYPE_CHECKING:
    from semel.asgi.middleware import IdempotencyMiddleware
    from semel.transaction.http import AsyncRequestTransaction

RAISING_S = 0.1
"""How long an answer of 500 and above waits for an exception: the framework may have answered for one."""


class Stage(Enum):
    """How far the answer is."""

    COLLECTING = "the application is answering"
    WHOLE = "its answer is complete, and an exception may still follow"
    SETTLED = "the transaction has ended, and the answer is decided"


class CallerState(Enum):
    """What the caller has got, or can still get."""

    WAITING = "it waits for an answer"
    ANSWERED = "it has got the answer of this request, or 202"
    LEFT = "it has left"


class TransactionExecution:
    """Runs one request. The caller may leave at any moment; begun work goes on."""

    def __init__(
        self,
        front: IdempotencyMiddleware,
        keyed: Keyed,
        transaction: AsyncRequestTransaction[object],
        body: bytes,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self._front = front
        self._keyed = keyed
        self._transaction = transaction
        self._asker = front.host.asker_on(transaction)
        self._body: bytes | None = body
        self._scope = scope
        self._receive = receive
        self._send = send
        self._caller = CallerState.WAITING
        self._asking = False
        loop = asyncio.get_running_loop()
        self._began: asyncio.Future[None] = loop.create_future()
        # The application's answer so far. `_over` says that it was sent, or that nothing will be sent.
        self._stage = Stage.COLLECTING
        self._whole: asyncio.Future[None] = loop.create_future()
        self._over = asyncio.Event()
        self._refusal: Exception | None = None
        self._status = 0
        self._headers: http.Headers = ()
        self._held = HeldBody(transaction.held_max)

    async def outlive_caller(self) -> None:
        """Run in a task that goes on when the caller leaves."""
        context = copy_context()
        work = self._front.host.tasks.spawn(self._work(), context)
        accept_s = self._keyed.accept_s
        try:
            if accept_s is None or not await self._accept_after(work, accept_s):
                await asyncio.shield(work)
        except asyncio.CancelledError:
            self._caller = CallerState.LEFT
            raise
        finally:
            if not work.done():
                work.add_done_callback(report)
            else:
                adopt(context)

    async def _accept_after(self, work: asyncio.Task[None], wait_s: int) -> bool:
        """Answer 202 when the work takes longer than the caller prefers to wait. The work goes on."""
        await asyncio.wait({work, self._began}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({work}, timeout=wait_s)
        if self._caller is not CallerState.WAITING or work.done() or not self._front.host.tasks.may_detach(work):
            return False
        self._caller = CallerState.ANSWERED
        await send_response(self._send, self._keyed.accepted())
        return True

    async def _work(self) -> None:
        try:
            begun = await self._front.host.begin(self._keyed, self._asker)
            match begun:
                case Run(lease):
                    if self._caller is CallerState.LEFT:  # nothing has begun, and there is no caller to answer
                        self._keyed.abandon(lease)
                    else:
                        await self._run(lease)
                case Answered(response):
                    await self._respond(response, (response.body,))
                case Unprotected():
                    body, self._body = self._body or b"", None
                    unprotected = AsgiExecution(self._front, self._keyed, body, self._scope, self._receive, self._send)
                    await unprotected.outlive_caller(begun)
                case _:
                    assert_never(begun)
        finally:
            try:
                await self._transaction.end()
            finally:
                self._held.close()

    async def _run(self, lease: Lease) -> None:
        self._began.set_result(None)
        self._operation = Operation(lease, transaction=self._transaction)
        if extensions := self._scope.get("extensions"):
            kept = {name: value for name, value in extensions.items() if name not in UNSTORABLE}
            self._scope["extensions"] = kept
        context = copy_context()
        app = asyncio.create_task(self._run_app(), context=context)
        try:
            await self._settle_with(app)
            self._over.set()
            await app
        except (NotExecuted, OutcomeUnknown):
            return
        finally:
            await _stop(app)
            adopt(context)

    async def _run_app(self) -> None:
        enter(self._operation)
        await self._front.app(self._scope, self._replay_body, self._take)

    async def _settle_with(self, app: asyncio.Task[None]) -> None:
        """Wait until the application has answered or ended, then end the transaction and answer."""
        await asyncio.wait({app, self._whole}, return_when=asyncio.FIRST_COMPLETED)
        if self._status >= 500:  # frameworks answer 500 for an exception and then raise it
            await asyncio.wait({app}, timeout=RAISING_S)
        error = _error_of(app)
        if error is not None and (self._status >= 500 or self._stage is Stage.COLLECTING):
            await self._finish_raised(error, self._stage is Stage.WHOLE)
        elif self._stage is Stage.WHOLE:
            await self._finish_whole()
        else:
            await self._finish(self._keyed.raised())
            which = f"{self._scope['method']} {self._scope['path']}"
            raise Unfinished(f"the application returned with its answer to {which} unfinished")

    async def _finish_whole(self) -> None:
        """The answer is whole. If it is invalid, the application's `send` raises that, after the settlement."""
        try:
            try:
                if self._status < 400:
                    await self._transaction.flush()
                done = self._judge()
            except Exception as error:
                self._refusal = error
                await self._finish_raised(error, False)
            else:
                await self._finish(done)
        except Exception as error:  # the server's `send` failed
            self._refusal = error

    async def _finish_raised(self, error: BaseException, answered: bool) -> None:
        """The application raised, and may have `answered` for that."""
        undone = self._operation.nothing_was_done or isinstance(error, tuple(self._keyed.policy.release_exceptions))
        if self._keyed.answers.declared(error) is None and (undone or not isinstance(error, Exception)):
            ending = Ending.NOTHING_DONE if isinstance(error, Exception) else Ending.INTERRUPTED
            if ending is Ending.NOTHING_DONE and answered:
                await self._finish(Ended(ending, None, self._response()))
            else:
                await self._settle(Ended(ending, None, NO_ANSWER))  # the framework answers, if there is a caller left
        else:
            answered = answered or (
                isinstance(error, Exception) and not self._status and await self._ask_own_handler(error)
            )
            response = self._response() if answered else None
            await self._finish(self._keyed.raised(error, response, too_large=self._too_large()))

    async def _ask_own_handler(self, error: Exception) -> bool:
        """Take the answer of the application's own handler, if it has one, and say whether that is whole."""
        answer = await ask_handler(self._scope, error)
        if answer is not None:
            self._asking = True
            with suppress(Exception):  # the framework raises `error` itself, also if answering for it fails
                await answer(self._scope, self._replay_body, self._take)
        return self._stage is Stage.WHOLE

    # What the application asks for and sends

    async def _replay_body(self) -> Message:
        """Give the application the body that was read, and, once its answer is complete, the client's departure."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._over.wait()
        with Outside():
            return await self._receive()

    async def _take(self, message: Message) -> None:
        """What the application sends. The first message that says so ends the answer; nothing changes it later."""
        kind = message["type"]
        if kind == DEBUG and self._caller is CallerState.WAITING:
            with Outside():
                await self._send(message)
        if self._stage is not Stage.COLLECTING:
            return
        if kind == "http.response.start":
            if self._status:
                raise RuntimeError("the application started its answer twice")
            self._status = message["status"]
            self._headers = tuple([(bytes(name), bytes(value)) for name, value in message.get("headers", ())])
        elif kind == "http.response.body":
            if not self._status:
                raise RuntimeError("the application sent a body before the start of its answer")
            self._held.add(message.get("body", b""))
            if not message.get("more_body", False):
                await self._complete_answer()

    async def _complete_answer(self) -> None:
        """Let the answer be settled, and return when it was sent; at once for an answer of 500 and above."""
        self._stage = Stage.WHOLE
        self._whole.set_result(None)
        if self._status < 500 and not self._asking:
            await self._over.wait()
        if self._refusal is not None:
            raise self._refusal

    def _judge(self) -> Ended:
        return self._keyed.answered(self._response(), self._operation, too_large=self._too_large())

    def _response(self) -> Response:
        """The whole answer, without a body that is too large to be kept."""
        return Response(self._status, self._headers, b"" if self._too_large() else self._held.whole())

    def _too_large(self) -> AnswerNotKept | None:
        return AnswerNotKept.ENDED if self._held.size > self._keyed.policy.result_max else None

    # How it ends

    async def _settle(self, done: Ended) -> Settlement:
        """End the transaction."""
        settlement = await self._front.host.settle(self._keyed, self._operation.lease, done, self._asker)
        self._stage = Stage.SETTLED
        return settlement

    async def _finish(self, done: Ended) -> None:
        """End the transaction, then answer. A body that was too large to keep is sent from where it is held."""
        settlement = await self._settle(done)
        response = self._keyed.answers.settled(settlement, done)
        is_held = not isinstance(settlement, Superseded) and not response.body
        is_long = is_held and self._held.size > self._keyed.policy.result_max
        await self._respond(response, self._held.chunks() if is_long else (response.body,))

    async def _respond(self, response: Response, parts: Iterable[bytes]) -> None:
        """Send the one answer of this request, unless its caller has left or was told 202."""
        if self._caller is not CallerState.WAITING:
            return
        self._caller = CallerState.ANSWERED
        with Outside():
            start = {"type": "http.response.start", "status": response.status, "headers": list(response.headers)}
            await self._send(start)
            before: bytes | None = None
            for part in parts:
                if before is not None:
                    await self._send({"type": "http.response.body", "body": before, "more_body": True})
                before = part
            await self._send({"type": "http.response.body", "body": before or b"", "more_body": False})


def _error_of(app: asyncio.Task[None]) -> BaseException | None:
    """The exception of the application, if it has ended with one."""
    if app.cancelled():
        return asyncio.CancelledError()
    return app.exception() if app.done() else None


async def _stop(app: asyncio.Task[None]) -> None:
    """Cancel the application and wait for its end: it must not use the connection while its transaction is rolled back.

    So a request that is cancelled again goes on waiting, and cancels the application again.
    """
    cancelled: asyncio.CancelledError | None = None
    while not app.done():
        app.cancel()
        try:
            await asyncio.wait({app})
        except asyncio.CancelledError as again:
            cancelled = again
    if cancelled is not None:
        raise cancelled
