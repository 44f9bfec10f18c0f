"""The WSGI front, called as a server calls it, with the standard library's validator on both sides."""

import logging
import threading
import time
from io import BytesIO
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest
from wsgi_calls import STORED, TEXT, FaultyStore, Served, Work, call, raising, text

from semel import NotExecuted, OutcomeUnknown, Policy, StoreMisconfigured, open_async_store
from semel.core.effects import Claim, Complete, Release
from semel.runtime.operation import current_operation
from semel.wsgi import IdempotencyMiddleware, Rule


def test_a_repeat_gets_the_first_answer_and_nothing_runs() -> None:
    cookies = (("Set-Cookie", "a=b"), ("X-A", "1"), ("X-B", "\xe9\xff"), ("X-A", "2"))
    served = Served(text(b"one", b"", b"\x00\xff", status="201 Created", headers=cookies))
    first, again = served(body=b"{}"), served(body=b"{}")
    assert first.line == again.line == "201 Created"
    assert first.headers == [TEXT, *cookies]
    assert again.headers == [TEXT, *cookies[1:], ("idempotent-replayed", "true")]
    assert first.body == again.body == b"one\x00\xff"
    assert (served.work.effects, served.work.closed) == (1, 1)


@pytest.mark.parametrize(
    "status",
    ["200 OK", "204 No Content", "302 Found", "304 Not Modified", "404 Not Found", "500 Internal Server Error"],
)
def test_every_answer_is_an_answer(status: str) -> None:
    def answering(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        start_response(status, [] if status[:3] in ("204", "304") else [TEXT])
        return []

    served = Served(answering)
    first, again = served(), served()
    assert first.kept == again.kept
    assert again.replayed
    assert served.work.effects == 1


@pytest.mark.parametrize(
    "line", ["201 Made It", "299 My Phrase", "299 Unknown", "404 NOT FOUND", "200 ", "200 d\xe9j\xe0 vu"]
)
@pytest.mark.parametrize("result_max", [100, 1])
def test_the_reason_phrase_is_the_applications(line: str, result_max: int) -> None:
    app = IdempotencyMiddleware(text(b"xy", status=line), store="memory://", policy=Policy(result_max=result_max))
    first, again = call(app, validate=False), call(app, validate=False)
    assert first.line == line
    assert again.line == (line if result_max == 100 else "409 Conflict")
    assert again.replayed is (result_max == 100)


def test_an_answer_with_the_usual_phrase_is_stored_as_it_always_was() -> None:
    stored = []
    for line in ("201 Created", "201 Made It"):
        served = Served(text(b"x", status=line))
        served()
        record = served.store.get(served.key())
        assert record is not None
        assert record.result is not None
        stored.append((record.result.format, record.result.payload))
    body = b"\xcc\xc9\x91\x92\xc4\x0cContent-Type\xc4\ntext/plain\xc4\x01x"
    assert stored == [("http.1", b"\x93" + body), ("http-reason.1", b"\x94" + body + b"\xc4\x07Made It")]


@pytest.mark.parametrize("status", ["401 Unauthorized", "429 Too Many Requests", "503 Service Unavailable"])
def test_a_refusal_gives_the_key_back(status: str) -> None:
    served = Served(text(b"no", status=status))
    assert served().line == served().line == status
    assert served.work.effects == 2


def test_without_a_key_and_for_safe_methods_the_application_is_called_directly() -> None:
    served = Served()
    for request in ({"key": None}, {"method": "GET"}, {"method": "DELETE"}):
        assert served(**request).body == served(**request).body == b"done"
    assert served.work.effects == served.work.closed == 6


@pytest.mark.parametrize("odd", [None, 5, "\u2603"])
def test_header_values_that_no_server_gives_reach_the_application(odd: Any) -> None:
    seen: list[Any] = []

    def answering(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        seen.append(environ["HTTP_X_ODD"])
        start_response("200 OK", [TEXT])
        return []

    app = IdempotencyMiddleware(answering, store="memory://")
    names = ("HTTP_X_ODD", "HTTP_AUTHORIZATION", "HTTP_TRANSFER_ENCODING")
    for request in ({"method": "GET"}, {"key": None}, {"key": "k"}):
        assert call(app, validate=False, **request, **dict.fromkeys(names, odd)).status == 200
    assert seen == [odd] * 3


@pytest.mark.parametrize("key", ["a,b", '"a","b"', "", ",a", "caf\xe9", "x" * 256, '"open'])
def test_a_malformed_key_is_refused(key: str) -> None:
    served = Served()
    assert served(key=key).kind == "key-malformed"
    assert served.work.effects == 0


def test_rules_see_the_decoded_path_below_the_root() -> None:
    rules = [Rule("POST /caf\xe9", Policy(required=True)), Rule("/free/")]
    served = Served(rules=rules)
    assert served("/caf\xc3\xa9", key=None, SCRIPT_NAME="/api").kind == "key-missing"
    assert served("/free/x", SCRIPT_NAME="/api").body == b"done"
    assert not served("/free/x", SCRIPT_NAME="/api").replayed


def test_another_request_under_the_same_key_is_refused() -> None:
    served = Served(policy=Policy(scope="tenant"))
    served(body=b"a", QUERY_STRING="x=1")
    same: dict[str, Any] = {"body": b"a", "QUERY_STRING": "x=1"}
    for other in ({"body": b"b"}, {"QUERY_STRING": "x=2"}, {"method": "PUT"}):
        assert served(**same | other).kind == "key-reused"
    assert served("/other", **same).kind == "key-reused"
    assert served.work.effects == 1


@pytest.mark.parametrize("name", ["RAW_URI", "REQUEST_URI"])
def test_paths_are_told_apart_as_received(name: str) -> None:
    served = Served()
    for raw in ("/a%2Fb", "/a/b", "/a%2fb?q"):
        assert not served("/a/b", **{name: raw}).replayed
        assert served("/a/b", **{name: raw}).replayed
    assert not served("/other", **{name: "/a/b"}).replayed, "somebody in front of us has moved the request"
    assert served("/a/b").replayed, "quoted again, the plain path is the plain path"


def test_tenants_never_meet() -> None:
    served = Served(identify=None)
    for who in ({}, {"REMOTE_USER": "ann"}, {"HTTP_AUTHORIZATION": "Bearer 1"}, {"HTTP_AUTHORIZATION": "Bearer 2"}):
        assert not served(**who).replayed
        assert served(**who).replayed
    assert served.work.effects == 4


def test_identify_may_read_the_body() -> None:
    served = Served(echo, identify=lambda environ: environ["wsgi.input"].read().decode())
    assert served(body=b"ann").body == served(body=b"ann").body == b"ann"


def echo(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    start_response("200 OK", [TEXT])
    return [environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 1_000_000))]


class Endless(BytesIO):
    """A connection that stays open: reading past the body waits for ever."""

    def read(self, size: int | None = -1, /) -> bytes:
        left = len(self.getbuffer()) - self.tell()
        assert size is not None
        assert 0 <= size <= left, f"asked for {size} bytes, and only {left} will ever come"
        return super().read(size)


def test_never_reads_past_the_body() -> None:
    served = Served(echo)
    assert served(CONTENT_LENGTH="3", **{"wsgi.input": Endless(b"abc")}).body == b"abc"
    for absent in ({"CONTENT_LENGTH": ""}, {"CONTENT_LENGTH": "0"}):
        assert served(key="none", **absent, **{"wsgi.input": Endless(b"abc")}).body == b""


def test_a_body_without_length_is_read_where_the_server_ends_it() -> None:
    served = Served(echo, policy=Policy(body_max=10))
    ended: dict[str, Any] = {"wsgi.input_terminated": True, "CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked"}
    assert served(body=b"abc", **ended).body == b"abc"
    assert served(body=b"abd", **ended).kind == "key-reused"
    assert served(body=b"x" * 10, key="ten", **ended).body == b"x" * 10
    assert served(body=b"x" * 11, key="eleven", **ended).kind == "body-too-large"


def test_a_body_that_is_too_large_is_not_read() -> None:
    served = Served(policy=Policy(body_max=2))
    assert served(CONTENT_LENGTH="3", **{"wsgi.input": Endless(b"")}).kind == "body-too-large"
    assert served.work.effects == 0


def test_a_body_that_was_cut_short_runs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    served = Served()
    assert served(body=b"abc", CONTENT_LENGTH="10").status == 400
    assert served.work.effects == 0
    assert "POST /pay ended after 3 of 10 bytes" in caplog.text


def test_what_the_work_raises_is_a_stable_answer_and_goes_on_afterwards() -> None:
    error = RuntimeError("boom")
    served = Served(raising(error))
    first, again = served(), served()
    assert (first.kind, first.status) == ("internal-error", 500)
    assert first.kept == again.kept
    assert first.closing is error
    assert again.closing is None
    assert served.work.effects == 1


def test_raising_while_it_answers_is_raising() -> None:
    def answering(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [TEXT])
        yield b"half"
        raise RuntimeError("boom")

    served = Served(answering)
    first = served()
    assert first.kind == "internal-error"
    assert first.kept == served().kept
    assert served.work.closed == 1


def test_not_executed_gives_the_key_back() -> None:
    served = Served(raising(NotExecuted("the till is closed")))
    for _ in range(2):
        answer = served()
        assert (answer.status, answer.kind, answer.get("Retry-After")) == (503, "not-executed", "1")
        assert b"the till is closed" in answer.body
        assert answer.closing is None
    assert served.work.effects == 2


def test_an_outcome_that_the_work_says_is_unknown_stays_unknown() -> None:
    served = Served(raising(OutcomeUnknown("The bank hung up.")))
    first = served()
    assert (first.status, first.kind) == (504, "interrupted")
    assert b"The bank hung up." in first.body
    assert served().kind == "outcome-unknown"
    assert served.work.effects == 1


def test_release_exceptions_give_the_key_back_and_go_on() -> None:
    served = Served(raising(KeyError("x")), policy=Policy(release_exceptions=(LookupError,)))
    for _ in range(2):
        with pytest.raises(KeyError):
            served()
    assert served.work.effects == 2
    assert served.store.get(served.key()) is None


@pytest.mark.parametrize("ends", ["answer", "exception"])
def test_work_that_says_that_nothing_was_done_gives_the_key_back(ends: str) -> None:
    def answering(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        operation = current_operation()
        assert operation is not None
        operation.nothing_done()
        if ends == "exception":
            raise RuntimeError("boom")
        start_response("500 Internal Server Error", [TEXT])
        return []

    served = Served(answering)
    for _ in range(2):
        if ends == "exception":
            with pytest.raises(RuntimeError, match="boom"):
                served()
        else:
            assert served().status == 500
    assert served.work.effects == 2


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_interrupted_work_is_unknown(error: BaseException) -> None:
    served = Served(raising(error))
    with pytest.raises(type(error)):
        served()
    assert served().kind == "in-progress"
    served.clock.now_ms += 30_000
    assert served().kind == "outcome-unknown"
    assert served.work.effects == 1


def test_interrupted_work_is_not_renewed() -> None:
    served = Served(raising(SystemExit(1)), policy=Policy(lease=0.03))
    with pytest.raises(SystemExit):
        served()
    served.clock.now_ms += 30
    time.sleep(0.05)  # several renewals
    assert served().kind == "outcome-unknown"


def test_an_application_that_never_answers_has_raised() -> None:
    served = Served()
    app = IdempotencyMiddleware(lambda environ, start_response: [], store=served.store, identify=lambda environ: "me")
    first = call(app)
    assert first.kind == "internal-error"
    assert "never called start_response" in str(first.closing)
    assert call(app).kept == first.kept


def test_the_operation_is_current_from_the_call_to_the_close_and_never_outside() -> None:
    seen: list[str | None] = []

    def look() -> None:
        operation = current_operation()
        seen.append(None if operation is None else operation.key.name)

    class Parts:
        def __init__(self) -> None:
            self.left = 3

        def __iter__(self) -> "Parts":
            return self

        def __next__(self) -> bytes:
            look()
            self.left -= 1
            if self.left < 0:
                raise StopIteration
            return b"x" * 10

        def close(self) -> None:
            look()

    def answering(environ: WSGIEnvironment, start_response: StartResponse) -> Parts:
        look()
        start_response("200 OK", [TEXT])
        return Parts()

    for result_max in (1000, 5):  # collected, and streamed
        seen.clear()
        assert Served(answering, policy=Policy(result_max=result_max))().body == b"x" * 30
        assert seen == ["k"] * 6
        assert current_operation() is None
    Served(answering)(key=None)
    assert seen[6:] == [None] * 6


def test_the_store_cannot_decide() -> None:
    served = Served(store=FaultyStore(Claim, after=True))
    answer = served()
    assert (answer.status, answer.kind) == (503, "store-unavailable")
    assert served.work.effects == 0


def test_a_claim_whose_fate_is_not_known_is_released_in_the_background() -> None:
    store = FaultyStore(Claim, after=True)
    served = Served(store=store)
    served()
    store.failing = ()
    released = threading.Event()
    served.app.host.background.do(released.set)  # one thing after another
    assert released.wait(10)
    assert served().body == b"done"


def test_a_claim_that_was_interrupted_is_released_in_the_background() -> None:
    class Stopping(FaultyStore):
        def claim(self, *args: Any, **more: Any) -> Any:
            super().claim(*args, **more)
            raise SystemExit(1)

    served = Served(store=Stopping())
    with pytest.raises(SystemExit):
        served()
    released = threading.Event()
    served.app.host.background.do(released.set)
    assert released.wait(10)
    assert served.store.get(served.key()) is None
    assert served.work.effects == 0


def test_fail_open_is_marked() -> None:
    def answering(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [TEXT])
        operation = current_operation()
        assert operation is not None
        yield operation.key.name.encode()

    served = Served(answering, store=FaultyStore(Claim), policy=Policy(on_store_error="open"))
    answer = served()
    assert (answer.body, answer.get("Idempotency-Stored")) == (b"k", "false")
    assert current_operation() is None
    assert served.work.effects == served.work.closed == 1


@pytest.mark.parametrize(("failing", "status"), [(Complete, "200 OK"), (Release, "429 Too Many Requests")])
def test_an_answer_that_could_not_be_stored_is_marked_and_does_not_run_again(failing: Any, status: str) -> None:
    served = Served(text(b"done", status=status), store=FaultyStore(failing), policy=Policy(lease=0.05))
    answer = served()
    assert (answer.line, answer.body, answer.get("Idempotency-Stored")) == (status, b"done", "false")
    assert served().kind == "in-progress"
    assert served.work.effects == 1


def test_an_ambiguous_completion_is_repeated_and_read_back() -> None:
    served = Served(store=FaultyStore(Complete, after=True), policy=Policy(lease=0.05))
    served()
    assert served().replayed


@pytest.mark.parametrize("size", [5, 5000])
def test_a_superseded_owner_answers_with_what_the_store_holds(size: int) -> None:
    def answering(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [TEXT])
        served.take_over(STORED)
        yield b"x" * size
        yield b"y"

    served = Served(answering, policy=Policy(result_max=1000))
    first = served(validate=False)
    assert (first.line, first.body, first.replayed) == ("202 Accepted", b"ok", True)
    assert served.work.closed == 1


@pytest.mark.parametrize(
    "settings", [{"policy": Policy(guarantee="exactly-once")}, {"policy": Policy(in_flight="accept")}]
)
def test_what_cannot_be_kept_is_refused_at_start_up(settings: dict[str, Any]) -> None:
    with pytest.raises(StoreMisconfigured):
        Served(**settings)


def test_async_parts_are_refused() -> None:
    async def who(environ: object) -> str:
        return ""

    with pytest.raises(TypeError, match=r"AsyncMemoryStore is an async store; .* semel\.open_store\(url\)"):
        IdempotencyMiddleware(Work(), store=open_async_store("memory://"), identify=lambda environ: "")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="coroutine"):
        IdempotencyMiddleware(Work(), store="memory://", identify=who)  # type: ignore[arg-type]


def test_warns_when_nobody_says_who_calls(caplog: pytest.LogCaptureFixture) -> None:
    IdempotencyMiddleware(Work(), store="memory://").close()
    assert [record.levelno for record in caplog.records if "identify=" in record.message] == [logging.WARNING]
