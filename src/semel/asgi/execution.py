"""The work of one keyed request: its answer is collected, settled, and only then sent."""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import copy_context
from enum import Enum, auto
from typing import TYPE_CHECKING

from semel.asgi.answer import CollectedAnswer
from semel.asgi.handlers import ask_handler
from semel.asgi.types import Message, Receive, Scope, Send, send_response
from semel.codecs.responses import AnswerNotKept
from semel.core import http
from semel.core.decisions import STORED, Run, Settlement, Superseded
from semel.core.http import Response
from semel.core.tables import Ending
from semel.errors import NotExecuted, OutcomeUnknown
from semel.http.admission import Keyed
from semel.http.answers import NO_ANSWER, Ended, Unfinished, known_of, without_directives
from semel.runtime.calls import Unprotected
from semel.runtime.operation import Operation, Outside, adopt, enter
from semel.runtime.tasks import report

if TYPE_CHECKING:
    from semel.asgi.middleware import IdempotencyMiddleware

UNSTORABLE = frozenset(
    f"http.response.{name}" for name in ("pathsend", "zerocopysend", "trailers", "push", "early_hint")
)
"""Extensions whose answers could not be stored: for a keyed request they are removed from the scope."""
DEBUG = "http.response.debug"
"""A message for an application's test client, beside the answer (Starlette: the template and its context)."""


class Phase(Enum):
    """How far the attempt is. It never goes back."""

    RUNNING = auto()
    """The application runs, and has not answered."""
    ANSWERED = auto()
    """Its answer is whole, and waits to be settled."""
    SETTLING = auto()
    """How it ended is decided, and the store is being asked. The application cannot change it any more."""
    SETTLED = auto()
    """The store has replied."""


class AnswerSent(Enum):
    """What was sent to the caller."""

    NOTHING = auto()
    ANSWER = auto()
    """The one answer of this request, or 202."""
    STREAM = auto()
    """The application's own messages, as they come: its answer is too large to keep, and a tombstone is stored."""


class AsgiExecution:
    """Runs the application, settles its lease, answers. The caller may leave at any moment; begun work goes on.

    The application runs in a task of its own. All mutable state of the request is here.
    """

    __slots__ = (
        "_answer",
        "_body",
        "_caller_left",
        "_error",
        "_finished",
        "_front",
        "_kept",
        "_keyed",
        "_late",
        "_lease",
        "_over",
        "_pending",
        "_phase",
        "_receive",
        "_scope",
        "_send",
        "_sent",
        "_stands",
        "operation",
    )

    def __init__(
        self, front: IdempotencyMiddleware, keyed: Keyed, body: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._front = front
        self._keyed = keyed
        self._body: bytes | None = body
        self._scope = scope
        self._receive = receive
        self._send = send
        self._caller_left = False
        self._sent = AnswerSent.NOTHING
        self._answer = CollectedAnswer()
        self._phase = Phase.RUNNING
        self._pending: Ended | None = None
        """How a whole answer will be settled."""
        self._stands = False
        """Whether that answer stands even if the application raises after it."""
        self._error: Exception | None = None
        """The exception of the application, while the application's handler answers for it."""
        self._late: asyncio.Task[None] | None = None
        """The task that settles and sends while the application goes on."""
        self._finished: asyncio.Future[None] | None = None
        """Done when the answer was settled and sent. It is set when settling begins."""

    async def outlive_caller(self, begun: Run | Unprotected) -> None:
        """Run the work in a task that goes on when the caller leaves."""
        self._lease = begun.lease
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        running = self._execute() if isinstance(begun, Run) else self._run_unprotected()
        context = copy_context()
        work = self._front.host.tasks.spawn(running, context, ended=self._end_work, at_once=True)
        accept_s = self._keyed.accept_s
        try:
            if accept_s is None or not await self._accept_after(work, accept_s):
                await self._over  # not the work itself: cancelling the caller cancels what it awaits
                adopt(context)
                if work.done():  # unless the application's task factory wraps the work in further tasks
                    work.result()
        except asyncio.CancelledError:
            self._caller_left = True
            raise
        finally:
            if not work.done():  # the caller waits no more, so a failure of the work has to be reported
                work.add_done_callback(report)

    def _end_work(self, work: asyncio.Task[None]) -> None:
        """The work has ended. The caller waits on only if the answer is still being stored."""
        self._front.host.tasks.forget(work)
        if self._finished is None or self._finished.done():
            self._end()
        else:
            self._finished.add_done_callback(self._end)

    def _end(self, _: object = None) -> None:
        if not self._over.done():  # by the caller's cancellation, or by an earlier call
            self._over.set_result(None)

    async def _accept_after(self, work: asyncio.Task[None], wait_s: int) -> bool:
        """Answer 202 when the work takes longer than the caller prefers to wait. The work goes on."""
        await asyncio.wait([self._over], timeout=wait_s)
        if self._sent is not AnswerSent.NOTHING or work.done() or not self._front.host.tasks.may_detach(work):
            return False
        self._sent = AnswerSent.ANSWER
        await send_response(self._send, self._keyed.accepted())
        return True

    async def _run_unprotected(self) -> None:
        self._sent = AnswerSent.STREAM
        enter(Operation(self._lease))
        await self._front.app(self._scope, self._receive_again, self._send_marked)

    async def _execute(self) -> None:
        front, keyed, lease = self._front, self._keyed, self._lease
        if self._caller_left:  # nothing has begun, and there is no caller to answer
            keyed.abandon(lease)
            return
        self._kept = front.host.keeper.keep(lease, lease_ms=keyed.policy.lease_ms)
        self.operation = Operation(lease, self._kept)
        if self._scope.get("extensions"):
            self._scope["extensions"] = {
                name: value for name, value in self._scope["extensions"].items() if name not in UNSTORABLE
            }
        enter(self.operation)
        try:
            await front.app(self._scope, self._receive_again, self.send)
        except BaseException as error:
            if not self._stands:
                await self._finish_raised(error)
            elif self._phase is Phase.ANSWERED or isinstance(error, Exception):
                await self._finish()
            if not isinstance(error, NotExecuted | OutcomeUnknown):
                raise
        await self._finish()
        if self._late is not None:  # let its failure be raised
            await asyncio.shield(self._late)
        if self._phase is Phase.RUNNING:
            await self._finish(keyed.answers.raised())
            which = f"{self._scope['method']} {self._scope['path']}"
            raise Unfinished(f"the application returned with its answer to {which} unfinished")
        self._end()  # now, not when the task has ended: the caller goes on one step of the event loop earlier

    async def _finish_raised(self, error: BaseException) -> None:
        """The application raised, and has given no answer that stands."""
        keyed = self._keyed
        if (declared := keyed.answers.declared(error)) is not None:
            await self._finish(declared)
        elif isinstance(error, tuple(keyed.policy.release_exceptions)):
            await self._finish_undone()
        elif not isinstance(error, Exception):
            # Truly cancelled: the outcome is unknown, so renewal stops and the lease lapses.
            await self._leave(Ending.INTERRUPTED)
        elif self.operation.nothing_was_done:
            await self._finish_undone()
        elif self._phase is Phase.ANSWERED:
            await self._finish(keyed.raised(error, self._answer.response()))
        else:
            await self._answer_for(error)

    async def _finish_undone(self) -> None:
        """The application raised, and nothing was done. Its framework answers, unless it has answered already."""
        if self._pending is None:
            await self._leave(Ending.NOTHING_DONE)
        else:
            await self._finish(Ended(Ending.NOTHING_DONE, None, self._pending.response))

    async def _answer_for(self, error: Exception) -> None:
        """Finish with the answer of the application's own handler, if it has one and no answer was begun."""
        handle = None if self._answer.status else await ask_handler(self._scope, error)
        if handle is not None:
            self._error = error
            with contextlib.suppress(Exception):  # the framework raises `error` itself, also if answering for it fails
                await handle(self._scope, self._receive_again, self.send)
        await self._finish(self._keyed.raised(error) if self._phase is Phase.RUNNING else None)

    # What the application asks for and sends

    async def _receive_again(self) -> Message:
        """Give the application the body that was read, and, once its answer is complete, the client's departure."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._answer.wait_until_whole()
        with Outside():
            return await self._receive()

    async def _send_marked(self, message: Message) -> None:
        """Fail open: send the application's own answer, with the mark that nothing was stored."""
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*without_directives(message.get("headers", ())), http.NOT_STORED]}
        with Outside():
            await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._answer.end()

    async def send(self, message: Message) -> None:
        """Take what the application sends. Its last message ends the answer; nothing changes it later."""
        kind = message["type"]
        more = kind != "http.response.body" or message.get("more_body", False)
        try:
            if kind == DEBUG:
                if self._sent is AnswerSent.NOTHING:
                    await self._stream(message)
            elif self._phase is not Phase.RUNNING:
                if self._sent is AnswerSent.STREAM:
                    await self._stream(message)
            elif kind == "http.response.start":
                self._answer.start(message)
            elif kind == "http.response.body":
                self._answer.add(message)
                if self._answer.size > self._keyed.policy.result_max:
                    await self._overflow(more)
                elif not more:
                    self._complete_answer()
        finally:
            if not more:
                self._answer.end()

    async def _stream(self, message: Message) -> None:
        if not self._caller_left:
            with Outside():
                await self._send(message)

    def _complete_answer(self) -> None:
        """The answer is whole. It is settled after the application has returned, outside of its call stack."""
        keyed, response, error = self._keyed, self._answer.response(), self._error
        self._pending = keyed.answered(response, self.operation) if error is None else keyed.raised(error, response)
        self._phase = Phase.ANSWERED
        # Frameworks answer 500 for an exception and then raise it, before the next step of the event loop.
        self._stands = response.status < 500
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """The application goes on after its answer: settle that now, so that the caller does not wait for the rest."""
        if self._phase is Phase.ANSWERED:
            self._stands = True
            self._late = self._front.host.tasks.spawn(self._finish())

    async def _overflow(self, more: bool) -> None:
        """Too large to keep: a tombstone is stored first, then the answer streams on, whole."""
        answers, answer = self._keyed.answers, self._answer
        known = known_of(answer.headers, answer.size) if more else AnswerNotKept.ENDED
        done = answers.too_large(
            Response(answer.status, answer.headers, b""),
            self._keyed.policy,
            nothing_done=self.operation.nothing_was_done,
            known=known,
            raised=self._error is not None,
        )
        settlement: Settlement = await asyncio.shield(self._front.host.tasks.spawn(self._settle(done)))
        final = answers.settled(settlement, done)
        body = answer.take_body()
        if isinstance(settlement, Superseded):  # the caller gets the store's answer; this one is dropped
            await self._respond(final)
        elif self._sent is AnswerSent.NOTHING:
            self._sent = AnswerSent.STREAM
            answer.end()  # nothing depends on the rest, so an endless stream may end when its caller leaves
            await self._stream({"type": "http.response.start", "status": final.status, "headers": list(final.headers)})
            await self._stream({"type": "http.response.body", "body": body, "more_body": more})

    # How it ends

    async def _finish(self, done: Ended | None = None) -> None:
        """Settle with `done`, or with the pending answer, then answer.

        The first call decides, and every further call waits for it. Cancelling a call does not stop the settling.
        """
        done = done or self._pending
        if done is None or self._phase in (Phase.SETTLING, Phase.SETTLED):
            while self._finished is not None and not self._finished.done():
                await asyncio.shield(self._finished)
            return
        finished = self._finished = asyncio.get_running_loop().create_future()
        try:
            settlement = await self._settle(done)
            await self._respond(
                done.response if settlement is STORED else self._keyed.answers.settled(settlement, done)
            )
        except asyncio.CancelledError:
            if not self._is_settled():  # the store's reply was lost: the same owner asks again
                again = self._front.host.tasks.spawn(self._finish_again(done))
                again.add_done_callback(lambda _: finished.set_result(None))
                raise
            finished.set_result(None)
            raise
        except BaseException:
            finished.set_result(None)
            raise
        finished.set_result(None)

    def _is_settled(self) -> bool:
        return self._phase is Phase.SETTLED

    async def _finish_again(self, done: Ended) -> None:
        await self._respond(self._keyed.answers.settled(await self._settle(done), done))

    async def _settle(self, done: Ended) -> Settlement:
        self._phase, self._pending = Phase.SETTLING, None
        self._front.host.keeper.stop(self._kept)
        settlement = await self._front.host.settle(self._keyed, self._lease, done)
        self._phase = Phase.SETTLED
        return settlement

    async def _leave(self, ending: Ending) -> None:
        """Settle without an answer of ours: the framework may give one. An answer that was given stands."""
        if self._phase in (Phase.RUNNING, Phase.ANSWERED):
            await self._settle(Ended(ending, None, NO_ANSWER))
        elif ending is not Ending.INTERRUPTED:
            await self._finish()

    async def _respond(self, response: Response) -> None:
        """Send the one answer of this exchange."""
        if self._sent is AnswerSent.NOTHING:
            self._sent = AnswerSent.ANSWER
            if not self._caller_left:
                with Outside():
                    await send_response(self._send, response)
