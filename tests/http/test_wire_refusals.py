"""Problems that need a deployment of their own: a tenant with too many new keys, a record that cannot be read."""

import sqlite3
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from serving import Deployment, Reply

FRONTS = [
    ("bare", "uvicorn-h11"),
    ("wsgi_app", "waitress"),
    ("django_wsgi", "gunicorn"),
    ("django_app", "uvicorn-h11"),
    ("plain", "gateway"),
]
DAMAGE = ["state = 9", "payload = x'c1'", "format = 'of tomorrow'"]
"""What a version that knows more might have written, and what a broken disk might."""


@pytest.fixture(scope="module", params=FRONTS, ids="-".join)
def deployment(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    app, server = request.param
    with Deployment(app, server, policy="quota") as deployment:
        yield deployment


@pytest.fixture
def caller() -> str:
    """Somebody new, who has all of a quota left."""
    return f"Caller: {uuid.uuid4().hex}"


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex


def test_one_new_key_too_many_is_refused_and_known_keys_still_replay(
    deployment: Deployment, key: str, caller: str
) -> None:
    server = deployment.server
    first, *_ = [server.post("/pay", f"{key}{number}", b"{}", caller) for number in (1, 2)]
    for _ in range(2):
        refused = server.post("/pay", f"{key}3", b"{}", caller)
        assert (refused.status, refused.problem) == (429, "too-many-keys")
        assert 3000 < int(refused.header("retry-after") or 0) <= 3600
    assert deployment.effects(f"{key}3") == 0
    again = server.post("/pay", f"{key}1", b"{}", caller)
    assert (again.lasting, again.replayed) == (first.lasting, True)
    assert server.post("/pay", f"{key}1", b"other", caller).problem == "key-reused"
    assert server.post("/pay", f"{key}3", b"{}", "Caller: somebody else").status == 201


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_record_that_cannot_be_read_is_never_taken_for_none(
    deployment: Deployment, key: str, caller: str, damage: str
) -> None:
    server = deployment.server
    monitor = accepted(deployment, key, caller).header("location")
    assert monitor is not None
    with closing(sqlite3.connect(deployment.folder / "semel.db", timeout=20)) as database:
        changed = database.execute(f"UPDATE semel_records SET {damage} WHERE name = ?", (key,))
        assert changed.rowcount == 1
        database.commit()
    answers = [server.post("/hold", key, b"{}", caller), server.post("/hold", key, b"{}", caller)]
    for answer in [*answers, server.get(monitor, caller)]:
        assert (answer.status, answer.problem, answer.header("retry-after")) == (500, "record-unreadable", None)
    assert deployment.effects(key) == 1


def accepted(deployment: Deployment, key: str, caller: str) -> Reply:
    """Work that has ended, and the answer that tells where its end can be read."""
    deployment.hold()
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(deployment.server.post, "/hold", key, b"{}", caller)
        deployment.wait_for_effect(key)
        answer = deployment.server.post("/hold", key, b"{}", caller, "Prefer: respond-async")
        deployment.let_go()
        assert (answer.status, first.result().status) == (202, 201)
    return answer
