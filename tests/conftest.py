"""Servers for the tests: one of each per worker, started when first asked for.

`SEMEL_TEST_<POSTGRES, REDIS, MARIADB, PGBOUNCER, RABBITMQ, NATS>_URL` name servers to use instead. A missing
server skips its tests, and a section at the end of the run says so; where `CI` is set it fails them.
"""

import os
import uuid
from collections import Counter
from collections.abc import Iterator

import pytest

from servers.dynalite import DynaliteServer
from servers.mariadb import Mariadb, MariadbServer, running_mariadb
from servers.moto import MotoServer
from servers.nats import Nats, NatsServer
from servers.needing import MISSING, needed
from servers.pgbouncer import Bouncer, PgBouncer
from servers.postgres import Postgres, PostgresServer, database_of
from servers.rabbitmq import Rabbitmq, RabbitmqServer
from servers.redis import Redis, RedisServer
from servers.redis_cluster import RedisCluster
from servers.redis_sentinel import RedisSentinels


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    if url := existing("postgres"):
        yield Postgres(url)
    else:
        with needed("postgres", PostgresServer) as server:
            yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    if url := existing("redis"):
        yield Redis(url)
    else:
        with needed("redis", RedisServer) as server:
            yield server


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    """Three masters and three replicas. Tests may kill, pause and restart its nodes, and move slots."""
    with needed("redis", RedisCluster) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def redis_sentinels() -> Iterator[RedisSentinels]:
    """A master, two replicas and three sentinels. Tests may kill, pause and restart them."""
    with needed("redis", RedisSentinels) as sentinels:
        yield sentinels


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[Mariadb]:
    with running_mariadb() as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[Rabbitmq]:
    if url := existing("rabbitmq"):
        yield Rabbitmq(url)
    else:
        with needed("rabbitmq", RabbitmqServer) as server:
            yield server


@pytest.fixture(scope="session")
def nats_server() -> Iterator[Nats]:
    if url := existing("nats"):
        yield Nats(url)
    else:
        with needed("nats", NatsServer) as server:
            yield server


@pytest.fixture(scope="session")
def moto_server() -> Iterator[MotoServer]:
    with needed("moto", MotoServer) as server:
        yield server


@pytest.fixture(scope="session")
def dynalite_server() -> Iterator[DynaliteServer]:
    with needed("dynalite", DynaliteServer) as server:
        yield server


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: Postgres) -> Iterator[Bouncer]:
    if url := existing("pgbouncer"):
        yield Bouncer(url)
    else:
        with needed("pgbouncer", lambda: PgBouncer(postgres_server)) as server:
            yield server


@pytest.fixture(scope="module")
def postgres_url(postgres_server: Postgres) -> Iterator[str]:
    """A fresh database for each module."""
    url = postgres_server.create_database(f"semel_{uuid.uuid4().hex[:12]}")
    yield url
    postgres_server.drop_database(database_of(url))


@pytest.fixture(scope="module")
def pgbouncer_url(pgbouncer: Bouncer, postgres_url: str) -> str:
    """The same database, through PgBouncer in transaction mode."""
    return pgbouncer.url_for(postgres_url)


@pytest.fixture(scope="module")
def redis_url(redis_server: Redis, worker_number: int) -> Iterator[str]:
    """An empty database for each module."""
    with redis_server.empty_database(worker_number) as url:
        yield url


@pytest.fixture(scope="module")
def cluster_url(redis_cluster: RedisCluster) -> str:
    """An empty cluster for each module."""
    redis_cluster.clear()
    return redis_cluster.url


@pytest.fixture(scope="module")
def sentinel_url(redis_sentinels: RedisSentinels) -> str:
    """An empty server behind its sentinels for each module."""
    redis_sentinels.clear()
    return redis_sentinels.url


@pytest.fixture(scope="module")
def mariadb_url(mariadb_server: Mariadb) -> Iterator[str]:
    """A fresh database for each module."""
    url = mariadb_server.create_database(f"semel_{uuid.uuid4().hex[:12]}")
    yield url
    mariadb_server.drop_database(database_of(url))


@pytest.fixture
def private_postgres() -> Iterator[PostgresServer]:
    """A server for one test, which may kill, pause and restart it."""
    with needed("postgres", PostgresServer) as server:
        yield server


@pytest.fixture
def private_mariadb() -> Iterator[MariadbServer]:
    """A server for one test, which may kill, pause and restart it."""
    with needed("mariadb", MariadbServer) as server:
        yield server


@pytest.fixture
def private_redis() -> Iterator[RedisServer]:
    """A server for one test, which may kill, pause and restart it."""
    with needed("redis", RedisServer) as server:
        yield server


@pytest.fixture
def private_rabbitmq() -> Iterator[RabbitmqServer]:
    """A broker for one test, which may kill, pause and restart it."""
    with needed("rabbitmq", RabbitmqServer) as server:
        yield server


@pytest.fixture
def private_nats() -> Iterator[NatsServer]:
    """A server for one test, which may kill, pause and restart it."""
    with needed("nats", NatsServer) as server:
        yield server


@pytest.fixture
def private_moto() -> Iterator[MotoServer]:
    """A server for one test, which may kill, pause and restart it."""
    with needed("moto", MotoServer) as server:
        yield server


@pytest.fixture(scope="session")
def worker_number() -> int:
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def existing(name: str) -> str | None:
    return os.environ.get(f"SEMEL_TEST_{name.upper()}_URL")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = (report.longrepr[2] for report in terminalreporter.getreports("skipped"))
    missing = Counter(reason.partition(MISSING)[2] for reason in reasons if MISSING in reason)
    if missing:
        terminalreporter.section("NOT TESTED: servers were missing", sep="!", red=True, bold=True)
        for reason, count in missing.items():
            terminalreporter.line(f"{reason}; tests not run: {count}")
        terminalreporter.line("`make test` installs what it can; SEMEL_TEST_<SERVER>_URL names a server elsewhere.")
