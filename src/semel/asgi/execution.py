"""The work of one keyed request: its answer is collected, settled, and only then sent."""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import copy_context
from typing import TYPE_CHECKING

from semel.asgi.handlers import ask_handler
from semel.asgi.types import Message, Receive, Scope, Send, send_response
from semel.codecs.responses import NotKept
from semel.core import http
from semel.core.decisions import STORED, Run, Settlement, Superseded
from semel.core.http import Response
from semel.core.tables import Ending
from semel.errors import NotExecuted, OutcomeUnknown
from semel.http.admission import Keyed, Unprotected
from semel.http.answers import NO_ANSWER, Ended, known_of, without_directives
from semel.runtime.operation import Operation, Outside, adopt, enter
from semel.runtime.tasks import report

if TYPE_CHECKING:
    from semel.asgi.middleware import IdempotencyMiddleware

UNSTORABLE = frozenset(
    f"http.response.{name}" for name in ("pathsend", "zerocopysend", "trailers", "push", "early_hint")
)
"""Extensions whose answers could not be stored: for a keyed request the server is said to lack them."""
DEBUG = "http.response.debug"
"""What an application tells the client of its tests beside its answer (Starlette: the template and its context)."""


class Unfinished(RuntimeError):
    """The application returned before its answer was complete."""


class Execution:
    """Runs the application, settles its lease, answers. The caller may leave at any moment; what has begun goes on.

    The application runs in a task of its own. Everything about the request that changes is here.
    """

    __slots__ = (
        "_answered",
        "_answering",
        "_app_answered",
        "_body",
        "_caller_left",
        "_chunks",
        "_ended",
        "_error",
        "_finished",
        "_finishing",
        "_front",
        "_headers",
        "_kept",
        "_keyed",
        "_late",
        "_lease",
        "_over",
        "_pending",
        "_receive",
        "_scope",
        "_send",
        "_settled",
        "_size",
        "_stands",
        "_status",
        "_streaming",
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
        self._caller_left = self._answering = self._streaming = self._app_answered = False
        self._answered: asyncio.Event | None = None
        # The answer, as the application sends it.
        self._status = self._size = 0
        self._headers: http.Headers = ()
        self._chunks: list[bytes] = []
        self._pending: Ended | None = None
        self._stands = False
        # What the application raised, while its handler answers for that.
        self._error: Exception | None = None
        self._late: asyncio.Task[None] | None = None
        # How far its end is: decided, acknowledged by the store; being stored and sent, and who waits for that.
        self._ended = self._settled = self._finishing = False
        self._finished: asyncio.Future[None] | None = None

    async def outlived(self, begun: Run | Unprotected) -> None:
        """Run the work in a task that outlives its caller."""
        self._lease = begun.lease
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        running = self._execute() if isinstance(begun, Run) else self._run_unprotected()
        context = copy_context()
        work = self._front.host.tasks.spawn(running, context, ended=self._work_ended, at_once=True)
        accept_s = self._keyed.accept_s
        try:
            if accept_s is None or not await self._accepted_after(work, accept_s):
                await self._over  # not the work itself: whoever is cancelled takes along what it waits for
                adopt(context)
                if work.done():  # unless whoever makes tasks here puts more into them than the work
                    work.result()
        except asyncio.CancelledError:
            self._caller_left = True
            raise
        finally:
            if not work.done():  # nobody waits for it any more, so nobody else would tell how it failed
                work.add_done_callback(report)

    def _work_ended(self, work: asyncio.Task[None]) -> None:
        """The work has ended, and there is nothing to wait for unless somebody is still storing its answer."""
        self._front.host.tasks.forget(work)
        if self._finishing:
            self._when_finished().add_done_callback(self._is_over)
        elif not self._over.done():  # by the caller's cancellation, or before
            self._over.set_result(None)

    def _is_over(self, _: object) -> None:
        if not self._over.done():
            self._over.set_result(None)

    async def _accepted_after(self, work: asyncio.Task[None], wait_s: int) -> bool:
        """Answer 202 when the work takes longer than the caller prefers to wait. The work goes on."""
        await asyncio.wait([self._over], timeout=wait_s)
        if self._answering or work.done() or not self._front.host.tasks.may_detach(work):
            return False
        self._answering = True
        await send_response(self._send, self._keyed.accepted())
        return True

    async def _run_unprotected(self) -> None:
        self._answering = True  # by the application
        enter(Operation(self._lease))
        await self._front.app(self._scope, self._replayed_receive, self._marked_send)

    async def _execute(self) -> None:
        front, keyed, lease = self._front, self._keyed, self._lease
        if self._caller_left:  # nothing has begun, and nobody would get the answer
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
            await front.app(self._scope, self._replayed_receive, self.send)
        except BaseException as error:
            if not self._stands:
                await self._raised(error)
            elif self._pending is not None or isinstance(error, Exception):
                await self._finish()
            if not isinstance(error, NotExecuted | OutcomeUnknown):
                raise
        if self._finishing or not self._settled:
            await self._finish()
        if self._late is not None:  # who answered meanwhile may have failed
            await asyncio.shield(self._late)
        if not self._ended:
            await self._finish(keyed.answers.raised())
            which = f"{self._scope['method']} {self._scope['path']}"
            raise Unfinished(f"the application returned with its answer to {which} unfinished")
        if not self._over.done():  # now, and not when the task has ended: its caller goes on one step earlier
            self._over.set_result(None)

    async def _raised(self, error: BaseException) -> None:
        """The application raised, and has not given an answer that stands."""
        keyed = self._keyed
        if (declared := keyed.answers.declared(error)) is not None:
            await self._finish(declared)
        elif isinstance(error, tuple(keyed.policy.release_exceptions)):
            await self._undone()
        elif not isinstance(error, Exception):
            # Truly cancelled: nobody may say how it ended, so renewal stops and the lease lapses.
            await self._leave(Ending.INTERRUPTED)
        elif self.operation.nothing_was_done:
            await self._undone()
        elif self._pending is not None:
            await self._finish(keyed.raised(error, self._response()))
        else:
            await self._answer_for(error)

    async def _undone(self) -> None:
        """The application raised, and nothing was done. Its framework answers, if it has not done so already."""
        if self._pending is None:
            await self._leave(Ending.NOTHING_DONE)
        else:
            await self._finish(Ended(Ending.NOTHING_DONE, None, self._pending.response))

    async def _answer_for(self, error: Exception) -> None:
        """Finish with the answer of the application's own handler, if it has one and no answer was begun."""
        answer = None if self._status else await ask_handler(self._scope, error)
        if answer is not None:
            self._error = error
            with contextlib.suppress(Exception):  # the framework raises `error`, however the answer to it ends
                await answer(self._scope, self._replayed_receive, self.send)
        if self._pending is None and not self._ended:
            await self._finish(self._keyed.raised(error))
        else:
            await self._finish()

    # What the application asks for and sends

    async def _replayed_receive(self) -> Message:
        """The body that was read. Later the application learns that the client left, once its answer is complete."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if not self._app_answered:
            if self._answered is None:
                self._answered = asyncio.Event()
            await self._answered.wait()
        with Outside():
            return await self._receive()

    def _whole(self) -> None:
        """The application's answer is complete."""
        self._app_answered = True
        if self._answered is not None:
            self._answered.set()

    async def _marked_send(self, message: Message) -> None:
        """Fail open: the application's own answer, with the mark that nothing was stored."""
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*without_directives(message.get("headers", ())), http.NOT_STORED]}
        with Outside():
            await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._whole()

    async def send(self, message: Message) -> None:
        """What the application sends. The first message that says so ends the answer; nothing changes it later."""
        kind = message["type"]
        more = kind != "http.response.body" or message.get("more_body", False)
        try:
            if kind == DEBUG:
                if not self._answering:
                    await self._stream(message)
            elif self._ended or self._pending is not None:
                if self._streaming:
                    await self._stream(message)
            elif kind == "http.response.start":
                if self._status:
                    raise RuntimeError("the application started its answer twice")
                self._status = message["status"]
                self._headers = tuple([(bytes(name), bytes(value)) for name, value in message.get("headers", ())])
            elif kind == "http.response.body":
                if not self._status:
                    raise RuntimeError("the application sent a body before the start of its answer")
                self._chunks.append(chunk := message.get("body", b""))
                self._size += len(chunk)
                if self._size > self._keyed.policy.result_max:
                    await self._overflow(more)
                elif not more:
                    self._collected()
        finally:
            if not more:
                self._whole()

    async def _stream(self, message: Message) -> None:
        if not self._caller_left:
            with Outside():
                await self._send(message)

    def _collected(self) -> None:
        """The answer is whole. It is settled when the application has returned, and its stack is not in the way."""
        response, error = self._response(), self._error
        self._pending = (
            self._keyed.answered(response, self.operation) if error is None else self._keyed.raised(error, response)
        )
        # Frameworks answer 500 for an exception and then let it go on: it comes before the next step of the loop.
        self._stands = response.status < 500
        asyncio.get_running_loop().call_soon(self._goes_on)

    def _response(self) -> Response:
        return Response(self._status, self._headers, b"".join(self._chunks))

    def _goes_on(self) -> None:
        """The application has not returned in the step in which it answered: nobody waits for the rest of it."""
        if self._pending is not None:
            self._stands = True
            self._late = self._front.host.tasks.spawn(self._finish())

    async def _overflow(self, more: bool) -> None:
        """Too large to keep: a tombstone is stored first, then the answer streams on, whole."""
        answers, response = self._keyed.answers, Response(self._status, self._headers, b"")
        known = known_of(self._headers, self._size) if more else NotKept.ENDED
        undone = self.operation.nothing_was_done
        raised = self._error is not None
        done = answers.too_large(response, self._keyed.policy, nothing_done=undone, known=known, raised=raised)
        settlement: Settlement = await asyncio.shield(self._front.host.tasks.spawn(self._settle(done)))
        final = answers.settled(settlement, done)
        body = b"".join(self._chunks)
        self._chunks.clear()
        if isinstance(settlement, Superseded):  # the store's answer goes out, this one nowhere
            await self._respond(final)
        elif not self._answering:
            self._answering = self._streaming = True
            self._whole()  # nothing depends on the rest: an endless stream may end when its caller leaves
            await self._stream({"type": "http.response.start", "status": final.status, "headers": list(final.headers)})
            await self._stream({"type": "http.response.body", "body": body, "more_body": more})

    # How it ends

    async def _finish(self, done: Ended | None = None) -> None:
        """Settle with `done`, or with the answer that is pending, then answer.

        The first call decides, and every call waits for it. Cancelling whoever waits does not stop it.
        """
        done, self._pending = done or self._pending, None
        if done is None or self._ended:
            while self._finishing:
                await asyncio.shield(self._when_finished())
            return
        self._finishing = True
        try:
            settlement = await self._settle(done)
            await self._respond(
                done.response if settlement is STORED else self._keyed.answers.settled(settlement, done)
            )
        except asyncio.CancelledError:
            if not self._settled:  # the store's reply was lost: the same owner asks again, and is answered alike
                self._front.host.tasks.spawn(self._finish_again(done)).add_done_callback(self._is_finished)
                raise
            self._is_finished()
            raise
        except BaseException:
            self._is_finished()
            raise
        self._is_finished()

    def _is_finished(self, _: object = None) -> None:
        self._finishing = False
        if self._finished is not None:
            self._finished.set_result(None)

    def _when_finished(self) -> asyncio.Future[None]:
        """For those who have to wait, which are few."""
        if self._finished is None:
            self._finished = asyncio.get_running_loop().create_future()
        return self._finished

    async def _finish_again(self, done: Ended) -> None:
        await self._respond(self._keyed.answers.settled(await self._settle(done), done))

    async def _settle(self, done: Ended) -> Settlement:
        self._ended, self._pending = True, None
        self._front.host.keeper.stop(self._kept)
        settlement = await self._front.host.settle(self._keyed, self._lease, done)
        self._settled = True
        return settlement

    async def _leave(self, ending: Ending) -> None:
        """Settle without an answer: the framework, or nobody, gives one. If an answer was given already, it stands."""
        if not self._ended:
            await self._settle(Ended(ending, None, NO_ANSWER))
        elif ending is not Ending.INTERRUPTED:
            await self._finish()

    async def _respond(self, response: Response) -> None:
        """Send the one answer of this exchange."""
        if not self._answering:
            self._answering = True
            if not self._caller_left:
                with Outside():
                    await send_response(self._send, response)
