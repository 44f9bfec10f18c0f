"""Django REST framework: functions, views and viewsets, and keys that are claimed after authentication."""

import importlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("django")
pytest.importorskip("rest_framework")

import django_site  # noqa: F401, I001
from django.http import HttpRequest
from django.test import override_settings

from django_site.api import tokens
from django_site.calling import ByAsgi, ByWsgi
from django_site.views import effects, entered, go_on
from semel.django.openapi import describe_schema


@pytest.fixture(params=[ByWsgi, ByAsgi], ids=["wsgi", "asgi"])
def call(request: pytest.FixtureRequest) -> Iterator[ByWsgi | ByAsgi]:
    effects.clear()
    with override_settings(SEMEL={"store": "memory://"}):
        call = request.param()
        yield call
        call.close()


@pytest.mark.parametrize("path", ["/api/function", "/api/plain"])
def test_views_are_protected(call: ByWsgi, path: str) -> None:
    given = uuid4().hex
    first, again = (call(path, b'{"amount": 5}', idempotency_key=given) for _ in range(2))
    assert (first.status, json.loads(first.body)) == (201, {"got": {"amount": 5}})
    assert again.kept == first.kept
    assert len(effects) == 1


def test_a_mark_above_api_view_is_found(call: ByWsgi) -> None:
    assert call("/api/function").status == 400
    assert call("/api/plain").status == 201


def test_what_is_raised_in_a_view_is_answered_alike(call: ByWsgi) -> None:
    given = uuid4().hex
    first, again = (call("/api/plain", b'{"boom": true}', idempotency_key=given) for _ in range(2))
    assert first.status == 500
    assert b"Server Error (500)" in first.body
    assert again.kept == first.kept
    assert effects == ["plain"]


def test_the_framework_s_refusals_are_answers(call: ByWsgi) -> None:
    given = uuid4().hex
    first, again = (call("/api/plain", b"{broken", idempotency_key=given) for _ in range(2))
    assert first.status == 400
    assert again.kept == first.kept


@pytest.mark.parametrize("path", ["/api/guarded", "/api/items"])
def test_the_mixin_knows_who_calls_whatever_token_is_used(call: ByWsgi, path: str) -> None:
    given = uuid4().hex
    answers = [call(path, idempotency_key=given, authorization=f"Bearer token-{number}") for number in (1, 2, 3)]
    assert [json.loads(answer.body)["by"] for answer in answers] == ["alice", "alice", "bob"]
    assert [answer["Idempotent-Replayed"] for answer in answers] == [None, "true", None]
    assert len(effects) == 2


def test_with_the_mixin_nothing_is_replayed_to_who_may_not_ask(call: ByWsgi, monkeypatch: pytest.MonkeyPatch) -> None:
    given = uuid4().hex
    assert call("/api/guarded", idempotency_key=given, authorization="Bearer token-1").status == 201
    monkeypatch.delitem(tokens, "token-1")
    refused = call("/api/guarded", idempotency_key=given, authorization="Bearer token-1")
    assert (refused.status, refused["Idempotent-Replayed"]) == (401, None)
    assert effects == ["guarded"]


def test_actions_of_viewsets_have_their_own_marks(call: ByWsgi) -> None:
    assert call("/api/items", authorization="Bearer token-1").status == 400
    assert call("/api/items", method="PUT", authorization="Bearer token-1").status == 200


def by_header(request: HttpRequest) -> str | None:
    """Somebody in front vouches for the header; who sends it to the view without a token is refused there."""
    account: str | None = request.headers.get("X-Account")
    return account


@pytest.mark.parametrize("identify", [None, by_header])
@pytest.mark.parametrize("way", [ByWsgi, ByAsgi])
def test_the_monitor_of_a_view_that_authenticates_knows_who_asks(
    way: type[ByWsgi] | type[ByAsgi], identify: Callable[[HttpRequest], str | None] | None
) -> None:
    effects.clear()
    entered.clear()
    go_on.clear()
    account: dict[str, Any] = {"x_account": "alice"}
    given: dict[str, Any] = {"idempotency_key": uuid4().hex, "authorization": "Bearer token-1", **account}
    semel = {"store": "memory://", "secret": "a secret of the tests", "identify": identify}
    with override_settings(SEMEL=semel), ThreadPoolExecutor(1) as threads:
        call: ByWsgi | ByAsgi = way()
        first = threads.submit(lambda: call("/api/slow/1", **given))
        assert entered.wait(10)
        accepted = call("/api/slow/1", prefer="respond-async", **given)
        assert (accepted.status, accepted["Preference-Applied"]) == (202, "respond-async")
        place = accepted["Location"] or ""
        assert call(place, method="GET", authorization="Bearer token-2", **account).status == 202
        go_on.set()
        assert first.result(10).status == 201
        done = call(place, method="GET", authorization="Bearer token-2", **account)
        assert (done.status, json.loads(done.body), done["Idempotent-Replayed"]) == (201, {"by": "alice"}, "true")
        strangers: list[dict[str, Any]] = [{"authorization": "Bearer unknown"}, {}]
        for stranger in strangers:
            assert call(place, method="GET", **account, **stranger).status == 404
        assert call(place, method="GET", authorization="Bearer token-3", x_account="bob").status == 404
        assert call(place + "x", method="GET", **given).status == 404
        call.close()
    assert effects == ["slow"]


def test_a_first_caller_of_a_view_that_authenticates_gets_its_202_at_once() -> None:
    effects.clear()
    go_on.clear()
    given: dict[str, Any] = {"idempotency_key": uuid4().hex, "authorization": "Bearer token-1"}
    alone = ["semel.django.IdempotencyMiddleware"]  # others would want the thread in which the view is
    with override_settings(SEMEL={"store": "memory://", "secret": "a secret of the tests"}, MIDDLEWARE=alone):
        call = ByAsgi()

        async def ask() -> Any:
            asking = call.communicator("/api/slow/1", prefer="respond-async", **given)
            await asking.send_input({"type": "http.request", "body": b"{}"})
            start = await asking.receive_output(10)
            go_on.set()
            await asking.receive_output(10)
            await asking.wait(10)
            return start["status"]

        assert call.loop.run(ask()) == 202
        while (again := call("/api/slow/1", **given)).status == 409:
            pass
        assert (again.status, again["Idempotent-Replayed"], effects) == (201, "true", ["slow"])
        call.close()


def test_the_mixin_needs_the_middleware() -> None:
    effects.clear()
    with override_settings(SEMEL={"store": "memory://"}, MIDDLEWARE=[]):
        assert ByWsgi()("/api/guarded", authorization="Bearer token-1").status == 500
    assert effects == []


def test_drf_spectacular_s_schema_shows_the_key_and_the_problems() -> None:
    with override_settings(SEMEL={"store": "memory://"}):
        generators: Any = importlib.import_module("drf_spectacular.generators")
        document = generators.SchemaGenerator().get_schema(request=None, public=True)
        paths = describe_schema(document, None, None, True)["paths"]
    shown = {path: _header(paths[path]["post"]) for path in ("/api/function", "/api/plain", "/api/items")}
    assert {path: header["required"] for path, header in shown.items()} == {
        "/api/function": True,
        "/api/plain": False,
        "/api/items": True,
    }
    assert "application/problem+json" in paths["/api/plain"]["post"]["responses"]["422"]["content"]


def _header(operation: dict[str, Any]) -> dict[str, Any]:
    header: dict[str, Any]
    [header] = [each for each in operation["parameters"] if each["name"] == "Idempotency-Key"]
    return header
