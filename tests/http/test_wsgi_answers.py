"""The ways a WSGI application may answer, and what becomes of an answer that is too large."""

import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from io import BytesIO
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest
from werkzeug.debug import DebuggedApplication
from wsgi_calls import STORED, TEXT, FaultyStore, Served, Started, Work, call, environ_of, in_thread, raising, text

from semel import NotExecuted, OutcomeUnknown, Policy
from semel.core.effects import Claim, Complete, Read
from semel.runtime.operation import current_operation
from semel.runtime.perform import performer
from semel.stores.memory import MemoryStore
from semel.wsgi import IdempotencyMiddleware

Environ = WSGIEnvironment
SMALL = Policy(result_max=100)


def test_write_counts_as_the_answer() -> None:
    def answering(environ: Environ, start_response: StartResponse) -> list[bytes]:
        write = start_response("200 OK", [TEXT])
        write(b"one ")
        write(b"two ")
        return [b"three"]

    served = Served(answering)
    assert served().body == served().body == b"one two three"
    assert served.work.effects == 1


def test_start_response_may_come_with_the_first_part() -> None:
    def answering(environ: Environ, start_response: StartResponse) -> Iterator[bytes]:
        start_response("202 Accepted", [TEXT])
        yield b"lazy"

    served = Served(answering)
    assert (served().kept, served().replayed) == (served().kept, True)
    assert served().body == b"lazy"


def test_an_error_page_replaces_an_answer_that_has_not_begun() -> None:
    def answering(environ: Environ, start_response: StartResponse) -> list[bytes]:
        start_response("200 OK", [TEXT, ("X-Half", "1")])
        try:
            raise RuntimeError("boom")
        except RuntimeError:
            start_response("500 Internal Server Error", [TEXT], sys.exc_info())
        return [b"sorry"]

    served = Served(answering)
    first = served()
    assert (first.line, first.headers, first.body) == ("500 Internal Server Error", [TEXT], b"sorry")
    assert served().kept == first.kept


def test_an_error_page_after_the_answer_has_begun_is_raising() -> None:
    def answering(environ: Environ, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", [TEXT])
        yield b"half"
        try:
            raise RuntimeError("boom")
        except RuntimeError:
            start_response("500 Internal Server Error", [TEXT], sys.exc_info())

    first = Served(answering)()
    assert (first.kind, str(first.closing)) == ("internal-error", "boom")


def test_starting_twice_is_raising() -> None:
    def app(environ: Environ, start_response: StartResponse) -> list[bytes]:
        start_response("200 OK", [TEXT])
        start_response("200 OK", [TEXT])
        return []

    answer = call(IdempotencyMiddleware(app, store="memory://", identify=lambda environ: ""))
    assert answer.kind == "internal-error"
    assert "again without exc_info" in str(answer.closing)


def test_answering_before_starting_is_raising() -> None:
    app = IdempotencyMiddleware(lambda environ, start_response: [b"x"], store="memory://", identify=lambda environ: "")
    answer = call(app)
    assert (answer.kind, type(answer.closing)) == ("internal-error", AssertionError)


@pytest.mark.parametrize("size", [50, 50_000])
def test_files_are_read_and_closed(size: int) -> None:
    file = BytesIO(b"x" * size)

    class OfTheServer:
        """uWSGI's cannot be read from Python."""

    def answering(environ: Environ, start_response: StartResponse) -> Any:
        start_response("200 OK", [TEXT])
        return environ["wsgi.file_wrapper"](file)

    served = Served(answering, policy=Policy(result_max=1000))
    answer = served(**{"wsgi.file_wrapper": OfTheServer})
    assert answer.body == b"x" * size
    assert file.closed


def test_background_work_at_the_end_comes_after_the_answer_and_cannot_change_it() -> None:
    steps: list[str] = []

    class Parts(list[bytes]):
        def close(self) -> None:
            steps.append("background")
            raise RuntimeError("in the background")

    def app(environ: Environ, start_response: StartResponse) -> Parts:
        start_response("200 OK", [TEXT])
        return Parts([b"done"])

    middleware = IdempotencyMiddleware(app, store="memory://", identify=lambda environ: "")
    started = Started()
    iterable = middleware(environ_of(), started)
    assert list(iterable) == [b"done"]
    assert (len(started.calls), steps) == (1, [])
    with pytest.raises(RuntimeError, match="in the background"):
        iterable.close()  # type: ignore[attr-defined]
    iterable.close()  # type: ignore[attr-defined]
    assert steps == ["background"]
    assert call(middleware).replayed


def test_an_answer_that_is_too_large_is_delivered_whole_and_lazily_after_its_tombstone() -> None:
    produced: list[int] = []

    def answering(environ: Environ, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", [TEXT, ("X-Kept", "no")])
        for number in range(1000):
            produced.append(number)
            yield b"x" * 30

    served = Served(answering, policy=SMALL)
    started = Started()
    iterable = served.app(environ_of(), started)
    assert len(produced) == 4
    assert started.calls == [("200 OK", [TEXT, ("X-Kept", "no")])]
    record = served.store.get(served.key())
    assert record is not None
    assert record.result is not None
    assert next(iter(iterable)) == b"x" * 120
    assert len(produced) == 4
    assert sum(map(len, iterable)) == 30 * 996
    iterable.close()  # type: ignore[attr-defined]
    again = served()
    assert (again.status, again.kind, served.work.effects, served.work.closed) == (409, "result-not-kept", 1, 1)
    assert b"How it ended is not recorded" in again.body


def test_a_large_answer_that_is_whole_was_carried_out() -> None:
    served = Served(text(b"x" * 300, headers=[("Content-Length", "300")]), policy=SMALL)
    assert served().status == 200
    assert b"was carried out" in served().body


def test_a_limit_is_a_limit() -> None:
    assert Served(text(b"x" * 100), policy=SMALL)(key="a").body == b"x" * 100
    exact, over = Served(text(b"x" * 100), policy=SMALL), Served(text(b"x" * 101), policy=SMALL)
    assert exact().body == exact().body
    assert (over().body, over().kind) == (b"x" * 101, "result-not-kept")


def test_too_much_written_goes_out_as_it_comes() -> None:
    def answering(environ: Environ, start_response: StartResponse) -> list[bytes]:
        write = start_response("200 OK", [TEXT])
        for _ in range(10):
            write(b"x" * 30)
        return [b"y" * 30, b"z"]

    served = Served(answering, policy=SMALL)
    assert served().body == b"x" * 300 + b"y" * 30 + b"z"
    assert served().kind == "result-not-kept"


def test_memory_is_bounded_for_a_long_answer() -> None:
    def endless(environ: Environ, start_response: StartResponse) -> Any:
        start_response("200 OK", [TEXT])
        return (bytes(1_000_000) for _ in range(40))

    served = Served(endless, policy=Policy(result_max=1_000_000))
    tracemalloc.start()
    parts: Any = served.app(environ_of(), Started())
    received = sum(map(len, parts))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    parts.close()
    assert received == 40_000_000
    assert peak < 8_000_000
    assert (served().kind, served.work.effects) == ("result-not-kept", 1)


def test_a_large_answer_that_breaks_off_breaks_off() -> None:
    def answering(environ: Environ, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", [TEXT])
        yield b"x" * 200
        raise RuntimeError("boom")

    served = Served(answering, policy=SMALL)
    with pytest.raises(RuntimeError, match="boom"):
        served()
    assert served().kind == "result-not-kept"
    assert (served.work.effects, served.work.closed) == (1, 1)


def test_too_much_written_by_work_that_raises_breaks_off() -> None:
    def answering(environ: Environ, start_response: StartResponse) -> list[bytes]:
        start_response("200 OK", [TEXT])(b"x" * 200)
        raise NotExecuted("too late to say so")

    served = Served(answering, policy=SMALL)
    with pytest.raises(NotExecuted):
        served()
    assert served().kind == "result-not-kept"
    assert served.work.effects == 1


def test_a_large_refusal_gives_the_key_back() -> None:
    served = Served(text(b"x" * 200, status="429 Too Many Requests"), policy=SMALL)
    assert served().body == served().body == b"x" * 200
    assert served.work.effects == 2


def test_what_is_written_after_a_take_over_goes_nowhere() -> None:
    def answering(environ: Environ, start_response: StartResponse) -> list[bytes]:
        write = start_response("200 OK", [TEXT])
        served.take_over(STORED)
        for _ in range(5):
            write(b"x" * 90)
        return [b"y"]

    served = Served(answering, policy=SMALL)
    answer = served()
    assert (answer.line, answer.body, answer.replayed) == ("202 Accepted", b"ok", True)


@pytest.mark.parametrize("then", [RuntimeError, OutcomeUnknown])
def test_a_large_answer_of_a_framework_for_an_exception(then: type[Exception]) -> None:
    """It is the application's, unless the exception says that the outcome is unknown."""

    def answering(environ: Environ, start_response: StartResponse) -> Iterator[bytes]:
        operation = current_operation()
        assert operation is not None
        operation.reported = then("boom")
        start_response("500 Internal Server Error", [TEXT])
        for _ in range(100):
            yield b"sorry"

    served = Served(answering, policy=SMALL)
    first, again = served(), served()
    if then is RuntimeError:
        assert (first.status, first.body, again.kind) == (500, b"sorry" * 100, "result-not-kept")
    else:
        assert (first.kind, again.status) == ("interrupted", 409)
    assert first.closing is None
    assert served.work.effects == 1


def test_a_debuggers_page_inside_is_sent_and_never_stored() -> None:
    app = IdempotencyMiddleware(DebuggedApplication(raising(RuntimeError("boom"))), store="memory://")
    first, again = call(app, validate=False), call(app, validate=False)
    assert (first.status, again.kind) == (500, "result-not-kept")
    assert b"Traceback (most recent call last)" in first.body


def test_an_exception_goes_on_also_when_closing_fails(caplog: pytest.LogCaptureFixture) -> None:
    class Parts:
        def __iter__(self) -> Iterator[bytes]:
            raise error

        def close(self) -> None:
            raise ValueError("while closing")

    def app(environ: Environ, start_response: StartResponse) -> Any:
        start_response("200 OK", [TEXT])
        return Parts()

    middleware = IdempotencyMiddleware(app, store="memory://", identify=lambda environ: "")
    error: BaseException = RuntimeError("boom")
    answer = call(middleware)
    assert (answer.kind, answer.closing) == ("internal-error", error)
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        call(middleware, key="other")
    assert "while closing" in caplog.text


def test_a_large_answer_that_could_not_be_marked_says_so() -> None:
    served = Served(text(b"x" * 200), store=FaultyStore(Complete), policy=Policy(result_max=100, lease=0.05))
    answer = served()
    assert (answer.body, answer.get("Idempotency-Stored")) == (b"x" * 200, "false")


def test_directives_stay_here() -> None:
    served = Served(text(b"x", headers=[("Semel-Directive", "not-kept")]))
    first = served()
    assert (first.body, first.get("Semel-Directive")) == (b"x", None)
    assert served().kind == "result-not-kept"
    wrong = Served(text(b"x", headers=[("Semel-Directive", "never")]))()
    assert (wrong.kind, type(wrong.closing)) == ("internal-error", ValueError)


class Gated(Work):
    """Work that waits to be let go."""

    def __init__(self, *, status: str = "200 OK") -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        super().__init__(self._answer)
        self._text = text(b"slow", status=status)

    def _answer(self, environ: Environ, start_response: StartResponse) -> Any:
        self.begun.set()
        assert self.go.wait(10)
        return self._text(environ, start_response)


def test_in_flight() -> None:
    work = Gated()
    served = Served(work)
    thread = in_thread(served)
    assert work.begun.wait(10)
    answer = served()
    assert (answer.status, answer.kind, answer.get("Retry-After")) == (409, "in-progress", "1")
    assert served(body=b"other").kind == "key-reused"
    work.go.set()
    thread.join(10)
    assert served().replayed


@pytest.mark.parametrize("status", ["200 OK", "429 Too Many Requests"])
def test_waiters_are_woken_by_the_answer_and_take_over_when_nothing_was_done(status: str) -> None:
    work = Gated(status=status)
    served = Served(work, policy=Policy(in_flight="wait"))
    answers: list[Any] = []
    threads = [in_thread(lambda: answers.append(served())) for _ in range(4)]
    assert work.begun.wait(10)
    work.go.set()
    for thread in threads:
        thread.join(10)
    assert [answer.line for answer in answers] == [status] * 4
    assert work.effects == (1 if status == "200 OK" else 4)


def test_waiters_are_bounded() -> None:
    work = Gated()
    served = Served(work, policy=Policy(in_flight="wait"), waiters_max=0)
    thread = in_thread(served)
    assert work.begun.wait(10)
    assert served().kind == "in-progress"
    work.go.set()
    thread.join(10)


@pytest.mark.parametrize("asked", [{"policy": Policy(in_flight="accept")}, {"HTTP_PREFER": "respond-async, wait=0"}])
def test_repeats_are_accepted_and_the_monitor_tells_the_tenant(asked: dict[str, Any]) -> None:
    work, asked = Gated(), dict(asked)
    policy = asked.pop("policy", Policy())
    who: dict[str, Any] = {"secret": "a secret of the tests", "identify": lambda environ: environ.get("REMOTE_USER")}
    served = Served(work, policy=policy, store=MemoryStore(), **who)
    thread = in_thread(lambda: served(REMOTE_USER="ann", **asked))
    assert work.begun.wait(10)
    accepted = served(REMOTE_USER="ann", validate=False, **asked)
    assert accepted.line == "202 Accepted"
    assert accepted.get("Preference-Applied") == ("respond-async" if asked else None)
    monitor = accepted.get("Location")
    assert monitor is not None
    look: dict[str, Any] = {"method": "GET", "key": None, "validate": False}
    assert served(monitor, REMOTE_USER="ann", **look).line == "202 Accepted"
    work.go.set()
    thread.join(10)
    for path, user in ((monitor, "bob"), (monitor + "x", "ann")):
        assert not served(path, REMOTE_USER=user, **look).replayed, "it is the application's"
    told = served(monitor, REMOTE_USER="ann", **look)
    assert (told.line, told.body, told.replayed) == ("200 OK", b"slow", True)
    served.app.host.asker = served.app.host.asker._replace(perform=performer(FaultyStore(Read)))
    assert served(monitor, REMOTE_USER="ann", **look).kind == "store-unavailable"


def test_the_lease_is_kept_while_the_work_runs() -> None:
    work = Gated()
    served = Served(work, policy=Policy(lease=0.06))
    thread = in_thread(served)
    assert work.begun.wait(10)
    for _ in range(5):
        served.clock.now_ms += 30
        for _ in range(500):
            record = served.store.get(served.key())
            if record is not None and record.lease_until_ms == served.clock.now_ms + 60:
                break
            time.sleep(0.01)
        else:
            pytest.fail("nobody renewed the lease")
    work.go.set()
    thread.join(10)
    assert served().replayed


def test_a_quota_counts_new_keys_only() -> None:
    served = Served(policy=Policy(quota="2/hour"))
    assert [served(key=key).status for key in ("a", "b", "c", "a", "b")] == [200, 200, 429, 200, 200]
    assert served(key="c").kind == "too-many-keys"


def test_a_tenant_over_its_quota_hears_when_the_store_is_down() -> None:
    store = FaultyStore()
    served = Served(store=store, policy=Policy(quota="1/hour"))
    served(key="a")
    store.failing = (Read, Claim)
    assert served(key="a").kind == "store-unavailable"


def test_the_policy_is_published() -> None:
    served = Served()
    answer = served("/.well-known/idempotency", method="GET", key=None)
    assert b'"retention_seconds": 86400' in answer.body
    page = served("/.well-known/idempotency", method="GET", key=None, HTTP_ACCEPT="text/html")
    assert page.body.startswith(b"<!doctype html>")
    assert Served(publish=None)("/.well-known/idempotency", method="GET", key=None).body == b"done"
