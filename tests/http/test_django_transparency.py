"""What a Django project notices of the middleware: requests that it does not protect stay as they are."""

import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

pytest.importorskip("django")
pytest.importorskip("rest_framework")

import django_site  # noqa: F401, I001
from django.test import Client, override_settings

from django_site import own_pages, views
from django_site.calling import ByAsgi, ByWsgi
from django_site.views import effects
from semel import Fingerprint, Policy, Result
from semel.django.front import async_front, front

SEMEL: dict[str, Any] = {"store": "memory://", "identify": lambda request: "me", "secret": "a secret of the tests"}


@pytest.fixture(autouse=True)
def configured() -> Iterator[None]:
    effects.clear()
    views.headers_seen.clear()
    with override_settings(SEMEL=SEMEL):
        yield


# Header values that are no text: Django's test client lets them through


class Opaque:
    """What no one may look at in a request that is not protected."""

    def __str__(self) -> str:
        raise AssertionError("looked at")


def test_a_request_that_is_not_ours_is_not_looked_at() -> None:
    answer = Client().get("/count", headers={"X-Count": 5, "X-Opaque": Opaque()}, HTTP_REFERER=None)
    assert answer.status_code == 200
    assert Client().get("/.well-known/idempotency", HTTP_ACCEPT=None).status_code == 200


@pytest.mark.parametrize("odd", [{"HTTP_X_COUNT": 5}, {"HTTP_REFERER": None}, {"HTTP_X_NAME": "\u2603"}])
def test_header_values_that_are_no_text_reach_the_view(odd: dict[str, Any]) -> None:
    for headers in ({}, {"Idempotency-Key": "k"}):
        assert Client().post("/sync/headers", headers=headers, **odd).status_code == 200
        assert views.headers_seen.pop().items() >= odd.items()


def test_a_key_is_the_text_that_it_would_be_on_the_wire() -> None:
    key = uuid.uuid4()
    first = Client().post("/sync/ok", headers={"Idempotency-Key": key})
    again = Client().post("/sync/ok", headers={"Idempotency-Key": str(key)})
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.content == first.content
    assert effects == ["ok"]


def test_a_header_that_is_none_is_absent() -> None:
    for _ in range(2):
        answer = Client().post("/sync/ok", HTTP_IDEMPOTENCY_KEY=None, HTTP_AUTHORIZATION=None)
        assert "Idempotent-Replayed" not in answer.headers
    assert len(effects) == 2


def test_chosen_headers_that_are_no_text_count() -> None:
    with override_settings(SEMEL=SEMEL | {"policy": Policy(fingerprint=Fingerprint(headers=("X-Count",)))}):
        client = Client()
        statuses = [
            client.post("/sync/ok", headers={"Idempotency-Key": "k", "X-Count": count}).status_code
            for count in (5, "5", 6)
        ]
    assert statuses == [201, 201, 422]
    assert effects == ["ok"]


def test_callers_are_told_apart_by_credentials_that_are_no_text() -> None:
    with override_settings(SEMEL={"store": "memory://"}):
        client = Client()
        for credentials in (5, None, "5"):
            client.post("/sync/ok", HTTP_IDEMPOTENCY_KEY="k", HTTP_AUTHORIZATION=credentials)
    assert len(effects) == 2, "5 and '5' are one caller, none is another"


def test_other_names_that_are_none_are_absent() -> None:
    odd: dict[str, Any] = {"HTTP_TRANSFER_ENCODING": None, "HTTP_PREFER": None, "QUERY_STRING": None}
    assert Client().post("/sync/ok", HTTP_IDEMPOTENCY_KEY="k", **odd).status_code == 201


# Reason phrases


@pytest.mark.parametrize("answer", ["splendid", "splendid-stream", "ok"])
def test_a_reason_phrase_is_replayed(answer: str) -> None:
    client = Client(headers={"Idempotency-Key": "k"})
    first, again = client.post(f"/sync/{answer}"), client.post(f"/sync/{answer}")
    assert first.reason_phrase == again.reason_phrase == ("Created" if answer == "ok" else "Splendid")
    assert again.headers["Idempotent-Replayed"] == "true"
    assert effects == [answer]


# The application's own answer for an exception


@pytest.fixture(params=["wsgi", "asgi"])
def call(request: pytest.FixtureRequest) -> Iterator[ByWsgi | ByAsgi]:
    made = ByWsgi() if request.param == "wsgi" else ByAsgi()
    yield made
    made.close()


def stored(call: ByWsgi | ByAsgi) -> Result:
    """The one result that the store holds."""
    page = call.loop.run(async_front().store.scan()) if isinstance(call, ByAsgi) else front().store.scan()
    [record] = page.records
    result: Result = record.result
    return result


@pytest.mark.parametrize("path", ["/sync/boom", "/async/boom", "/api/plain"])
@pytest.mark.parametrize("status", [500, 503, 200])
def test_the_projects_page_for_what_it_does_not_handle_is_the_answer(
    call: ByWsgi | ByAsgi, path: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its status says, it is a failure, and never gives the key back."""
    monkeypatch.setattr(own_pages, "status", status)
    with override_settings(ROOT_URLCONF="django_site.own_pages"):
        first, again = (call(path, b'{"boom": true}', idempotency_key="k") for _ in range(2))
    assert (first.status, first.body, first["X-Own"]) == (status, b"own page after 1", "yes")
    assert again.kept == first.kept
    assert again["Idempotent-Replayed"] == "true"
    assert len(effects) == 1
    assert not stored(call).ok


def test_without_a_page_of_the_project_djangos_is_the_answer(call: ByWsgi | ByAsgi) -> None:
    bare, first, again = call("/sync/boom"), *(call("/sync/boom", idempotency_key="k") for _ in range(2))
    assert first.kept == again.kept == bare.kept
    assert again["Idempotent-Replayed"] == "true"
    assert len(effects) == 2


@pytest.mark.parametrize(
    ("answer", "status"), [("boom", 500), ("suspicious", 400), ("missing", 404), ("interrupted", 504)]
)
def test_a_debug_page_is_sent_and_never_stored(call: ByWsgi | ByAsgi, answer: str, status: int) -> None:
    with override_settings(DEBUG=True):
        bare = call(f"/sync/{answer}")
        first, again = (call(f"/sync/{answer}", idempotency_key="k") for _ in range(2))
    assert first.status == status
    assert len(effects) == 2
    if answer == "missing":  # this page shows no traceback
        assert again.kept == first.kept
    elif answer == "interrupted":
        assert (b"interrupted" in first.body, again.status) == (True, 409)
    else:
        assert (bare.status, b"Traceback" in bare.body, b"Traceback" in first.body) == (status, True, True)
        assert (again.status, b"result-not-kept" in again.body) == (409, True)
        assert stored(call) == Result("http-not-kept.1", b"", ok=False)


def test_exceptions_surface_in_tests_as_without_us() -> None:
    for _ in range(2):  # a repeat raises nothing, because nothing runs
        with pytest.raises(RuntimeError, match="on purpose") if not effects else nullcontext():
            Client().post("/sync/boom", headers={"Idempotency-Key": "k"})
    assert effects == ["boom"]


@pytest.mark.parametrize("answer", ["undone-boom", "undone-break"])
def test_work_that_did_nothing_and_raised_gives_its_key_back(call: ByWsgi | ByAsgi, answer: str) -> None:
    statuses = [call(f"/sync/{answer}", idempotency_key="k").status for _ in range(2)]
    assert statuses == [500, 500]
    assert len(effects) == 2
