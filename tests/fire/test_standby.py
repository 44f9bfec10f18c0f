"""PostgreSQL whose synchronous standby is away: commits wait, are seen by nobody, and take place when it is back."""

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from fire.cases import FACES, FINGERPRINT, Ledger, Opened, execute, migrated, opened, persist
from semel import Key, Policy
from semel.core.decisions import Stored, Undecided
from semel.core.protocol import abandon, acquire
from semel.core.records import Lease
from servers.pgbouncer import PgBouncer
from servers.postgres import PostgresServer, PostgresStandby

TIMEOUT_MS = 500
POLICY = Policy(lease=0.3)
"""A lease that is over when the standby is back: the claims that come to be then have lapsed."""


class Primary:
    """A server whose commits wait for a standby, which can be made to stand still."""

    def __init__(self, server: PostgresServer, standby: PostgresStandby) -> None:
        self._server = server
        self.standby = standby
        self.url = migrated(server.url)

    def make_synchronous(self) -> None:
        with psycopg.connect(self._server.url, autocommit=True) as admin:
            admin.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            admin.execute("SELECT pg_reload_conf()")
        with psycopg.connect(self._server.url, autocommit=True) as admin:
            wait_until(lambda: admin.execute("SHOW synchronous_standby_names").fetchall() == [("*",)])
        wait_until(lambda: self._count("pg_stat_replication WHERE sync_state = 'sync'") == 1)

    def fail_over(self) -> str:
        """The standby takes over from a primary that is gone; says where it is."""
        self._server.kill()
        with psycopg.connect(self.standby.url, autocommit=True) as admin:
            admin.execute("SELECT pg_promote()")
        return self.standby.url

    def cut_off_standby(self) -> None:
        """It misses what is written from now on."""
        with psycopg.connect(self.standby.url, autocommit=True) as admin:
            admin.execute("ALTER SYSTEM SET primary_conninfo = ''")
            admin.execute("SELECT pg_reload_conf()")
        wait_until(lambda: self._count("pg_stat_replication") == 0)

    def waiting(self) -> int:
        return self._count("pg_stat_activity WHERE wait_event = 'SyncRep'")

    def _count(self, rows: str) -> int:
        with psycopg.connect(self._server.url, autocommit=True) as admin:
            [(count,)] = admin.execute(f"SELECT count(*) FROM {rows}".encode()).fetchall()
            return int(count)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def primary(private_postgres: PostgresServer) -> Iterator[Primary]:
    with PostgresStandby(private_postgres) as standby:
        yield Primary(private_postgres, standby)


@pytest.fixture(params=["direct", "pooled"])
def url(request: pytest.FixtureRequest, primary: Primary, private_postgres: PostgresServer) -> Iterator[str]:
    if request.param == "direct":
        yield primary.url
    else:
        with PgBouncer(private_postgres) as bouncer:
            yield bouncer.url_for(primary.url)


@pytest.mark.parametrize("face", FACES)
def test_a_claim_that_waits_for_a_standby_is_given_back(face: str, url: str, primary: Primary, ledger: Ledger) -> None:
    """The caller is told that nothing ran. When the standby is back, the claim comes to be, and has to go again."""
    keys = [Key("fire", "standby", uuid.uuid4().hex) for _ in range(6)]

    def refuse(one: Opened, key: Key) -> float:
        started = time.monotonic()
        decision = one.drive(acquire(key, FINGERPRINT, f"gone {key.name}", POLICY))
        assert isinstance(decision, Undecided)
        return time.monotonic() - started

    with opened(face, url, timeout_ms=TIMEOUT_MS) as one, ThreadPoolExecutor(len(keys)) as threads:
        one.store.get(keys[0])
        primary.make_synchronous()
        primary.standby.pause()
        assert max(threads.map(lambda key: refuse(one, key), keys)) < 3 * TIMEOUT_MS / 1000
        assert primary.waiting()
        leases = [Lease(key, f"gone {key.name}", 1, 0) for key in keys]
        abandoning = [threads.submit(one.drive, abandon(lease)) for lease in leases]
        time.sleep(POLICY.lease_ms / 1000)  # their leases lapse while they wait: the server's clock is not ours
        assert not any(work.done() for work in abandoning), "nobody can tell yet"
        primary.standby.resume()
        assert all(work.result(30) for work in abandoning)
        assert all(persist(lambda key=key: one.store.get(key)) is None for key in keys)  # type: ignore[misc]
        for key in keys:
            assert execute(one, key, "b", POLICY, ledger)[1] == Stored()
    assert ledger.effects() == {key.name: 1 for key in keys}


@pytest.mark.parametrize("synchronous", [False, True], ids=["asynchronous", "synchronous"])
def test_a_failover_to_a_standby_that_lags(synchronous: bool, primary: Primary, ledger: Ledger) -> None:
    """An asynchronous one has not got what was acknowledged, and the work runs twice: a limit, shown and not hidden.

    With a synchronous one nothing is acknowledged that it does not have, so nothing runs.
    """
    key = Key("fire", "standby", uuid.uuid4().hex)
    with opened("sync", primary.url, timeout_ms=TIMEOUT_MS) as one:
        one.store.get(key)
        if synchronous:
            primary.make_synchronous()
        primary.cut_off_standby()
        decision, settlement = execute(one, key, "a", POLICY, ledger)
        assert isinstance(decision, Undecided) if synchronous else settlement == Stored()
    with opened("sync", primary.fail_over()) as one:
        assert execute(one, key, "b", POLICY, ledger)[1] == Stored()
    assert ledger.effects() == {key.name: 1 if synchronous else 2}
