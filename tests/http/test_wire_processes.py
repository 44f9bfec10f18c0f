"""Several server processes on one store: races, kills, pauses. Effects are counted outside of every process."""

import contextlib
import shutil
import signal
import sqlite3
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from serving import Deployment, Reply, store_url

LEASE_MS = 30_000
DURABLE = ["sqlite", "postgres", "redis"]
Served = tuple[str, str, str]
"""An application, a server and a store."""
RACING: list[Served] = [
    *(("bare", "uvicorn-httptools", store) for store in DURABLE),
    ("starlette_app", "uvicorn-workers", "sqlite"),  # forked workers, and no lifespan to open or close anything
    ("flask_app", "gunicorn", "sqlite"),
    ("flask_app", "waitress", "postgres"),
    ("flask_app", "gunicorn", "redis"),
    ("django_wsgi", "gunicorn", "sqlite"),
    ("django_app", "uvicorn-h11", "postgres"),
    ("django_wsgi", "waitress", "redis"),
]
PAUSED: list[Served] = [
    *(("bare", "uvicorn-h11", store) for store in DURABLE),
    ("wsgi_app", "gunicorn", "redis"),
    ("django_app", "uvicorn-httptools", "postgres"),
    ("django_wsgi", "gunicorn", "sqlite"),
]
KILLED: list[Served] = [
    *PAUSED,  # first and in this order: pytest then runs what is parametrized with the same deployment together
    ("wsgi_app", "waitress", "sqlite"),
    ("wsgi_app", "wsgiref", "postgres"),
    ("django_wsgi", "waitress", "redis"),
]
ALONE = [("bare", "uvicorn-h11"), ("wsgi_app", "waitress"), ("django_wsgi", "gunicorn"), ("django_app", "uvicorn-h11")]


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex


@pytest.fixture(params=RACING, ids="-".join)
def three(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    app, server, store = request.param
    with Deployment(app, server, store_url(store, request), processes=3) as deployment:
        yield deployment


def test_fifty_at_once_on_three_processes_take_effect_once(three: Deployment, key: str) -> None:
    for round in range(5):
        name = f"{key}{round}"
        with ThreadPoolExecutor(50) as threads:
            answers = list(threads.map(lambda number: three.servers[number % 3].post("/pay", name), range(50)))  # noqa: B023
        assert three.effects(name) == 1
        assert {answer.status for answer in answers} <= {201, 409}
        assert {answer.problem for answer in answers if answer.status == 409} <= {"in-progress"}
        assert {server.post("/pay", name).body for server in three.servers} == {
            answer.body for answer in answers if answer.status == 201
        }


def deployed(policy: str, fixtures: pytest.FixtureRequest, served: Served) -> Deployment:
    app, server, store = served
    return Deployment(app, server, store_url(store, fixtures), processes=2, policy=policy)


def all_running(deployment: Deployment) -> Deployment:
    """Whoever was killed by the test before is back, and work that is to be held is held."""
    for server in deployment.servers:
        if not server.running:
            server.start()
    deployment.hold()
    return deployment


@pytest.fixture(scope="module")
def strict_pair(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    with deployed("default", request, request.param) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def eager_pair(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    with deployed("at-least-once", request, request.param) as deployment:
        yield deployment


@pytest.mark.parametrize("strict_pair", PAUSED, ids="-".join, indirect=True)
def test_a_paused_worker_never_makes_it_two(strict_pair: Deployment, key: str) -> None:
    """Paused past its lease, then awake again: nobody took its key, and its answer is everybody's."""
    deployment = all_running(strict_pair)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(deployment.servers[0].post, "/hold", key)
        deployment.wait_for_effect(key)
        deployment.servers[0].pause()
        deployment.move_clock(LEASE_MS)
        assert deployment.servers[1].post("/hold", key).problem == "outcome-unknown"
        deployment.let_go()
        assert deployment.servers[1].post("/hold", key).problem == "outcome-unknown"
        deployment.servers[0].resume()
        answer: Reply = first.result()
        again = deployment.servers[1].post("/hold", key)
        assert (answer.status, again.lasting, again.replayed) == (201, answer.lasting, True)
        assert deployment.effects(key) == 1


@pytest.mark.parametrize("strict_pair", KILLED, ids="-".join, indirect=True)
def test_a_killed_worker_leaves_the_outcome_unknown(strict_pair: Deployment, key: str) -> None:
    deployment = all_running(strict_pair)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(deployment.servers[0].post, "/hold", key)
        deployment.wait_for_effect(key)
        deployment.servers[0].kill()
        assert first.exception() is not None
        other = deployment.servers[1]
        assert other.post("/hold", key).problem == "in-progress"
        deployment.move_clock(LEASE_MS)
        for _ in range(3):
            again = other.post("/hold", key)
            assert (again.status, again.problem, again.header("retry-after")) == (409, "outcome-unknown", None)
        assert other.post("/hold", key, b"other").problem == "key-reused"
        assert deployment.effects(key) == 1
        deployment.move_clock(30 * 24 * 3600 * 1000)
        deployment.let_go()
        assert other.post("/hold", key).status == 201  # past retention nothing is owed any more
        assert deployment.effects(key) == 2


@pytest.mark.parametrize("eager_pair", PAUSED, ids="-".join, indirect=True)
def test_a_paused_worker_that_was_superseded_answers_with_the_stores_answer(eager_pair: Deployment, key: str) -> None:
    deployment = all_running(eager_pair)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(deployment.servers[0].post, "/hold", key)
        deployment.wait_for_effect(key)
        deployment.servers[0].pause()
        deployment.move_clock(LEASE_MS)
        deployment.let_go()
        second = deployment.servers[1].post("/hold", key)
        assert (second.status, second.replayed, second.body) == (201, False, b'{ "payment" : 2 }')
        deployment.servers[0].resume()
        answer: Reply = first.result()
        assert (answer.lasting, answer.replayed) == (second.lasting, True)
        assert deployment.effects(key) == 2


@pytest.mark.parametrize("eager_pair", PAUSED, ids="-".join, indirect=True)
def test_at_least_once_takes_over_after_a_kill(eager_pair: Deployment, key: str) -> None:
    deployment = all_running(eager_pair)
    with ThreadPoolExecutor(20) as threads:
        first = threads.submit(deployment.servers[0].post, "/hold", key)
        deployment.wait_for_effect(key)
        deployment.servers[0].kill()
        assert first.exception() is not None
        deployment.let_go()
        other = deployment.servers[1]
        assert other.post("/hold", key).problem == "in-progress"
        deployment.move_clock(LEASE_MS)
        assert other.post("/hold", key, b"other").problem == "key-reused", "only the same request takes over"
        answers = list(threads.map(lambda _: other.post("/hold", key), range(20)))
        assert {answer.status for answer in answers} <= {201, 409}
        assert other.post("/hold", key).status == 201
        assert deployment.effects(key) == 2


@pytest.mark.parametrize("served", PAUSED, ids="-".join)
def test_waiters_on_another_process_get_the_answer(served: Served, request: pytest.FixtureRequest, key: str) -> None:
    with deployed("wait", request, served) as deployment, ThreadPoolExecutor(11) as threads:
        first = threads.submit(deployment.servers[0].post, "/hold", key)
        deployment.wait_for_effect(key)
        waiting = [threads.submit(deployment.servers[number % 2].post, "/hold", key) for number in range(10)]
        deployment.let_go()
        answer = first.result()
        assert answer.status == 201
        for each in waiting:
            assert (each.result().lasting, each.result().replayed) == (answer.lasting, True)
        assert deployment.effects(key) == 1


@pytest.mark.parametrize(
    "served", [("bare", "uvicorn-h11", "sqlite"), ("wsgi_app", "gunicorn", "sqlite")], ids="-".join
)
def test_a_stopping_server_finishes_what_it_began(served: Served, request: pytest.FixtureRequest, key: str) -> None:
    with deployed("default", request, served) as deployment, ThreadPoolExecutor(2) as threads:
        first = threads.submit(deployment.servers[0].post, "/hold", key)
        deployment.wait_for_effect(key)
        deployment.servers[0]._signal(signal.SIGTERM)
        deployment.servers[0].resume()
        deployment.let_go()
        assert first.result().status == 201
        again = deployment.servers[1].post("/hold", key)
        assert (again.replayed, deployment.effects(key)) == (True, 1)


ACCEPTING = [
    ("bare", "uvicorn-h11"), ("litestar_app", "uvicorn-h11"), ("quart_app", "uvicorn-h11"),
    ("django_app", "uvicorn-h11"), ("django_app", "hypercorn"),
]  # fmt: skip


@pytest.mark.parametrize(("app", "server"), ACCEPTING, ids=[f"{app}-{server}" for app, server in ACCEPTING])
def test_a_stopping_server_finishes_what_it_accepted(
    app: str, server: str, request: pytest.FixtureRequest, key: str
) -> None:
    with deployed("default", request, (app, server, "sqlite")) as deployment:
        stopping, other = deployment.servers
        assert stopping.post("/hold", key, b"{}", "Prefer: respond-async").status == 202
        stopping.ask_to_stop()
        for _ in range(50):  # a server that did not wait for the work would end long before
            assert stopping.running
            time.sleep(0.02)
        deployment.let_go()
        while (again := other.post("/hold", key)).status == 409:
            assert again.problem == "in-progress"
        assert (again.status, again.replayed, deployment.effects(key)) == (201, True, 1)


@pytest.mark.parametrize(("app", "server"), ALONE)
def test_expired_keys_are_refused_where_that_was_chosen(app: str, server: str, key: str) -> None:
    with Deployment(app, server, policy="refuse") as deployment:
        only = deployment.server
        first = only.post("/pay", key)
        deployment.move_clock(24 * 3600 * 1000)
        refused = only.post("/pay", key)
        assert (refused.status, refused.problem) == (410, "key-expired")
        assert only.post("/pay", key, b"other").problem == "key-reused"
        deployment.move_clock(24 * 3600 * 1000)
        assert (first.status, only.post("/pay", key).replayed, deployment.effects(key)) == (201, False, 2)


@pytest.mark.parametrize(("app", "server"), ALONE)
@pytest.mark.parametrize(("policy", "status", "effects"), [("default", 503, 0), ("open", 200, 1)])
def test_a_store_that_is_not_there(app: str, server: str, policy: str, status: int, effects: int, key: str) -> None:
    with Deployment(app, server, "redis://127.0.0.1:1/0", policy=policy) as deployment:
        answer = deployment.server.post("/directive", key)
        assert (answer.status, deployment.effects(key)) == (status, effects)
        assert answer.header("semel-directive") is None
        if effects:
            assert answer.header("idempotency-stored") == "false"
        else:
            assert (answer.problem, answer.header("retry-after")) == ("store-unavailable", "1")
        deployment.server.kill()  # a server that stops would wait for the claim to be given back


def without_vary(reply: Reply) -> tuple[int, list[tuple[str, str]], bytes]:
    status, headers, body = reply.lasting
    return status, [header for header in headers if header[0] != "vary"], body


@pytest.mark.parametrize("stack", ["inside", "outside"])
def test_the_usual_middlewares_keep_everything_true(stack: str, key: str) -> None:
    with Deployment("starlette_app", "uvicorn-h11", stack=stack) as deployment:
        server = deployment.server
        lines = ("Accept-Encoding: gzip", "Origin: https://a.example", "Caller: ann")
        for action in ("pay", "stream", "none", "bad", "broken", "repeated", "raise"):
            name = f"{key}-{action}"
            first, again = (server.post(f"/{action}", name, b"{}", *lines) for _ in range(2))
            assert again.replayed
            assert deployment.effects(name) == 1
            if stack == "inside":
                assert again.lasting == first.lasting
                assert again.header("set-cookie") is None
            else:  # the session outside of us varies by cookie when the work has touched it
                assert without_vary(again) == without_vary(first)
        other = server.post("/pay", f"{key}-pay", b"{}", "Caller: bob")
        assert (other.status, other.replayed) == (201, False)
        for action in ("refused", "not-executed"):
            assert [server.post(f"/{action}", f"{key}-{action}", b"{}", *lines).status for _ in range(2)] == [503, 503]
            assert deployment.effects(f"{key}-{action}") == 2
        assert server.post("/large", f"{key}-large", b"{}", "Caller: ann").body == b"x" * 200_000
        assert server.post("/large", f"{key}-large", b"{}", "Caller: ann").problem == "result-not-kept"
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(server.post, "/hold", f"{key}-hold", b"{}", *lines)
            deployment.wait_for_effect(f"{key}-hold")
            assert server.post("/hold", f"{key}-hold", b"{}", *lines).status == 409
            deployment.let_go()
            assert running.result().status == 201


@pytest.mark.parametrize(("app", "server"), ALONE, ids=["asgi", "wsgi", "django-wsgi", "django-asgi"])
def test_an_answer_that_could_not_be_stored_is_marked_and_the_work_never_repeated(
    app: str, server: str, key: str
) -> None:
    """The store stops taking writes while the work runs, for longer than the lease."""
    folder = Path(tempfile.mkdtemp(prefix="semel-full-"))
    store = f"sqlite:///{folder}/semel.db?busy_timeout_ms=20"
    with Deployment(app, server, store, policy="short") as deployment, ThreadPoolExecutor(1) as threads:
        first = threads.submit(deployment.server.post, "/hold", key)
        deployment.wait_for_effect(key)
        with contextlib.closing(sqlite3.connect(folder / "semel.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            deployment.let_go()
            answer: Reply = first.result()
        assert (answer.status, answer.header("idempotency-stored")) == (201, "false")
        deployment.server.wait_for_log("not_stored")
        deployment.move_clock(LEASE_MS)
        assert deployment.server.post("/hold", key).problem == "outcome-unknown"
        assert deployment.effects(key) == 1
    shutil.rmtree(folder)


@pytest.mark.parametrize("app", ["bare", "starlette_app"])
def test_work_that_a_stopping_server_cancels_is_unknown_and_not_stuck(app: str, key: str) -> None:
    with Deployment(app, "uvicorn-impatient", processes=2) as deployment, ThreadPoolExecutor(1) as threads:
        first = threads.submit(deployment.servers[0].post, "/hold", key)
        deployment.wait_for_effect(key)
        deployment.servers[0].ask_to_stop()
        assert first.exception() is not None or first.result().status >= 500
        deployment.servers[0].kill()  # as a supervisor does when nobody lets the work go
        deployment.move_clock(LEASE_MS)
        assert deployment.servers[1].post("/hold", key).problem == "outcome-unknown"
        assert deployment.effects(key) == 1
