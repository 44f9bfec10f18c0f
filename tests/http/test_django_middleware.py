"""The Django middleware: every way in which a view ends, through both handlers, with plain and async views."""

import asyncio
import json
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("django")
pytest.importorskip("rest_framework")

import django_site  # noqa: F401, I001
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import got_request_exception
from django.test import override_settings

from django_site import views
from django_site.calling import Answer, ByAsgi, ByWsgi
from django_site.views import effects
from semel import Policy
from semel.django import Rule
from semel.events import Event, EventKind

RESULT_MAX = 10_000
SEMEL: dict[str, Any] = {
    "store": "memory://",
    "policy": Policy(release_exceptions=[views.Refused], result_max=RESULT_MAX, body_max=5_000),
    "rules": [
        Rule("/sync/slow", Policy(in_flight="wait", wait=15)),
        ("/class", {"required": False}),
        ("POST /count", None),
    ],
    "identify": lambda request: request.headers.get("X-Account"),
    "secret": "a secret of the tests",
}
WAYS = [("wsgi", "sync"), ("wsgi", "async"), ("asgi", "sync"), ("asgi", "async")]


@pytest.fixture(params=["wsgi", "asgi"])
def call(request: pytest.FixtureRequest) -> Iterator[ByWsgi | ByAsgi]:
    yield from calling(request.param, SEMEL)


@pytest.fixture(params=WAYS, ids="-".join)
def way(request: pytest.FixtureRequest) -> Iterator[tuple[ByWsgi | ByAsgi, str]]:
    handler, kind = request.param
    for call in calling(handler, SEMEL):
        yield call, kind


def calling(handler: str, semel: dict[str, Any]) -> Iterator[ByWsgi | ByAsgi]:
    effects.clear()
    views.entered.clear()
    views.go_on.clear()
    with override_settings(SEMEL=semel):
        call = ByWsgi() if handler == "wsgi" else ByAsgi()
        yield call
        call.close()


def key() -> str:
    return uuid4().hex


def problem(answer: Answer) -> str:
    assert answer["Content-Type"] == "application/problem+json", answer
    assert answer["Cache-Control"] == "no-store"
    kind: str = json.loads(answer.body)["type"].partition("#")[2]
    return kind


# How work may end


@pytest.mark.parametrize("answer", ["ok", "empty", "moved", "invalid", "missing", "stream", "file", "template"])
def test_an_answer_is_replayed(way: tuple[ByWsgi, str], answer: str) -> None:
    call, kind = way
    given = key()
    first = call(f"/{kind}/{answer}", idempotency_key=given)
    again = call(f"/{kind}/{answer}", idempotency_key=given)
    assert effects == [answer]
    assert first["Idempotent-Replayed"] is None
    assert again["Idempotent-Replayed"] == "true"
    assert again.kept == first.kept
    assert again["Set-Cookie"] is None


def test_a_new_key_is_a_new_operation(way: tuple[ByWsgi, str]) -> None:
    call, kind = way
    answers = [call(f"/{kind}/ok", idempotency_key=key()) for _ in range(3)]
    assert [json.loads(answer.body)["number"] for answer in answers] == [1, 2, 3]
    assert len({json.loads(answer.body)["psp"] for answer in answers}) == 3


def test_without_a_key_nothing_is_protected(way: tuple[ByWsgi, str]) -> None:
    call, kind = way
    for number in (1, 2):
        answer = call(f"/{kind}/ok")
        assert json.loads(answer.body) == {"number": number, "psp": None}


def test_what_was_raised_is_answered_alike_and_reported_once(
    way: tuple[ByWsgi, str], caplog: pytest.LogCaptureFixture
) -> None:
    call, kind = way
    told: list[object] = []

    def tell(**given: object) -> None:
        told.append(given["request"])

    got_request_exception.connect(tell)
    given = key()
    try:
        first, again = (call(f"/{kind}/boom", idempotency_key=given) for _ in range(2))
    finally:
        got_request_exception.disconnect(tell)
    assert effects == ["boom"]
    assert (first.status, b"Server Error (500)" in first.body) == (500, True)
    assert again.kept == first.kept
    assert again["Idempotent-Replayed"] == "true"
    assert len(told) == 1
    errors = [record for record in caplog.records if record.name == "django.request" and record.levelname == "ERROR"]
    assert len(errors) == 1
    assert errors[0].exc_info is not None


def test_a_stream_that_breaks_off_has_raised(way: tuple[ByWsgi, str], caplog: pytest.LogCaptureFixture) -> None:
    call, _ = way
    given = key()
    first, again = (call("/sync/breaking", idempotency_key=given) for _ in range(2))
    assert effects == ["breaking"]
    assert (first.status, problem(first)) == (500, "internal-error")
    assert again.kept == first.kept
    assert sum(record.name == "django.request" and record.exc_info is not None for record in caplog.records) == 1


@pytest.mark.parametrize(
    ("answer", "status"), [("not-executed", 503), ("refused", 500), ("busy", 429), ("nothing-done", 202)]
)
def test_work_that_did_nothing_gives_its_key_back(way: tuple[ByWsgi, str], answer: str, status: int) -> None:
    call, kind = way
    given = key()
    answers = [call(f"/{kind}/{answer}", idempotency_key=given) for _ in range(2)]
    assert effects == [answer, answer]
    assert [each.status for each in answers] == [status, status]
    assert [each["Idempotent-Replayed"] for each in answers] == [None, None]
    if answer == "not-executed":
        assert problem(answers[0]) == "not-executed"
        assert answers[0]["Retry-After"] == "1"


def test_an_outcome_that_the_view_says_is_unknown_stays_unknown(way: tuple[ByWsgi, str]) -> None:
    call, kind = way
    given = key()
    first, again = (call(f"/{kind}/interrupted", idempotency_key=given) for _ in range(2))
    assert effects == ["interrupted"]
    assert (first.status, problem(first)) == (504, "interrupted")
    assert (again.status, problem(again)) == (409, "outcome-unknown")


@pytest.mark.parametrize("answer", ["big", "large"])
def test_an_answer_that_is_too_large_is_delivered_whole_and_not_kept(way: tuple[ByWsgi, str], answer: str) -> None:
    call, kind = way
    given = key()
    first, again = (call(f"/{kind}/{answer}", idempotency_key=given) for _ in range(2))
    assert effects == [answer]
    assert first.body == views.CHUNK * 30
    assert (again.status, problem(again)) == (409, "result-not-kept")


def test_a_directive_is_followed_and_never_sent(call: ByWsgi) -> None:
    given = key()
    first, again = (call("/sync/directed", idempotency_key=given) for _ in range(2))
    assert first.body == b"secret"
    assert first["Semel-Directive"] is None
    assert problem(again) == "result-not-kept"
    assert effects == ["directed"]


# Who is asked first


def test_a_different_request_with_the_same_key_is_refused(call: ByWsgi) -> None:
    given = key()
    call("/sync/ok", b'{"amount": 1}', idempotency_key=given)
    other = call("/sync/ok", b'{"amount": 2}', idempotency_key=given)
    assert (other.status, problem(other)) == (422, "key-reused")
    assert effects == ["ok"]


@pytest.mark.parametrize("bad", ["", "a,b", '"open', "ä", "x" * 256])
def test_a_malformed_key_is_refused(call: ByWsgi, bad: str) -> None:
    answer = call("/sync/ok", idempotency_key=bad)
    assert (answer.status, problem(answer)) == (400, "key-malformed")
    assert effects == []


def test_tenants_and_paths_never_meet(call: ByWsgi) -> None:
    given = key()
    for account in ("a", "b"):
        for path in ("/sync/ok", "/async/ok"):
            assert call(path, idempotency_key=given, x_account=account)["Idempotent-Replayed"] is None
    assert len(effects) == 4


def test_a_body_over_the_limit_is_refused_before_it_is_read(call: ByWsgi) -> None:
    answer = call("/sync/ok", b"x" * 5_001, idempotency_key=key())
    assert (answer.status, problem(answer)) == (413, "body-too-large")
    assert effects == []


def test_a_body_of_unknown_length_is_bounded_too() -> None:
    for call in calling("asgi", SEMEL):
        refused = call("/sync/ok", b"x" * 5_001, idempotency_key=key(), content_length="")
        assert (refused.status, problem(refused)) == (413, "body-too-large")
        assert effects == []
        taken = call("/sync/ok", b"x" * 5_000, idempotency_key=key(), content_length="")
        assert taken.status == 201


FORM = (
    b'--B\r\nContent-Disposition: form-data; name="amount"\r\n\r\n12\r\n'
    b'--B\r\nContent-Disposition: form-data; name="csrfmiddlewaretoken"\r\n\r\n' + b"t" * 32 + b"\r\n"
    b'--B\r\nContent-Disposition: form-data; name="receipt"; filename="a.txt"\r\n\r\nscan\r\n--B--\r\n'
)


def test_forms_with_files_reach_the_view_and_csrf_comes_first(call: ByWsgi) -> None:
    form = {"content_type": "multipart/form-data; boundary=B", "idempotency_key": key()}
    refused = call("/csrf", FORM, **form)
    assert refused.status == 403
    assert effects == []
    first, again = (call("/csrf", FORM, **form, cookie=f"csrftoken={'t' * 32}") for _ in range(2))
    assert json.loads(first.body)["files"] == {"receipt": "scan"}
    assert json.loads(first.body)["post"]["amount"] == "12"
    assert again.kept == first.kept
    assert effects == ["csrf"]
    assert call("/csrf", FORM, **form).status == 403, "a replay is not given to those whom CSRF refuses"


@pytest.mark.parametrize("handler", ["wsgi", "asgi"])
def test_what_is_refused_is_reported_once(handler: str) -> None:
    events: list[Event] = []
    for call in calling(handler, {**SEMEL, "on_event": events.append}):
        form = {"content_type": "multipart/form-data; boundary=B"}
        assert call("/sync/pay", b"x" * 5_001, **form, idempotency_key=key(), x_request_id="req-1").status == 413
        assert call("/sync/pay", FORM, **form, idempotency_key="", x_request_id="req-2").status == 400
    assert [(event.kind, event.detail) for event in events] == [
        (EventKind.REFUSED, "body-too-large"),
        (EventKind.REFUSED, "key-malformed"),
    ]
    assert [(event.request, event.key.scope) for event in events] == [
        ("req-1", "POST /sync/pay"),
        ("req-2", "POST /sync/pay"),
    ]
    assert effects == []


@pytest.mark.parametrize("handler", ["wsgi", "asgi"])
def test_every_event_names_the_request_at_hand(handler: str) -> None:
    events: list[Event] = []
    for call in calling(handler, {**SEMEL, "on_event": events.append}):
        given = key()
        call("/sync/ok", idempotency_key=given, x_request_id="req-1")
        call("/sync/ok", idempotency_key=given, x_request_id="req-2")
        call("/sync/ok", b"another", idempotency_key=given, x_request_id="req-3")
    assert [(event.kind.value, event.request) for event in events] == [
        ("claimed", "req-1"),
        ("completed", "req-1"),
        ("replayed", "req-2"),
        ("mismatched", "req-3"),
    ]


def test_safe_methods_and_unknown_paths_are_left_alone(call: ByWsgi) -> None:
    given = key()
    assert [call("/count", method="GET", idempotency_key=given).body for _ in range(2)] == [b"1", b"2"]
    assert call("/nowhere", idempotency_key=given).status == 404


# Marks and rules


def test_marks_on_views(call: ByWsgi) -> None:
    assert problem(call("/marked")) == "key-missing"
    assert problem(call("/class")) == "key-missing", "the mark on the method goes before the rule for the path"
    assert call("/class", method="PUT").status == 201
    effects.clear()
    given = key()
    for _ in range(2):
        call("/marked", idempotency_key=given)
        call("/class", idempotency_key=given)
        call("/class", method="PUT", idempotency_key=given)
        call("/exempt", idempotency_key=given)
    assert sorted(effects) == ["class", "class", "exempt", "exempt", "marked"]


# In flight


@pytest.mark.parametrize(("handler", "kind"), WAYS)
def test_repeats_while_the_first_one_runs(handler: str, kind: str) -> None:
    given = key()
    path = f"/{kind}/slow?once"
    with ThreadPoolExecutor(4) as pool:
        semel = SEMEL | {"rules": []}
        for call in calling(handler, semel):
            first = pool.submit(call, path, idempotency_key=given)
            assert views.entered.wait(10)
            repeat = call(path, idempotency_key=given)
            other = call(path, b"other", idempotency_key=given)
            asked = call(path, idempotency_key=given, prefer="respond-async")
            views.go_on.set()
            answer = first.result(10)
            assert (repeat.status, problem(repeat), repeat["Retry-After"]) == (409, "in-progress", "1")
            assert problem(other) == "key-reused"
            assert (asked.status, asked["Preference-Applied"]) == (202, "respond-async")
            assert answer.status == 201
            monitored = call(asked["Location"] or "", method="GET")
            assert (monitored.kept[0], monitored.body) == (201, answer.body)
            assert call(asked["Location"] or "", method="GET", x_account="other").status == 404
    assert effects == ["slow"]


def test_who_waits_gets_the_answer(call: ByWsgi) -> None:
    given = key()
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(call, "/sync/slow", idempotency_key=given) for _ in range(4)]
        assert views.entered.wait(10)
        views.go_on.set()
        answers = [each.result(20) for each in calls]
    assert effects == ["slow"]
    assert {answer.body for answer in answers} == {answers[0].body}
    assert sorted(answer["Idempotent-Replayed"] or "" for answer in answers) == ["", "true", "true", "true"]


def test_an_async_handler_answers_202_to_the_first_one_who_prefers_it() -> None:
    for call in calling("asgi", SEMEL):
        given = key()
        first = call("/async/slow", idempotency_key=given, prefer="respond-async, wait=0")
        assert (first.status, first["Preference-Applied"]) == (202, "respond-async")
        assert call(first["Location"] or "", method="GET").status == 202
        views.go_on.set()
        done = wait_for(call, first["Location"] or "")
        assert (done.status, done["Idempotent-Replayed"]) == (201, "true")
        assert effects == ["slow"]


def wait_for(call: ByWsgi | ByAsgi, location: str) -> Answer:
    for _ in range(500):
        answer = call(location, method="GET")
        if answer.status != 202:
            return answer
        threading.Event().wait(0.01)
    raise AssertionError("it never ended")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_caller_that_leaves_does_not_take_the_work_with_it(kind: str) -> None:
    for call in calling("asgi", SEMEL | {"policy": Policy(in_flight="wait"), "rules": []}):
        assert isinstance(call, ByAsgi)
        given = key()

        async def leave(call: ByAsgi = call, given: str = given) -> None:
            leaving = call.communicator(f"/{kind}/slow", idempotency_key=given)
            await leaving.send_input({"type": "http.request", "body": b"{}"})
            while not views.entered.is_set():
                await asyncio.sleep(0.005)
            await leaving.send_input({"type": "http.disconnect"})
            await asyncio.sleep(0.03)
            views.go_on.set()
            await leaving.wait(10)

        call.loop.run(leave())
        again = call(f"/{kind}/slow", idempotency_key=given)
        assert (again.status, again["Idempotent-Replayed"]) == (201, "true")
        assert effects == ["slow"]


# Stores that fail


@pytest.mark.parametrize("handler", ["wsgi", "asgi"])
@pytest.mark.parametrize("on_store_error", ["closed", "open"])
def test_a_store_that_cannot_decide(
    handler: str, on_store_error: str, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broken = SEMEL | {"store": f"sqlite:///{tmp_path}/gone/records.db", "policy": {"on_store_error": on_store_error}}
    for call in calling(handler, broken):
        answer = call("/sync/ok", idempotency_key=key())
        if on_store_error == "closed":
            assert (answer.status, problem(answer), effects) == (503, "store-unavailable", [])
        else:
            assert (answer.status, answer["Idempotency-Stored"], effects) == (201, "false", ["ok"])
        assert "does not exist" in caplog.text, "the log says why"


# Memory


def test_memory_is_bounded_for_a_long_answer_of_a_thread() -> None:
    for call in calling("wsgi", SEMEL):
        assert isinstance(call, ByWsgi)
        given: dict[str, Any] = {"idempotency_key": key()}
        call("/sync/ok")  # what is imported and kept for all requests does not count
        effects.clear()
        tracemalloc.start()
        parts = call.start("/sync/huge", b"{}", "POST", given, [])
        received = sum(map(len, parts))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        parts.close()
        assert (received, problem(call("/sync/huge", **given))) == (views.HUGE * 1_000_000, "result-not-kept")
        assert peak < 8_000_000
        assert effects == ["huge"]


def test_memory_is_bounded_for_a_long_answer_of_a_task() -> None:
    for call in calling("asgi", SEMEL):
        assert isinstance(call, ByAsgi)
        given = key()

        async def size(call: ByAsgi = call, given: str = given) -> int:
            received, asked = 0, [{"type": "http.request", "body": b"{}"}]

            async def receive() -> Any:
                return asked.pop() if asked else await asyncio.Event().wait()

            async def send(message: Any) -> None:
                nonlocal received
                received += len(message.get("body", b""))

            await call.app(call.scope("/async/huge", b"{}", "POST", {"idempotency-key": given}), receive, send)
            return received

        call("/async/ok")
        effects.clear()
        tracemalloc.start()
        received = call.loop.run(size())
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (received, problem(call("/async/huge", idempotency_key=given))) == (
            views.HUGE * 1_000_000,
            "result-not-kept",
        )
        assert peak < 8_000_000
        assert effects == ["huge"]


# The policy document and the settings


def test_marks_are_published(call: ByWsgi) -> None:
    operations = json.loads(call("/.well-known/idempotency", method="GET").body)["operations"]
    shown = {operation.pop("match"): operation for operation in operations}
    assert list(shown) == [
        "PATCH,POST,PUT /marked", "DELETE,PATCH,POST,PUT /shops/{shop}/exempt/{number}",
        "PATCH,POST,PUT /old/{number}/", "DELETE,PATCH,POST,PUT /exempt", "POST /class", "POST /api/function",
        "POST /api/items", "/sync/slow", "/class", "POST /count", "everything else",
    ]  # fmt: skip
    assert shown["POST /class"]["required"] is True
    assert shown["DELETE,PATCH,POST,PUT /exempt"] == {"exempt": True}


def test_the_policy_is_published(call: ByWsgi) -> None:
    answer = call("/.well-known/idempotency", method="GET")
    assert json.loads(answer.body)["headers"] == ["Idempotency-Key", "X-Idempotency-Key"]
    page = call("/.well-known/idempotency", method="GET", accept="text/html")
    assert page["Content-Type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize(
    ("semel", "says"),
    [
        (None, "settings.SEMEL must be a dictionary"),
        ({}, 'settings.SEMEL["store"] is missing'),
        ({"store": "memory://", "polcy": Policy()}, "did you mean 'policy'"),
        ({"store": "memory://", "policy": {"lease": -1}}, "Policy.lease"),
        ({"store": "memory://", "policy": {"leese": 1}}, "leese"),
        ({"store": "memory://", "policy": "strict"}, "settings.SEMEL['policy'] must be a Policy"),
        ({"store": "memory://", "rules": [("POST pay", None)]}, 'settings.SEMEL["rules"][0]'),
        ({"store": "memory://", "identify": "shop.nowhere"}, "settings.SEMEL['identify']"),
        ({"store": "memory://", "policy": {"guarantee": "exactly-once"}}, "exactly-once"),
        ({"store": "memry://"}, "did you mean memory://"),
        ({"store": 3}, 'settings.SEMEL["store"] must be a URL'),
    ],
)
def test_settings_are_checked_at_start_up(semel: Any, says: str) -> None:
    with override_settings(SEMEL=semel), pytest.raises(ImproperlyConfigured) as caught:
        WSGIHandler()
    assert says in str(caught.value)


def test_a_missing_identify_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with override_settings(SEMEL={"store": "memory://"}):
        WSGIHandler()
        WSGIHandler()
    assert caplog.text.count('no "identify"') == 1


def test_a_quota_counts_new_keys_only() -> None:
    pytest.importorskip("limits")
    for handler in ("wsgi", "asgi"):
        for call in calling(handler, SEMEL | {"policy": Policy(quota="2/hour")}):
            keys = [key() for _ in range(3)]
            assert [call("/sync/ok", idempotency_key=each).status for each in keys] == [201, 201, 429]
            assert call("/sync/ok", idempotency_key=keys[0])["Idempotent-Replayed"] == "true"
            assert len(effects) == 2


# Other middleware around


class Reader:
    """Consumes the request's stream, as no middleware should."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        request.read(1)
        return self.get_response(request)


class Plain:
    """A middleware for threads only, which Django runs in one."""

    sync_capable, async_capable = True, False

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        return self.get_response(request)


OURS = "semel.django.IdempotencyMiddleware"


@pytest.mark.parametrize("order", [[f"{__name__}.Plain", OURS], [OURS, f"{__name__}.Plain"]], ids=["before", "after"])
def test_middleware_that_only_runs_in_threads(way: tuple[ByWsgi, str], order: list[str]) -> None:
    handler, kind = way
    with override_settings(MIDDLEWARE=order):
        call = type(handler)()
        given = key()
        first, again = (call(f"/{kind}/ok", idempotency_key=given) for _ in range(2))
        assert again.kept == first.kept
        assert again["Idempotent-Replayed"] == "true"
        assert json.loads(first.body)["psp"] is not None
        assert [call(f"/{kind}/boom", idempotency_key=given).status for _ in range(2)] == [500, 500]
        call.close()
    assert effects == ["ok", "boom"]


def test_a_body_that_somebody_consumed_is_named(call: ByWsgi, caplog: pytest.LogCaptureFixture) -> None:
    with override_settings(MIDDLEWARE=[f"{__name__}.Reader", OURS]):
        again = type(call)()
        assert again("/sync/ok", idempotency_key=key()).status == 500
        again.close()
    assert "was read as a stream before" in caplog.text
    assert effects == []


def test_the_language_that_a_view_chose_is_still_chosen_outside(call: ByWsgi) -> None:
    with override_settings(MIDDLEWARE=["django.middleware.locale.LocaleMiddleware", OURS]):
        again = type(call)()
        answer = again("/sync/german", idempotency_key=key())
        again.close()
    assert answer["Content-Language"] == "de"


@pytest.mark.parametrize("handler", ["wsgi", "asgi"])
def test_exceptions_that_are_let_through_are_settled(handler: str) -> None:
    for call in calling(handler, SEMEL):
        given = key()
        with override_settings(DEBUG_PROPAGATE_EXCEPTIONS=True), pytest.raises(RuntimeError, match="on purpose"):
            call("/sync/boom", idempotency_key=given)
        again = call("/sync/boom", idempotency_key=given)
        assert (problem(again), again["Idempotent-Replayed"]) == ("internal-error", "true")
        assert effects == ["boom"]


def test_users_are_told_apart_by_default() -> None:
    """The session's user is the tenant, else a digest of the credentials."""
    for handler in ("wsgi", "asgi"):
        for call in calling(handler, {"store": "memory://"}):
            given = key()
            for who in ("Bearer a", "Bearer b"):
                answer = call("/sync/ok", idempotency_key=given, authorization=who)
                assert answer["Idempotent-Replayed"] is None
            assert call("/sync/ok", idempotency_key=given)["Idempotent-Replayed"] is None
            assert len(effects) == 3


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_user_of_the_session_is_the_tenant(kind: str) -> None:
    seen: list[str] = []
    for handler in ("wsgi", "asgi"):
        config = {"store": "memory://", "on_event": lambda event: seen.append(event.key.tenant)}
        with override_settings(MIDDLEWARE=[f"{__name__}.Users", OURS]):
            for call in calling(handler, config):
                call(f"/{kind}/ok", idempotency_key=key(), x_user="7", authorization="Bearer changes")
    assert set(seen) == {"user.7"}


class User:
    is_authenticated = True

    def __init__(self, pk: str) -> None:
        self.pk = pk


class Users:
    """Stands for Django's authentication, with its two ways to ask."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        request.user = User(request.headers["X-User"])

        async def auser() -> User:
            return User(request.headers["X-User"])

        request.auser = auser
        return self.get_response(request)
