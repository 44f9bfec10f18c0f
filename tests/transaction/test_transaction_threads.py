"""Exactly-once over WSGI when things go wrong: the thread that runs a request ends its transaction at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask, request
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session, sessionmaker
from werkzeug.test import Client, TestResponse

from semel import OutcomeUnknown, Policy
from semel.flask import Idempotency
from semel.transaction import TransactionStore
from semel.wsgi import IdempotencyMiddleware
from transaction.modes import Effect, effects, sqlalchemy_url
from transaction.test_transaction_requests import DEADLOCK, LONG, SECRET, open_transactions

POLICY = Policy(guarantee="exactly-once", required=True, lease=0.05, result_max=1000)


class Timeout(BaseException):
    """As gevent's is: no Exception, so that nothing catches it on its way."""


class Shop:
    """A Flask application that does what the request says."""

    def __init__(self, url: str, driver: str, size: int, **options: Any) -> None:
        self.engine = sa.create_engine(sqlalchemy_url(url, driver), pool_size=size, max_overflow=0)
        self.store: TransactionStore[Session] = TransactionStore(sessionmaker(self.engine).begin, **options)
        self.runs = 0
        self.begun, self.go_on = threading.Semaphore(0), threading.Event()
        self.app = Flask("shop")
        Idempotency(self.app, store=self.store, policy=POLICY, secret=SECRET, identify=lambda _: "shop", waiters_max=20)
        self.app.post("/pay")(self._pay)

    def _pay(self) -> ResponseReturnValue:
        name, do = request.get_json()["name"], request.get_json()["do"]
        session = self.store.current()
        self.runs += 1
        first = self.runs == 1
        session.add(Effect(name=name))
        session.flush()
        self.begun.release()
        if do == "wait":
            assert self.go_on.wait(30)
        elif do == "unknown" and first:
            raise OutcomeUnknown("on purpose")
        elif do == "timeout" and first:
            raise Timeout
        elif do == "deadlock" and first:
            session.execute(sa.text(DEADLOCK))
        elif do == "terminate" and first:
            session.execute(sa.text("SELECT pg_terminate_backend(pg_backend_pid())"))
        elif do in ("stream", "break"):
            return self.app.response_class(self._parts(session, name, do), 201)
        elif do == "raise":
            raise ArithmeticError("on purpose")
        elif do == "refused":
            session.add(Effect(id=1, name=name))
            session.add(Effect(id=1, name=name))  # found when the session is flushed, after the view
            return {}, 201
        session.add(Effect(name=name))
        return {"run": self.runs}, 201

    def _parts(self, session: Session, name: str, do: str) -> Iterator[str]:
        for _ in range(4):
            yield LONG
        session.add(Effect(name=name))
        if do == "break":
            raise ArithmeticError("on purpose, in the middle of the answer")
        yield "end"

    def call(self, name: str, do: str = "") -> TestResponse:
        client = self.app.test_client()
        return client.post("/pay", json={"name": name, "do": do}, headers={"Idempotency-Key": name})


@pytest.fixture(params=[("postgres", "psycopg"), ("sqlite", "pysqlite")], ids=["postgres", "sqlite"])
def shop(request: pytest.FixtureRequest, urls: Mapping[str, str]) -> Iterator[tuple[Shop, str]]:
    database, driver = request.param
    made = Shop(urls[database], driver, 1)
    yield made, urls[database]
    assert made.engine.pool.checkedout() == 0, "a request has kept its connection"  # type: ignore[attr-defined]
    made.engine.dispose()


@pytest.fixture
def postgres_shop(urls: Mapping[str, str]) -> Iterator[Callable[..., Shop]]:
    made: list[Shop] = []

    def make(size: int = 1) -> Shop:
        made.append(Shop(urls["postgres"], "psycopg", size))
        return made[-1]

    yield make
    for each in made:
        assert each.engine.pool.checkedout() == 0, "a request has kept its connection"  # type: ignore[attr-defined]
        each.engine.dispose()


def test_a_declared_unknown_outcome_is_rolled_back_at_once(shop: tuple[Shop, str]) -> None:
    service, url = shop
    assert service.call("threads.unknown", "unknown").status_code == 504
    assert service.call("threads.unknown.other").status_code == 201
    again = service.call("threads.unknown", "unknown")
    assert (again.status_code, "idempotent-replayed" in again.headers) == (201, False)
    assert effects(url, "threads.unknown") == 2


def test_a_thread_that_is_cut_off_rolls_back_at_once(shop: tuple[Shop, str]) -> None:
    service, url = shop
    with pytest.raises(Timeout):
        service.call("threads.timeout", "timeout")
    if url.startswith("postgres"):
        assert open_transactions(url) == 0
    assert service.call("threads.timeout.other").status_code == 201
    assert service.call("threads.timeout", "timeout").status_code == 201
    assert effects(url, "threads.timeout") == 2


def test_a_large_answer_is_sent_after_the_commit(shop: tuple[Shop, str]) -> None:
    service, url = shop
    first, again = service.call("threads.large", "stream"), service.call("threads.large", "stream")
    assert (first.status_code, first.text) == (201, f"{LONG * 4}end")
    assert (again.status_code, again.get_json()["status"]) == (409, 409)
    assert (service.runs, effects(url, "threads.large")) == (1, 2)


def test_a_large_answer_that_breaks_leaves_nothing(shop: tuple[Shop, str]) -> None:
    service, url = shop
    first, again = service.call("threads.break", "break"), service.call("threads.break", "break")
    assert (first.status_code, first.data) == (500, again.data)
    assert (again.status_code, again.headers["idempotent-replayed"]) == (500, "true")
    assert effects(url, "threads.break") == 0


@pytest.mark.parametrize("status", [500, 503, 200])
def test_the_applications_page_for_an_exception_is_kept_and_its_writes_are_not(
    shop: tuple[Shop, str], status: int
) -> None:
    service, url = shop
    service.app.register_error_handler(500, lambda error: (f"run {service.runs}", status))
    first, again = (service.call(f"threads.raise.{status}", "raise") for _ in range(2))
    assert (first.status_code, first.data, again.data) == (status, b"run 1", b"run 1")
    assert again.headers["idempotent-replayed"] == "true"
    assert effects(url, f"threads.raise.{status}") == 0


def test_what_an_orm_held_back_is_an_error_of_the_handler(shop: tuple[Shop, str]) -> None:
    """The answer is stored, and replayed: a repeat would be refused again."""
    service, url = shop
    assert service.call("threads.refused", "refused").status_code == 500
    again = service.call("threads.refused", "refused")
    assert (again.status_code, again.headers["idempotent-replayed"]) == (500, "true")
    assert effects(url, "threads.refused") == 0


@pytest.mark.parametrize("do", ["deadlock", "terminate"])
def test_what_the_database_rolled_back_is_not_an_answer(do: str, postgres_shop: Any, urls: Mapping[str, str]) -> None:
    service, name = postgres_shop(), f"threads.{do}"
    first = service.call(name, do)
    assert (first.status_code, first.get_json()["retryable"]) == (503, True)
    again = service.call(name, do)
    assert (again.status_code, "idempotent-replayed" in again.headers) == (201, False)
    assert effects(urls["postgres"], name) == 2


def test_many_twins_leave_the_pool_to_others(postgres_shop: Any, urls: Mapping[str, str]) -> None:
    service = postgres_shop(2)
    with ThreadPoolExecutor(45) as threads:
        first = threads.submit(service.call, "threads.crowd", "wait")
        assert service.begun.acquire(timeout=30)
        twins = [threads.submit(service.call, "threads.crowd", "wait") for _ in range(40)]
        assert threads.submit(service.call, "threads.crowd.other").result(30).status_code == 201
        service.go_on.set()
        told = [each.result(30) for each in (first, *twins)]
    by_status = [answer.status_code for answer in told]
    assert by_status[0] == 201
    assert set(by_status) <= {201, 409}, "those above the bound are told to come back"
    assert by_status.count(201) >= 21
    assert service.runs == 2
    assert effects(urls["postgres"], "threads.crowd") == 2


def test_a_twin_in_another_process_waits_for_longer_than_a_lease(postgres_shop: Any, urls: Mapping[str, str]) -> None:
    here, elsewhere = postgres_shop(), postgres_shop()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(here.call, "threads.twin", "wait")
        assert here.begun.acquire(timeout=30)
        twin = threads.submit(elsewhere.call, "threads.twin", "wait")
        for number in range(4):
            assert elsewhere.call(f"threads.twin.{number}").status_code == 201, "the twin keeps no connection"
        here.go_on.set()
        answers = [first.result(30), twin.result(30)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[1].headers["idempotent-replayed"] == "true"
    assert effects(urls["postgres"], "threads.twin") == 2


def test_a_long_failure_that_was_overtaken_gets_the_other_answer(urls: Mapping[str, str]) -> None:
    """A repeat in another process runs between the rollback of a failure and its record: its answer holds, alone."""
    engine = sa.create_engine(sqlalchemy_url(urls["postgres"], "psycopg"), pool_size=2, max_overflow=0)
    begin, name, begun = sessionmaker(engine).begin, "threads.overtaken", []

    def front(begin: Callable[[], AbstractContextManager[Session]], status: str, body: bytes) -> Client:
        store: TransactionStore[Session] = TransactionStore(begin)

        def app(environ: Any, start_response: Any) -> list[bytes]:
            store.current().add(Effect(name=name))
            start_response(status, [])
            return [body]

        return Client(IdempotencyMiddleware(app, store=store, policy=POLICY, identify=lambda _: "shop"))

    def call(client: Client) -> TestResponse:
        return client.post("/pay", headers={"Idempotency-Key": name})

    @contextmanager
    def begin_overtaken() -> Iterator[Session]:
        if threading.current_thread() is threading.main_thread():  # the look at start-up has a thread of its own
            begun.append(1)
            if len(begun) == 2:
                assert call(quick).status_code == 204
        with begin() as session:
            yield session

    quick, slow = front(begin, "204 No Content", b""), front(begin_overtaken, "409 Conflict", LONG.encode() * 4)
    overtaken = call(slow)
    assert (overtaken.status_code, overtaken.data) == (204, b"")
    assert effects(urls["postgres"], name) == 1
    assert engine.pool.checkedout() == 0, "a request has kept its connection"  # type: ignore[attr-defined]
    engine.dispose()
