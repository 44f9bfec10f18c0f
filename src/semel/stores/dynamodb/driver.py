"""Sends requests by botocore, which is below boto3, and tells what the replies mean. Only its public names are used.

botocore's own retries are off. It would repeat a write whose reply was lost, and then be refused by what it wrote
itself; the owner in the item would still tell, but no deadline would hold.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache, partial
from typing import Any, TypeVar

import botocore.config
import botocore.loaders
import botocore.session
from botocore.exceptions import ClientError

from semel.core.effects import Complete, Effect, Pause, Plan, Release
from semel.core.records import Acquired
from semel.errors import StoreTimeout, StoreUnavailable
from semel.runtime.deadline import find_due_s, tell_due
from semel.runtime.drive import drive
from semel.runtime.local import Once
from semel.store import Clock
from semel.stores.dynamodb import operate, schema
from semel.stores.dynamodb.clock import CheckedClock
from semel.stores.dynamodb.failures import CONDITION_FAILED, code_of, failure_of
from semel.stores.dynamodb.queries import ConditionFailed, Request, Requests
from semel.stores.dynamodb.scripts import DynamodbScripts
from semel.stores.dynamodb.settings import DynamodbSettings

T = TypeVar("T")
SERVICE = "dynamodb"


@cache
def load_models() -> Any:
    """botocore's descriptions of the service, read from their files once in a process."""
    return botocore.loaders.create_loader()


class DynamodbLinkState:
    """What both faces know about their table."""

    def __init__(self, settings: DynamodbSettings, clock: Clock | None) -> None:
        self.clock = CheckedClock(settings)
        self.now_ms: Clock = clock or self._read_clock
        self._is_checked = clock is None
        self._settings = settings
        self._scripts = DynamodbScripts(settings.margin_ms if self._is_checked else 0, settings.read_first)

    def answer(self, call: Effect[T]) -> Plan[T]:
        """Answer a call by a clock that is right. A claim that a wrong one has granted is given back."""
        now_ms = self.now_ms()
        reply: T = yield from self._scripts.answer(call, now_ms)
        if self._is_checked and self.clock.is_wrong():
            self._forget_ready()
            if isinstance(reply, Acquired):
                yield from self._scripts.answer(Release(reply.lease), now_ms)
            if not isinstance(call, Complete | Release):  # what was done stays done
                raise self.clock.refusal()
        return reply

    def purge(self, limit: int) -> Plan[int]:
        return (yield from operate.purge(self._scripts, limit, self.now_ms()))

    def _get_ready(self) -> Plan[None]:
        """The first request of a process: is the table there, and is the clock right?"""
        self.clock.restart()
        yield from schema.ready(self._settings)
        if self._is_checked and self.clock.is_wrong():
            raise self.clock.refusal()

    def _forget_ready(self) -> None:
        raise NotImplementedError

    def _read_clock(self) -> int:
        return self.clock.now_ms()

    def _choices(self, config: type[botocore.config.Config]) -> dict[str, Any]:
        """The arguments of a client."""
        settings = self._settings
        return {
            "region_name": settings.region,
            "endpoint_url": settings.endpoint_url,
            "config": config(
                connect_timeout=settings.timeout_s,
                read_timeout=settings.late_s,
                max_pool_connections=settings.concurrency,
                retries={"total_max_attempts": 1},
            ),
        }

    def _arguments(self, request: Request) -> dict[str, Any]:
        return {"TableName": self._settings.table, **request.arguments}

    def _read(self, sent_ms: int, answer: Mapping[str, Any]) -> None:
        told = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        self.clock.compare(sent_ms, self.clock.now_ms(), told.get("date"))

    def _explain(self, sent_ms: int, error: Exception) -> ConditionFailed:
        """What a failed request means. Only a condition that did not hold is an answer."""
        if isinstance(error, ClientError):
            self._read(sent_ms, error.response)
            if code_of(error) == CONDITION_FAILED:
                return ConditionFailed(error.response.get("Item"))
        raise failure_of(error, self._settings) from error

    def _late(self) -> StoreTimeout:
        return StoreTimeout(f"{self._settings.shown}: no answer within {self._settings.timeout_s:g} s")


class DynamodbLink(DynamodbLinkState):
    """The client of one process. Each request has a thread, so that its caller need not wait longer than it may."""

    def __init__(self, settings: DynamodbSettings, clock: Clock | None) -> None:
        super().__init__(settings, clock)
        session = botocore.session.get_session()
        session.register_component("data_loader", load_models())
        try:
            self._client: Any = session.create_client(SERVICE, **self._choices(botocore.config.Config))
        except Exception as error:
            raise failure_of(error, settings) from error
        self._threads = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="semel-dynamodb")
        self._unanswered: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self.ready = Once()

    def run(self, plan: Plan[T], *, is_long: bool = False) -> T:
        """A call has one deadline for all that it asks; a long one has it for each request."""
        if self._settings.migrate and not self.ready.done:
            self._make_ready(None)  # a new table takes longer than a call may
        due_s = find_due_s(time.monotonic(), self._settings.timeout_s)
        try:
            if not self.ready.done:
                self._make_ready(due_s)
            return drive(plan, partial(self._perform, None if is_long else due_s))
        except StoreUnavailable as failure:
            tell_due(failure, due_s)
            raise

    def _make_ready(self, due_s: float | None) -> None:
        self.ready.do(lambda: drive(self._get_ready(), partial(self._perform, due_s)))

    def run_alone(self, plan: Plan[T]) -> T:
        """Without a look at the table first, which may not be there."""
        return drive(plan, partial(self._perform, None))

    def _forget_ready(self) -> None:
        self.ready = Once()

    def await_unanswered(self) -> None:
        """Sleep until the requests whose callers have left by now are answered, or given up."""
        with self._lock:
            unanswered = list(self._unanswered)
        wait(unanswered)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _perform(self, due_s: float | None, effect: Effect[Any]) -> Any:
        match effect:
            case Request():
                return self._await([effect], due_s)[0]
            case Requests(requests):
                return self._await(requests, due_s)
            case Pause(pause_ms):
                time.sleep(pause_ms / 1000)
            case other:
                raise TypeError(f"no table performs {other!r}")

    def _await(self, requests: Sequence[Request], due_s: float | None) -> list[Any]:
        if due_s is None:
            due_s = time.monotonic() + self._settings.timeout_s
        try:
            futures = [self._threads.submit(self._ask, request) for request in requests]
        except RuntimeError as error:  # closed meanwhile
            raise StoreUnavailable(f"{self._settings.shown}: {error}") from error
        for late in wait(futures, due_s - time.monotonic()).not_done:
            if not late.cancel():
                with self._lock:
                    self._unanswered.add(late)
                late.add_done_callback(self._forget)
        if any(future.cancelled() or not future.done() for future in futures):
            raise self._late()
        return [future.result() for future in futures]

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._unanswered.discard(future)

    def _ask(self, request: Request) -> Any:
        sent_ms = self.clock.now_ms()
        try:
            answer = getattr(self._client, request.operation)(**self._arguments(request))
        except Exception as error:
            return self._explain(sent_ms, error)
        self._read(sent_ms, answer)
        return answer
