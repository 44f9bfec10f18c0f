"""The simulated database means what PostgreSQL means: both are given the same statements by the same scripts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from semel.connections.psycopg import PsycopgDriver
from semel.core.effects import Claim, Complete, Effect
from semel.core.records import Key, Lease, Record, Result
from semel.errors import InProgress, Misuse
from semel.runtime.drive import drive
from semel.stores.postgres.transaction import PostgresEngine
from semel.stores.sql.engine import Granted
from semel.stores.sql.errors import translated
from semel.stores.sql.statements import Script, Statement
from simulation.transactions.database import LOCKED, WRITE, Database, DatabaseError, Transaction
from transaction.modes import prepare

SESSIONS, ACTIONS, KEYS = 3, 60, 2
HOUR_MS, EXPIRES_AT_ONCE_MS = 3_600_000, 1
Run = Callable[[Script[Any]], Any]


class Simulated:
    """The simulated database alone: no network, and a clock that moves with each statement."""

    def __init__(self) -> None:
        self._now_ms = 0
        oracle = SimpleNamespace(inserted=self._ignore, ends=self._ignore, commits=self._ignore)
        server = SimpleNamespace(wake=self._ignore, let_go=self._let_go)
        world: Any = SimpleNamespace(oracle=oracle, server=server, database_ms=self._tick)
        self.database: Database = Database(world)
        self._open: list[Transaction | None] = [None] * SESSIONS

    def _let_go(self, ended: Transaction) -> None:
        self.database.ending.remove(ended)

    def _ignore(self, *_: object) -> None: ...

    def _tick(self) -> int:
        self._now_ms += 5
        return self._now_ms

    def begin(self, session: int) -> None:
        self._open[session] = self.database.begin()

    def end(self, session: int, how: str) -> None:
        transaction = self._transaction(session)
        (self.database.commit if how == "COMMIT" else self.database.end)(transaction)
        self._open[session] = None

    def run(self, session: int, script: Script[Any]) -> Any:
        return drive(script, lambda statement: self._perform(self._transaction(session), statement))

    def write(self, session: int) -> None:
        list(self.database.execute(self._transaction(session), WRITE, (1, 1)))

    def _transaction(self, session: int) -> Transaction:
        found = self._open[session]
        assert found is not None
        return found

    def _perform(self, transaction: Transaction, statement: Effect[Any]) -> Any:
        """A statement that would wait reaches its bound."""
        assert isinstance(statement, Statement)
        meaning = self.database.execute(transaction, statement.sql, list(statement.params))
        with translated():
            try:
                next(meaning)
                assert transaction.lock_timeout_ms, "this would wait without a bound"
                transaction.aborted = True
                meaning.throw(DatabaseError(LOCKED, "lock timeout"))
            except StopIteration as stop:
                return stop.value
        raise AssertionError("it waits again")


class Real:
    def __init__(self, url: str) -> None:
        self._connections = [psycopg.connect(url) for _ in range(SESSIONS)]
        for connection in self._connections:
            connection.execute("SET statement_timeout = '5s'")
            connection.commit()

    def begin(self, session: int) -> None:
        self._connections[session].execute("SELECT 1")

    def end(self, session: int, how: str) -> None:
        self._connections[session].execute(how.encode())

    def run(self, session: int, script: Script[Any]) -> Any:
        return drive(script, PsycopgDriver(self._connections[session], "").perform)

    def write(self, session: int) -> None:
        self._connections[session].execute("INSERT INTO effects (name) VALUES ('parity')")

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


@pytest.fixture(scope="module")
def url(postgres_url: str) -> str:
    return prepare(postgres_url)


@pytest.fixture
def real(url: str) -> Iterator[Real]:
    with psycopg.connect(url) as connection:
        connection.execute("TRUNCATE semel_records")
    made = Real(url)
    yield made
    made.close()


class Play:
    """A course of actions in several sessions, and what each of them said."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.engine = PostgresEngine("")
        self.granted: list[list[tuple[Lease, str]] | None] = [None] * SESSIONS

    def course(self, on: Simulated | Real) -> Iterator[str]:
        for number in range(ACTIONS):
            session = self.rng.randrange(SESSIONS)
            key = Key("ann", "pay", f"k{self.rng.randrange(KEYS)}")
            yield f"{number} s{session} {self._act(on, session, key, number)}"

    def _act(self, on: Simulated | Real, session: int, key: Key, number: int) -> str:
        granted = self.granted[session]
        if granted is None:
            on.begin(session)
            self.granted[session] = []
            return "begins"
        what = self.rng.choice(["claim", "claim", "claim", "complete", "read", "write", "COMMIT", "ROLLBACK"])
        kept_ms = self.rng.choice((HOUR_MS, EXPIRES_AT_ONCE_MS))
        if what == "claim":
            return self._claim(on, session, Claim(key, "f", f"o{number}", 1, HOUR_MS, takeover=False))
        if what == "complete" and granted:
            return self._complete(on, session, *self.rng.choice(granted), kept_ms)
        if what == "read":
            return f"reads {key.name}: {shown(on.run(session, self.engine.read(key)))}"
        if what in ("COMMIT", "ROLLBACK"):
            done = [self._complete(on, session, *each, kept_ms) for each in granted if self.rng.random() < 0.9]
            on.end(session, what)
            self.granted[session] = None
            time.sleep(0.003)  # what expires at once has expired
            return f"{done} {what}"
        on.write(session)
        return "writes"

    def _complete(self, on: Simulated | Real, session: int, lease: Lease, mark: str, kept_ms: int) -> str:
        call = Complete(lease, Result("http.1", b"done", ok=True), kept_ms)
        try:
            on.run(session, self.engine.complete(call, mark))
        except Misuse:
            return f"completes {lease.owner}: refused"
        return f"completes {lease.owner}"

    def _claim(self, on: Simulated | Real, session: int, call: Claim) -> str:
        try:
            reply = on.run(session, self.engine.claim(call, 1))
        except InProgress:
            return f"claims {call.key.name}: in progress"
        if isinstance(reply, Granted):
            granted = self.granted[session]
            assert granted is not None
            granted.append((reply.lease, reply.mark))
            return f"claims {call.key.name}: granted"
        return f"claims {call.key.name}: {shown(reply.record)}"


def shown(record: Record | None) -> str:
    return "nothing" if record is None else f"{record.state.value} by {record.owner}"


COURSES = range(12)


@pytest.mark.parametrize("seed", COURSES)
def test_it_says_what_postgresql_says(seed: int, real: Real) -> None:
    assert list(Play(seed).course(real)) == list(Play(seed).course(Simulated()))


def test_the_courses_say_enough() -> None:
    said = "\n".join(line for seed in COURSES for line in Play(seed).course(Simulated()))
    for words in (
        "granted",
        ": in progress",
        "succeeded by",
        "in_progress by",
        "refused",
        "nothing",
        "COMMIT",
        "ROLLBACK",
    ):
        assert said.count(words) > 10, words
