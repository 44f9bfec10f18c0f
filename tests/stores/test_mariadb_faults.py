"""The MariaDB store when the server, a connection or another transaction is in its way: an answer, then work again."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pymysql
import pytest

from semel import Acquired, Key, Occupied, Result, open_async_store, open_store
from semel.core.records import Claimed, Lease
from semel.errors import StoreMisconfigured, StoreTimeout, StoreUnavailable
from semel.store import Doubting, Store
from semel.stores.mariadb.driver import AsyncMariadbLink, MariadbLink
from semel.stores.mariadb.packets import packet
from semel.stores.mariadb.settings import MariadbSettings
from semel.stores.url import StoreUrl
from semel.testing import BlockingStore
from semel.testing.proxy import Fault, FaultProxy, ProxyExchange
from servers.mariadb import MariadbServer, arguments

ANSWER = Result("text", b"paid")
FACES = ("sync", "async")
pytestmark = pytest.mark.timeout(60)
each_face = pytest.mark.parametrize("face", FACES)


@contextmanager
def opened(face: str, url: str, **options: object) -> Iterator[Store]:
    url += "?migrate=auto" + "".join(f"&{name}={value}" for name, value in options.items())
    store = open_store(url) if face == "sync" else BlockingStore(open_async_store(url))
    yield store
    store.close()


def claim(store: Store, key: Key, owner: str = "a") -> Claimed:
    return store.claim(key, "1.same", owner=owner, lease_ms=60_000, retention_ms=3_600_000, takeover=False)


def granted(store: Store, key: Key, owner: str = "a") -> Lease:
    claimed = claim(store, key, owner)
    assert isinstance(claimed, Acquired)
    return claimed.lease


@contextmanager
def connected(url: str) -> Iterator[Any]:
    with closing(pymysql.connect(**arguments(url))) as connection, connection.cursor() as cursor:
        yield cursor


@contextmanager
def row_locked(url: str, key: Key) -> Iterator[None]:
    """Another transaction has the row, so a call that wants to change it waits."""
    with connected(url) as cursor:
        assert cursor.execute("SELECT 1 FROM semel_records WHERE name = %s FOR UPDATE", (key.name,)) == 1
        yield


def waiting_for_locks(cursor: Any) -> list[int]:
    """What takes this long here waits. The table innodb_trx shows nothing new to a caller that asks often."""
    cursor.execute(
        "SELECT id FROM information_schema.processlist "
        "WHERE command = 'Query' AND time_ms > 30 AND id <> connection_id() AND info LIKE '%semel_%'"
    )
    return [number for (number,) in cursor.fetchall()]


@each_face
def test_a_commit_whose_reply_is_lost(mariadb_url: str, face: str) -> None:
    """The claim, and then the completion, took place; their caller was told that nobody knows."""

    def is_ours(exchange: ProxyExchange) -> bool:
        return b"INSERT INTO semel_records" in exchange.request or b"UPDATE (SELECT" in exchange.request

    key = Key("lost", "s", face)
    with FaultProxy(mariadb_url) as proxy, opened(face, proxy.url) as store:
        assert store.get(key) is None
        lost = proxy.inject(Fault.CUT_AFTER, when=is_ours)
        with pytest.raises(StoreUnavailable):
            claim(store, key)
        assert lost.hits == 1
        lease = granted(store, key)
        lost = proxy.inject(Fault.CUT_AFTER, when=is_ours)
        with pytest.raises(StoreUnavailable):
            store.complete(lease, ANSWER, retention_ms=60_000)
        assert lost.hits == 1
        assert store.complete(lease, Result("text", b"again"), retention_ms=60_000)
        record = store.get(key)
        assert record is not None
        assert record.result == ANSWER


@each_face
def test_a_reply_that_makes_no_sense(mariadb_url: str, face: str) -> None:
    key = Key("garbled", "s", face)
    with FaultProxy(mariadb_url) as proxy, opened(face, proxy.url, timeout_ms=500) as store:
        lease = granted(store, key)
        proxy.inject(Fault.GARBLE)
        with pytest.raises(StoreUnavailable):
            store.renew(lease, lease_ms=60_000)
        assert store.renew(lease, lease_ms=60_000)


@each_face
def test_a_connection_that_is_killed_during_a_statement(mariadb_url: str, face: str) -> None:
    key = Key("killed", "s", f"killed {face}")
    with opened(face, mariadb_url) as store, connected(mariadb_url) as admin:
        lease = granted(store, key)
        with ThreadPoolExecutor(1) as threads, row_locked(mariadb_url, key):
            completed = threads.submit(store.complete, lease, ANSWER, retention_ms=1_000)
            while not (numbers := waiting_for_locks(admin)):
                time.sleep(0.005)
            for number in numbers:
                admin.execute(f"KILL {number}")
            with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1"):
                completed.result()
        assert store.complete(lease, ANSWER, retention_ms=60_000)


@each_face
def test_a_lock_that_is_kept_for_too_long(mariadb_url: str, face: str) -> None:
    """What waited is undone as a whole, also where MariaDB undoes the last statement only (1205)."""
    key = Key("locked", "s", f"locked {face}")
    with opened(face, mariadb_url, timeout_ms=300) as store:
        lease = granted(store, key)
        with row_locked(mariadb_url, key):
            started = time.monotonic()
            with pytest.raises(StoreTimeout):
                store.release(lease)
            assert time.monotonic() - started < 3
            replayed = claim(store, key, "b")
            assert isinstance(replayed, Occupied), "what only looks does not wait"
        assert isinstance(store, Doubting)
        before = store.doubts(None)
        while before:
            before = store.doubts(before)
        assert store.get(key) is not None
        assert store.release(lease)


@each_face
def test_two_batches_that_wait_for_each_other(mariadb_url: str, face: str) -> None:
    """1213: the server undoes one of the two transactions, and that one is sent again."""
    one, other = b"\1" * 15, b"\2" * 15
    with opened(face, mariadb_url) as store, connected(mariadb_url) as cursor:
        granted(store, Key("deadlock", "s", face))
        cursor.execute("DELETE FROM semel_attempts")
        cursor.executemany("INSERT INTO semel_attempts VALUES (%s, 1, 1, '')", [(one,), (other,)])
        cursor.connection.commit()
        count = "UPDATE semel_attempts SET count = count + 1 WHERE digest = x'{}'"
        ours = packet("START TRANSACTION", count.format(other.hex()), count.format(one.hex()), "COMMIT")
        cursor.execute("UPDATE semel_attempts SET expires_ms = 2")  # both are locked, and this transaction is heavier
        cursor.execute("ROLLBACK")
        with ThreadPoolExecutor(1) as threads, connected(mariadb_url) as admin:
            # Only ours may be chosen: the other one has changed more rows.
            many = ", ".join(f"(x'{number:030x}', 1, 1, '')" for number in range(1_000, 1_100))
            cursor.execute(f"INSERT INTO semel_attempts VALUES {many}")
            cursor.execute(count.format(one.hex()))
            asked = threads.submit(performed, face, mariadb_url, ours)
            while not waiting_for_locks(admin):
                time.sleep(0.005)
            cursor.execute(count.format(other.hex()))
            cursor.execute("ROLLBACK")
            assert len(asked.result()) == 4
        cursor.execute("SELECT count FROM semel_attempts WHERE digest IN (%s, %s)", (one, other))
        assert cursor.fetchall() == ((2,), (2,))


def performed(face: str, url: str, question: Any) -> Any:
    settings = MariadbSettings.of(StoreUrl.parse(url))
    due_s = time.monotonic() + 10

    async def ask() -> Any:
        link = await AsyncMariadbLink.open(settings, due_s)
        reply = await link.perform(question)
        await link.close()
        return reply

    if face == "async":
        return asyncio.run(ask())
    link = MariadbLink.open(settings, due_s)
    reply = link.perform(question)
    link.close()
    return reply


def test_what_was_rolled_back_within_an_open_transaction_is_not_sent_again(mariadb_url: str) -> None:
    with opened("sync", mariadb_url) as store:
        store.get(Key("open", "s", "n"))
    link = MariadbLink.open(MariadbSettings.of(StoreUrl.parse(mariadb_url)), time.monotonic() + 10)
    link.perform(packet("START TRANSACTION", "DELETE FROM semel_attempts WHERE digest = ''"))
    with pytest.raises(StoreUnavailable):
        link.perform(packet("SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213"))
    assert link.closed


@each_face
def test_a_killed_server_comes_back_with_all_that_it_acknowledged(private_mariadb: MariadbServer, face: str) -> None:
    url = private_mariadb.create_database("shop")
    with opened(face, url) as store:
        lease = granted(store, Key("t", "s", "done"))
        assert store.complete(lease, ANSWER, retention_ms=3_600_000)
        private_mariadb.kill()
        started = time.monotonic()
        with pytest.raises(StoreUnavailable):
            claim(store, Key("t", "s", "while it is away"))
        assert time.monotonic() - started < 2  # refused at once, not after the time for an answer
        private_mariadb.restart()
        claimed = claim(store, Key("t", "s", "done"), "b")
        assert isinstance(claimed, Occupied)
        assert claimed.record.result == ANSWER


def test_a_server_that_does_not_answer(private_mariadb: MariadbServer) -> None:
    """What it finds in its sockets when it goes on is carried out, and until then the claim is in doubt."""
    url = private_mariadb.create_database("shop")
    for face in FACES:
        key = Key("t", "s", face)
        with opened(face, url, timeout_ms=200) as store, opened(face, url) as patient:
            assert isinstance(store, Doubting)
            granted(store, Key("t", "before", face))
            assert patient.get(key) is None
            private_mariadb.pause()
            started = time.monotonic()
            with pytest.raises(StoreTimeout):
                claim(store, key)
            assert time.monotonic() - started < 5
            private_mariadb.resume()
            before = store.doubts(None)
            while before:
                before = store.doubts(before)
            assert patient.get(key) == patient.get(key), "no claim arrives after the doubts have ended"
            granted(store, key)


@each_face
def test_a_server_that_only_reads(private_mariadb: MariadbServer, face: str) -> None:
    url = private_mariadb.create_database("shop")
    with opened(face, url) as store, connected(url) as cursor:
        granted(store, Key("t", "s", "n"))
        cursor.execute("CREATE USER plain")
        cursor.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON shop.* TO plain")
        cursor.execute("SET GLOBAL read_only = ON")
    with (
        opened(face, url.replace("root@", "plain@")) as store,
        pytest.raises(StoreUnavailable, match="name the primary"),
    ):
        claim(store, Key("t", "s", "other"))


@each_face
def test_no_server(face: str) -> None:
    with (
        opened(face, "mariadb://127.0.0.1:1/nothing") as store,
        pytest.raises(StoreUnavailable, match=r"mariadb://127\.0\.0\.1:1/nothing"),
    ):
        claim(store, Key("t", "s", "n"))


@each_face
def test_an_answer_that_fits_into_no_packet(private_mariadb: MariadbServer, face: str) -> None:
    url = private_mariadb.create_database("shop")
    with connected(url) as cursor:
        cursor.execute("SET GLOBAL max_allowed_packet = 1048576")
    with opened(face, url) as store:
        lease = granted(store, Key("t", "s", face))
        with pytest.raises(StoreMisconfigured, match=r"raise max_allowed_packet"):
            store.complete(lease, Result("text", b"x" * 600_000), retention_ms=60_000)
        assert store.complete(lease, Result("text", b"x" * 400_000), retention_ms=60_000)
