"""One behaviour suite against the wire: frameworks, servers, stores in a covering selection. Effects are counted."""

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
from serving import AppServer, Deployment, Reply, read, request, store_url

SELECTION = [
    ("bare", "uvicorn-h11", "memory"),
    ("bare", "granian", "sqlite"),
    ("starlette_app", "uvicorn-httptools", "redis"),
    ("fastapi_app", "hypercorn", "postgres"),
    ("litestar_app", "granian", "redis"),
    ("litestar_app", "uvicorn-h11", "sqlite"),
    ("litestar_app", "uvicorn-httptools", "postgres"),
    ("quart_app", "hypercorn", "sqlite"),
    ("quart_app", "uvicorn-httptools", "postgres"),
    ("quart_app", "granian", "redis"),
    ("wsgi_app", "wsgiref", "memory"),
    ("wsgi_app", "wsgiref", "postgres"),
    ("wsgi_app", "waitress", "sqlite"),
    ("wsgi_app", "gunicorn", "redis"),
    ("flask_app", "gunicorn", "sqlite"),
    ("flask_app", "waitress", "redis"),
    ("flask_app", "gunicorn", "postgres"),
    ("django_wsgi", "gunicorn", "sqlite"),
    ("django_wsgi", "waitress", "postgres"),
    ("django_wsgi", "gunicorn", "redis"),
    ("django_app", "uvicorn-h11", "sqlite"),
    ("django_app", "uvicorn-httptools", "postgres"),
    ("django_app", "uvicorn-h11", "redis"),
    ("plain", "gateway", "sqlite"),
]
"""Every front meets every durable store, and every server some front."""
ONE_LINE_FOR_A_NAME = ("django_app", "django_wsgi")
"""Django's headers are a dictionary: a line that the view sets twice has its last value."""
OWN_PAGES = ("flask_app", "quart_app", "litestar_app", "django_app", "django_wsgi")
"""Their frameworks answer for an exception before it gets to the middleware: that page is the answer."""
BLOCKING = ("django_wsgi",)
"""Django's handler calls the view in the thread of the server, so a first caller waits whatever it prefers."""

OUTSIDE = ("plain",)
"""Behind a gateway the work is in another process: nothing but its status can say that nothing was done."""

TAKES_CHUNKS_FOR_NOTHING = [("wsgi_app", "wsgiref"), ("django_wsgi", "gunicorn")]
"""wsgiref does not read chunks. Django through WSGI wants a length, which waitress makes up and gunicorn does not."""


class Served(NamedTuple):
    app: str
    server: str
    deployment: Deployment


@pytest.fixture(scope="module", params=SELECTION, ids="-".join)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    app, server, store = request.param
    with Deployment(app, server, store_url(store, request)) as deployment:
        yield Served(app, server, deployment)


@pytest.fixture
def deployment(served: Served) -> Iterator[Deployment]:
    served.deployment.hold()
    yield served.deployment
    served.deployment.let_go()


@pytest.fixture
def server(deployment: Deployment) -> AppServer:
    return deployment.server


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex


@pytest.mark.parametrize(
    ("action", "status"),
    [
        ("pay", 201), ("binary", 200), ("empty", 200), ("none", 204), ("see", 303), ("bad", 400), ("missing", 404),
        ("broken", 502), ("stream", 200), ("gzip", 200), ("repeated", 200),
    ],
)  # fmt: skip
def test_every_answer_is_replayed_byte_for_byte(
    served: Served, deployment: Deployment, key: str, action: str, status: int
) -> None:
    first, *repeats = [deployment.server.post(f"/{action}", key) for _ in range(3)]
    assert first.status == status
    assert not first.replayed
    for repeat in repeats:
        assert repeat.replayed
        assert repeat.lasting == first.lasting
        assert repeat.header("set-cookie") is None
        assert sum(name.lower() == "date" for name, _ in repeat.headers) <= 1
    assert deployment.effects(key) == 1
    if action == "repeated":
        assert [value for name, value in first.headers if name.lower() == "x-a"] == (
            ["1"] if served.app in ONE_LINE_FOR_A_NAME else ["1", "3", "1"]
        )
        assert [value for name, value in first.headers if name.lower() == "set-cookie"] == ["a=1", "b=2"]


def test_without_a_key_every_request_runs(deployment: Deployment) -> None:
    before = deployment.effects("-")
    assert [deployment.server.post("/pay", None).status for _ in range(2)] == [201, 201]
    assert deployment.effects("-") == before + 2
    assert deployment.server.post("/directive", None).header("semel-directive") is None


@pytest.mark.parametrize("action", ["refused", "not-executed", "nothing-done"])
def test_what_did_nothing_gives_the_key_back(served: Served, deployment: Deployment, key: str, action: str) -> None:
    answers = [deployment.server.post(f"/{action}", key) for _ in range(2)]
    assert [answer.status for answer in answers] == ([201] * 2 if action == "nothing-done" else [503] * 2)
    assert not any(answer.header("idempotency-stored") for answer in answers)
    if served.app in OUTSIDE and action == "nothing-done":
        assert (answers[1].replayed, deployment.effects(key)) == (True, 1)
        return
    assert not any(answer.replayed for answer in answers)
    if action == "not-executed":
        assert {(answer.problem, answer.header("retry-after")) for answer in answers} == {("not-executed", "1")}
    assert deployment.effects(key) == 2


def test_a_raised_exception_is_stable_and_logged(served: Served, deployment: Deployment, key: str) -> None:
    first, again = deployment.server.post("/raise", key), deployment.server.post("/raise", key)
    assert (first.status, again.lasting, again.replayed) == (500, first.lasting, True)
    assert deployment.effects(key) == 1
    assert b"a secret of the application" not in first.body
    deployment.server.wait_for_log("a secret of the application")
    if served.app in OWN_PAGES:
        assert b"Server Error" in first.body
    else:
        assert first.problem == "internal-error"


def test_a_large_answer_is_delivered_whole_and_not_kept(deployment: Deployment, key: str) -> None:
    assert deployment.server.post("/large", key).body == b"x" * 200_000
    again = deployment.server.post("/large", key)
    assert (again.status, again.problem, deployment.effects(key)) == (409, "result-not-kept", 1)


def test_a_directive(deployment: Deployment, key: str) -> None:
    first = deployment.server.post("/directive", key)
    assert (first.status, first.header("semel-directive")) == (200, None)
    assert (deployment.server.post("/directive", key).problem, deployment.effects(key)) == ("result-not-kept", 1)


def test_in_flight_mismatch_and_then_replay(deployment: Deployment, key: str) -> None:
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(deployment.server.post, "/hold", key)
        deployment.wait_for_effect(key)
        again = deployment.server.post("/hold", key)
        assert (again.status, again.problem, again.header("retry-after")) == (409, "in-progress", "1")
        other = deployment.server.post("/hold", key, b"other")
        assert (other.status, other.problem) == (422, "key-reused")
        deployment.let_go()
        answer = first.result()
    assert deployment.server.post("/hold", key).lasting == answer.lasting
    assert deployment.server.post("/hold", key, b"other").status == 422
    assert deployment.effects(key) == 1


def test_fifty_at_once(deployment: Deployment, key: str) -> None:
    with ThreadPoolExecutor(50) as threads:
        answers = list(threads.map(lambda _: deployment.server.post("/pay", key), range(50)))
    assert deployment.effects(key) == 1
    assert {answer.status for answer in answers} <= {201, 409}
    assert len({answer.body for answer in answers if answer.status == 201}) == 1


@pytest.mark.parametrize("change", ["caller", "path", "method"])
def test_other_callers_paths_and_methods_never_meet(deployment: Deployment, key: str, change: str) -> None:
    first = deployment.server.post("/pay", key, b"{}", "Caller: ann")
    assert first.status == 201
    match change:
        case "caller":
            other = deployment.server.post("/pay", key, b"{}", "Caller: bob")
        case "path":
            other = deployment.server.post("/other", key, b"{}", "Caller: ann")
        case _:
            other = deployment.server.send(
                request("PUT", "/pay", b"", [f"Idempotency-Key: {key}", "Caller: ann", "Content-Length: 0"])
            )
    assert not other.replayed
    assert other.status != 422


@pytest.mark.parametrize(("path", "body"), [("/pay?a=1", b"{}"), ("/pay", b"{} "), ("/pay", b"")])
def test_another_query_or_body_is_another_request(deployment: Deployment, key: str, path: str, body: bytes) -> None:
    deployment.server.post("/pay", key)
    other = deployment.server.post(path, key, body)
    assert (other.status, other.problem, other.header("cache-control")) == (422, "key-reused", "no-store")
    assert deployment.effects(key) == 1


def test_equal_json_is_the_same_request_where_that_was_chosen(deployment: Deployment, key: str) -> None:
    first = deployment.server.post("/json", key, b'{"a": 1, "b": 2}')
    assert deployment.server.post("/json", key, b'{"b":2.0,"a":1}').lasting == first.lasting
    assert deployment.server.post("/json", key, b'{"b":2,"a":2}').status == 422
    assert deployment.effects(key) == 1


def test_quoted_bare_and_padded_are_the_same_key(deployment: Deployment, key: str) -> None:
    spellings = [key, f'"{key}"', f"  {key} \t", f'"{key}";v=1']
    answers = [deployment.server.post("/pay", spelling) for spelling in spellings]
    answers.append(deployment.server.post("/pay", None, b"{}", f"X-Idempotency-Key: {key}"))
    assert [answer.replayed for answer in answers] == [False, True, True, True, True]
    assert len({answer.body for answer in answers}) == 1
    assert deployment.effects(key) == 1


@pytest.mark.parametrize("value", ["", '""', "a,b", "a b", '"a', "caf\xe9", "k" * 256, '"a"b'])
def test_a_malformed_key_is_refused_and_nothing_runs(deployment: Deployment, value: str) -> None:
    before = len((deployment.folder / "ledger").read_text()) if (deployment.folder / "ledger").exists() else 0
    answer = deployment.server.post("/pay", value)
    assert (answer.status, answer.problem) == (400, "key-malformed")
    assert (deployment.folder / "ledger").exists() is bool(before)
    assert not before or len((deployment.folder / "ledger").read_text()) == before


def test_repeated_and_disagreeing_headers_are_refused(deployment: Deployment, key: str) -> None:
    assert deployment.server.post("/pay", key, b"{}", f"Idempotency-Key: {key}").status == 400
    assert deployment.server.post("/pay", key, b"{}", "X-Idempotency-Key: other").status == 400
    assert deployment.effects(key) == 0


def test_rules(deployment: Deployment, key: str) -> None:
    missing = deployment.server.post("/required", None)
    assert (missing.status, missing.problem) == (400, "key-missing")
    assert deployment.server.post("/strict", key).status == 400
    assert deployment.server.post("/strict", f'"{key}"').status == 201
    assert [deployment.server.post("/exempt", key).replayed for _ in range(2)] == [False, False]


def test_a_body_over_the_limit_is_refused(served: Served, deployment: Deployment, key: str) -> None:
    assert deployment.server.post("/pay", key, b"x" * 10_000).status == 201
    if served.server == "waitress" or served.app == "django_app":  # they take the whole body in before they ask anybody
        answer = deployment.server.post("/pay", f"{key}2", b"x" * 10_001)
    else:  # others may close before everything was sent
        with deployment.server.open() as connection:
            connection.sendall(request("POST", "/pay", b"", [f"Idempotency-Key: {key}2", "Content-Length: 10001"]))
            answer = read(connection)
    assert (answer.status, answer.problem) == (413, "body-too-large")
    assert deployment.effects(f"{key}2") == 0


def test_a_chunked_request_is_the_same_request(served: Served, deployment: Deployment, key: str) -> None:
    first = deployment.server.post("/pay", key, b'{"a":1}')
    chunked = request(
        "POST", "/pay", b'3\r\n{"a\r\n4\r\n":1}\r\n0\r\n\r\n', [f"Idempotency-Key: {key}", "Transfer-Encoding: chunked"]
    )
    again = deployment.server.send(chunked)
    if (served.app, served.server) in TAKES_CHUNKS_FOR_NOTHING:
        assert again.status == 411
        assert deployment.server.post("/pay", key, b'{"a":1}').lasting == first.lasting
    else:
        assert again.lasting == first.lasting
    assert deployment.effects(key) == 1


def test_a_client_that_leaves_while_the_work_runs_loses_nothing(deployment: Deployment, key: str) -> None:
    with deployment.server.open() as connection:
        connection.sendall(request("POST", "/hold", b"{}", [f"Idempotency-Key: {key}"]))
        deployment.wait_for_effect(key)
    deployment.let_go()
    while (again := deployment.server.post("/hold", key)).status == 409:
        assert again.problem == "in-progress"
    assert (again.status, again.replayed, deployment.effects(key)) == (201, True, 1)


def test_a_client_that_leaves_while_sending_its_body_causes_nothing(deployment: Deployment, key: str) -> None:
    with deployment.server.open() as connection:
        connection.sendall(request("POST", "/pay", b"{", [f"Idempotency-Key: {key}", "Content-Length: 2"]))
    first = deployment.server.post("/pay", key)
    assert (first.status, first.replayed, deployment.effects(key)) == (201, False, 1)


def test_accepted_work_and_its_monitor(served: Served, deployment: Deployment, key: str) -> None:
    lines = ("Prefer: respond-async", "Caller: ann")
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(deployment.server.post, "/hold", key, b"{}", *lines)
        deployment.wait_for_effect(key)
        accepted = deployment.server.post("/hold", key, b"{}", *lines) if served.app in BLOCKING else first.result()
        done = monitored(deployment, accepted)
        if served.app in BLOCKING:
            assert first.result().lasting == done.lasting
    assert deployment.server.post("/hold", key, b"{}", "Caller: ann").lasting == done.lasting
    assert deployment.effects(key) == 1


def monitored(deployment: Deployment, accepted: Reply) -> Reply:
    """Follow accepted work of ann's to its end. Only she may, and only with the link she was given."""
    assert (accepted.status, accepted.header("preference-applied")) == (202, "respond-async")
    place = accepted.header("location")
    assert place is not None
    running = deployment.server.get(place, "Caller: ann")
    assert (running.status, running.header("retry-after")) == (202, "1")
    deployment.let_go()
    while (done := deployment.server.get(place, "Caller: ann")).status == 202:
        pass
    assert (done.status, done.replayed) == (201, True)
    assert deployment.server.get(place, "Caller: bob").status in (404, 405)
    assert deployment.server.get(place[:-3] + "xxx", "Caller: ann").status in (404, 405)
    return done


def test_the_policy_is_published(server: AppServer) -> None:
    answer = server.get("/.well-known/idempotency")
    operation = json.loads(answer.body)["operations"][0]
    assert (operation["match"], operation["required"]) == ("POST /required", True)
    page = server.get("/.well-known/idempotency", "Accept: text/html")
    assert page.header("content-type") == "text/html; charset=utf-8"
