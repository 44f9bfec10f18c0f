"""`Prefer: respond-async` for a first request on WSGI: 202 in time, and the work goes on in a thread of ours."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest
from flask import Flask, request
from wsgi_calls import Answer, Served, Work, call, environ_of, raising, text

from semel import NotExecuted, Policy
from semel.flask import Idempotency
from semel.runtime.operation import current_operation
from semel.stores.memory import MemoryStore
from waiting import until

ASYNC: dict[str, Any] = {"HTTP_PREFER": "respond-async", "validate": False, "wsgi.multithread": True}
IN_TIME: dict[str, Any] = ASYNC | {"HTTP_PREFER": "respond-async, wait=20"}
LOOK: dict[str, Any] = {"method": "GET", "key": None, "validate": False}


class Held(Work):
    """Work that waits to be let go, and then does something else."""

    def __init__(self, then: Any = None) -> None:
        self.go = threading.Event()
        self.threads: list[str] = []
        then = then or text(b"done")

        def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            self.threads.append(threading.current_thread().name)
            assert self.go.wait(20)
            answered: Iterable[bytes] = then(environ, start_response)
            return answered

        super().__init__(answer)


def serve(work: Any, **settings: Any) -> Served:
    return Served(work, store=MemoryStore(), **{"secret": "a secret of the tests"} | settings)


def look(ask: Callable[[], Answer]) -> Answer:
    """Ask until the work has ended."""
    until(lambda: ask().status != 202)
    return ask()


def end(served: Served, accepted: Answer) -> Answer:
    """What the link of a 202 says when the work has ended."""
    place = accepted.get("Location")
    assert place is not None
    return look(lambda: served(place, **LOOK))


def test_the_caller_is_answered_and_the_work_goes_on() -> None:
    work = Held(text(b"paid", status="201 Created", headers=[("X-A", "1"), ("X-A", "2")]))
    served = serve(work)
    accepted = served(body=b"{}", **ASYNC)
    assert (accepted.status, accepted.get("Preference-Applied")) == (202, "respond-async")
    assert served(accepted.get("Location") or "", **LOOK).status == 202
    assert served(body=b"{}", **ASYNC).get("Location") == accepted.get("Location"), "a repeat is told the same"
    work.go.set()
    done = end(served, accepted)
    assert (done.status, done.body, done.replayed) == (201, b"paid", True)
    again = served(body=b"{}")
    assert (again.kept, again.replayed) == (done.kept, True)
    assert (work.effects, work.threads) == (1, ["semel-detached"])
    until(lambda: work.closed == 1, "what the application returned was not closed")


def test_work_that_ends_in_time_answers_as_always() -> None:
    plain, detached = serve(text(b"paid", status="201 Created")), serve(text(b"paid", status="201 Created"))
    assert detached(**IN_TIME).kept == plain().kept
    assert (detached().replayed, detached.work.effects, detached.work.closed) == (True, 1, 1)


@pytest.mark.parametrize("settings", [{"detached_max": 0}, {"secret": None}])
def test_it_can_be_switched_off(settings: dict[str, Any]) -> None:
    """Then, and without a secret for the link, the caller waits for its answer."""
    work = Held()
    work.go.set()
    answer = serve(work, **settings)(**ASYNC)
    assert (answer.status, answer.body, work.threads) == (200, b"done", ["MainThread"])


@pytest.mark.parametrize("prefer", [{}, {"HTTP_PREFER": "wait=5"}, {"HTTP_PREFER": "return=minimal"}])
def test_who_does_not_ask_for_it_is_served_in_the_thread_of_the_server(prefer: dict[str, Any]) -> None:
    """Nothing of this is begun for them: no thread, no copy of the environ, nothing to wait for at the end."""
    work, given = Held(), list[WSGIEnvironment]()
    work.go.set()
    served = serve(work)
    inner = served.app.app

    def note(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        given.append(environ)
        return inner(environ, start_response)

    served.app.app = note
    environ = environ_of(**prefer)
    before = threading.active_count()
    answer: Any = served.app(environ, lambda *_: lambda _: None)
    assert b"".join(answer) == b"done"
    answer.close()
    assert (work.threads, threading.active_count() - before <= 2) == (["MainThread"], True)  # renewal, and look at once
    assert given[0] is environ
    assert served.app.detached._running == {}


def test_a_server_with_one_thread_runs_nothing_beside_it_unless_that_is_chosen() -> None:
    """`wsgi.multithread` is a promise to the application."""
    alone = ASYNC | {"wsgi.multithread": False}
    work = Held()
    work.go.set()
    assert (serve(work)(**alone).status, work.threads) == (200, ["MainThread"])
    chosen = Held()
    served = serve(chosen, detached_max=1)
    assert served(**alone).status == 202
    chosen.go.set()
    served.app.detached.drain()


def test_eight_of_them_run_at_once_by_default() -> None:
    work = Held()
    served = serve(work)
    assert [served(key=f"k{n}", **ASYNC).status for n in range(8)] == [202] * 8
    free = Held()
    free.go.set()
    served.work.answering = free.answering
    assert (served(key="more", **ASYNC).status, free.threads) == (200, ["MainThread"])
    work.go.set()
    served.app.detached.drain()


def test_their_number_has_a_bound() -> None:
    work, free = Held(), Held()
    free.go.set()
    served = serve(work, detached_max=1)
    accepted = served(**ASYNC)
    served.work.answering = free.answering
    assert (served(key="other", **ASYNC).status, free.threads) == (200, ["MainThread"]), "there is no room: it waits"
    work.go.set()
    assert end(served, accepted).status == 200
    until(lambda: served(key=f"k{len(free.threads)}", **ASYNC).status == 202 or "semel-detached" in free.threads)


@pytest.mark.parametrize("wrong", [-1, "4", True])
def test_a_wrong_number_is_named(wrong: Any) -> None:
    with pytest.raises(ValueError, match="detached_max must be 0 or a number of operations"):
        serve(text(b""), detached_max=wrong)


def test_no_thread_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    work = Held()
    work.go.set()
    served = serve(work, policy=Policy(lease=3600))
    with monkeypatch.context() as patched:
        patched.setattr("semel.wsgi.detachment.threading.Thread.start", fail)
        patched.setattr(served.app.host.keeper, "keep", lambda lease, lease_ms: None)
        patched.setattr(served.app.host.keeper, "stop", lambda kept: None)
        assert served(**ASYNC).status == 200
    assert work.threads == ["MainThread"]


def test_what_is_raised_after_the_answer_is_stored_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    work = Held(raising(RuntimeError("boom")))
    served = serve(work)
    accepted = served(**ASYNC)
    work.go.set()
    assert (end(served, accepted).status, served().kind) == (500, "internal-error")
    until(lambda: "RuntimeError: boom" in caplog.text, "nothing reached the log")
    assert work.effects == 1


def test_what_is_raised_in_time_reaches_the_server() -> None:
    answer = serve(raising(RuntimeError("boom")))(**IN_TIME)
    assert (answer.kind, repr(answer.closing)) == ("internal-error", "RuntimeError('boom')")
    served = serve(raising(LookupError("not now")), policy=Policy(release_exceptions=(LookupError,)))
    for _ in range(2):
        with pytest.raises(LookupError, match="not now"):
            served(**IN_TIME)
    assert served.work.effects == 2, "the key was given back"


@pytest.mark.parametrize("error", [NotExecuted("closed"), LookupError("not now")])
def test_nothing_was_done_after_the_answer(error: Exception) -> None:
    work = Held(raising(error))
    served = serve(work, policy=Policy(release_exceptions=(LookupError,)))
    accepted = served(**ASYNC)
    work.go.set()
    assert end(served, accepted).status == 410, "the link says that it did not run"
    served.work.answering = text(b"done")
    assert (served().body, work.effects) == (b"done", 2)


def test_work_that_is_cut_off_is_unknown(caplog: pytest.LogCaptureFixture) -> None:
    work = Held(raising(SystemExit(1)))
    served = serve(work, policy=Policy(lease=0.3))
    accepted = served(**ASYNC)
    work.go.set()
    assert end(served, accepted).kind == "outcome-unknown"
    assert (served().kind, work.effects) == ("outcome-unknown", 1)


def write_much(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    write = start_response("200 OK", [("Content-Type", "text/plain")])
    for _ in range(3):
        write(b"x" * 10)
    return [b"y" * 10]


@pytest.mark.parametrize("then", [text(b"x" * 10, b"x" * 10, b"x" * 10, b"y" * 10), write_much])
def test_an_answer_too_large_to_keep(then: Any) -> None:
    expected = b"x" * 30 + b"y" * 10
    in_time = serve(then, policy=Policy(result_max=15))
    assert in_time(**IN_TIME).body == expected
    assert (in_time().kind, in_time.work.closed) == ("result-not-kept", 1)
    work = Held(then)
    served = serve(work, policy=Policy(result_max=15))
    accepted = served(**ASYNC)
    work.go.set()
    assert end(served, accepted).kind == "result-not-kept"
    until(lambda: work.closed == 1)
    assert work.effects == 1


def test_the_environ_outlives_the_request() -> None:
    """Servers take back what belongs to the connection; some of them empty the environ."""
    found: dict[str, Any] = {}

    def note(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        found.update(environ, body=environ["wsgi.input"].read(2), operation=current_operation())
        return text(b"done")(environ, start_response)

    work = Held(note)
    served = serve(work)
    environ = environ_of(body=b"{}", HTTP_PREFER="respond-async") | {
        "gunicorn.socket": object(),
        "wsgi.multithread": True,
    }
    answer = Answer()

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None, /) -> Any:
        answer.line, answer.headers = status, headers

    assert list(served.app(environ, start_response)) is not None
    errors = environ["wsgi.errors"]
    environ.clear()
    work.go.set()
    assert end(served, answer).body == b"done"
    assert (found["body"], found["PATH_INFO"], found["operation"].key.name) == (b"{}", "/pay", "k")
    assert (found["wsgi.multithread"], "gunicorn.socket" in found) == (True, False)
    assert found["wsgi.errors"] is not errors


def test_flask_finds_its_request() -> None:
    app, go, effects = Flask(__name__), threading.Event(), list[str]()
    Idempotency(app, store=MemoryStore(), secret="a secret of the tests", identify=lambda environ: "me")

    @app.post("/pay")
    def pay() -> tuple[str, int]:
        assert go.wait(20)
        effects.append(request.get_data(as_text=True))
        return request.headers["X-Order"], 201

    accepted = call(app, body=b"{}", HTTP_X_ORDER="7", **ASYNC)
    assert accepted.status == 202
    go.set()
    place = accepted.get("Location") or ""
    done = look(lambda: call(app, place, **LOOK))
    assert (done.status, done.body, effects) == (201, b"7", ["{}"])


def test_what_a_framework_ends_with_its_request_is_ended_in_the_same_thread() -> None:
    """As for SQLAlchemy's scoped sessions: made in the view, removed when Flask leaves its context."""
    app, local, removed = Flask(__name__), threading.local(), list[str]()
    Idempotency(app, store=MemoryStore(), secret="a secret of the tests", identify=lambda environ: "me")

    @app.post("/pay")
    def pay() -> str:
        local.session = threading.current_thread().name
        return "paid"

    @app.teardown_appcontext
    def remove(error: BaseException | None) -> None:
        removed.append(getattr(local, "session", "none of this thread"))

    assert call(app, **IN_TIME).status == 200
    assert call(app, key="other").status == 200
    assert removed == ["semel-detached", "MainThread"]


def test_closing_waits_for_the_work(caplog: pytest.LogCaptureFixture) -> None:
    work = Held()
    served = serve(work)
    accepted = served(**ASYNC)
    served.app.detached.drain(0.01)
    assert "1 operations were cut off because the process ends: their outcome is unknown" in caplog.text
    caplog.clear()
    threading.Timer(0.05, work.go.set).start()
    with caplog.at_level(logging.ERROR):
        served.app.close()
    assert served(accepted.get("Location") or "", **LOOK).body == b"done"
    assert caplog.text == ""


ENDING = """
import sys, time
from wsgi_calls import environ_of
from semel.wsgi import IdempotencyMiddleware

def app(environ, start_response):
    time.sleep(0.3)
    start_response("201 Created", [])
    return [b"done"]

secret = "a secret of the tests"
served = IdempotencyMiddleware(app, store=sys.argv[1], identify=lambda environ: "me", secret=secret, detached_max=1)
list(served(environ_of(HTTP_PREFER="respond-async"), lambda status, headers: print(status, flush=True)))
"""


def test_a_process_that_ends_lets_the_work_end(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/semel.db"
    here = str(Path(__file__).parent)
    ran = subprocess.run([sys.executable, "-c", ENDING, store], cwd=here, capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.returncode) == ("202 Accepted\n", 0), ran.stderr
    assert "cut off" not in ran.stderr
    listed = [sys.executable, "-m", "semel", "keys", "list", "--store", store, "--json"]
    assert '"succeeded"' in subprocess.run(listed, capture_output=True, text=True, timeout=60).stdout
