"""Django on real servers, in several processes, with records in its own database. Effects are lines in a file."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

pytest.importorskip("django")

from django.core.management import call_command
from serving import Deployment, request

import django_site  # noqa: F401
from django_site import databases
from servers.postgres import Postgres, database_of

WAYS = [("django_app", "uvicorn-h11"), ("django_wsgi", "gunicorn")]


@pytest.fixture(scope="module")
def database(postgres_server: Postgres) -> Iterator[str]:
    url = postgres_server.create_database(f"semel_{uuid4().hex[:12]}")
    with databases.added(databases.postgres_at(url)) as alias:
        call_command("migrate", "semel", database=alias, verbosity=0)
    yield url
    postgres_server.drop_database(database_of(url))


@pytest.fixture(scope="module", params=WAYS, ids=["asgi", "wsgi"])
def three(request: pytest.FixtureRequest, database: str) -> Iterator[Deployment]:
    app, server = request.param
    with Deployment(app, server, "django", processes=3, database=database) as deployment:
        yield deployment


def test_many_callers_of_three_processes_have_one_effect(three: Deployment) -> None:
    key = uuid4().hex
    three.let_go()
    with ThreadPoolExecutor(50) as threads:
        replies = list(threads.map(lambda n: three.servers[n % 3].post("/hold", key), range(50)))
    assert three.effects(key) == 1
    assert {reply.status for reply in replies} <= {201, 409}
    repeats = [server.post("/hold", key) for server in three.servers]
    assert all(repeat.replayed for repeat in repeats)
    assert len({repeat.body for repeat in repeats}) == 1


@pytest.mark.parametrize(
    "action", ["pay", "binary", "empty", "none", "see", "bad", "missing", "broken", "stream", "gzip", "raise"]
)
def test_a_repeat_at_another_process_gets_the_first_answer(three: Deployment, action: str) -> None:
    key = uuid4().hex
    first, *repeats = [server.post(f"/{action}", key) for server in three.servers]
    assert three.effects(key) == 1
    assert not first.replayed
    for repeat in repeats:
        assert repeat.replayed
        assert repeat.lasting == first.lasting
    assert b"secret" not in first.body


def test_an_answer_that_is_too_large_arrives_whole(three: Deployment) -> None:
    key = uuid4().hex
    first, again, _ = [server.post("/large", key) for server in three.servers]
    assert first.body == b"x" * 200_000
    assert again.problem == "result-not-kept"
    assert three.effects(key) == 1


def test_a_caller_who_hangs_up_does_not_stop_the_work(three: Deployment) -> None:
    key = uuid4().hex
    three.hold()
    with three.server.open() as connection:
        connection.sendall(request("POST", "/hold", b"{}", [f"Idempotency-Key: {key}"]))
        three.wait_for_effect(key)
    assert three.servers[1].post("/hold", key).problem == "in-progress"
    three.let_go()
    while not (reply := three.servers[1].post("/hold", key)).replayed:
        assert reply.problem == "in-progress"
    assert (reply.status, three.effects(key)) == (201, 1)


@pytest.mark.parametrize(("app", "server"), WAYS, ids=["asgi", "wsgi"])
def test_a_process_that_is_killed_leaves_an_unknown_outcome(app: str, server: str, database: str) -> None:
    key = uuid4().hex
    with Deployment(app, server, "django", processes=2, database=database, policy="short") as two:
        with two.server.open() as connection:
            connection.sendall(request("POST", "/hold", b"{}", [f"Idempotency-Key: {key}"]))
            two.wait_for_effect(key)
            two.server.kill()
        two.let_go()
        while (reply := two.servers[1].post("/hold", key)).problem == "in-progress":
            assert reply.status == 409
        assert (reply.status, reply.problem) == (409, "outcome-unknown")
        assert two.effects(key) == 1


def test_a_project_on_sqlite_serves_from_two_processes(tmp_path: Path) -> None:
    with Deployment("django_wsgi", "gunicorn", "django", processes=2) as two:
        with databases.added(databases.sqlite_at(two.folder / "site.db")) as alias:
            call_command("migrate", "semel", database=alias, verbosity=0)
        key = uuid4().hex
        two.let_go()
        with ThreadPoolExecutor(16) as threads:
            replies = list(threads.map(lambda n: two.servers[n % 2].post("/hold", key), range(32)))
        assert two.effects(key) == 1
        assert {reply.status for reply in replies} <= {201, 409}
