"""A store that hangs: nothing answers, and no connection breaks. The caller is answered near the store's time-out."""

import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from fire.cases import FACES, FINGERPRINT, STORES, Ledger, Opened, Place, execute, migrated, opened, warm_up
from semel import Key, Policy, Result
from semel.core.decisions import Run, Stored, Undecided
from semel.core.protocol import abandon, acquire, settle
from semel.core.records import Lease
from semel.core.tables import Ending
from servers.process import Server

TIMEOUT_MS = 1_000
NEAR_S = 1.9 * TIMEOUT_MS / 1000
"""Less than two time-outs: a second round of any kind takes longer."""
NEARER_S = 1.3 * TIMEOUT_MS / 1000
CALLERS = 40
"""More than a pool has connections."""
POLICY = Policy()


@pytest.fixture(params=STORES)
def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(f"private_{request.param}")
    migrated(server.url)  # type: ignore[attr-defined]
    return server


def keys(count: int) -> list[Key]:
    return [Key("fire", "hung", uuid.uuid4().hex) for _ in range(count)]


def undecided_after_s(one: Opened, key: Key) -> float:
    started = time.monotonic()
    decision = one.drive(acquire(key, FINGERPRINT, f"gone {key.name}", POLICY))
    assert isinstance(decision, Undecided), decision
    return time.monotonic() - started


@pytest.mark.parametrize("face", FACES)
def test_a_claim_of_a_store_that_hangs_has_one_deadline(face: str, server: Server, ledger: Ledger) -> None:
    """However many ask, and whether their connection is open or new. When the store goes on, every key is free."""
    asked, later = keys(CALLERS), keys(3)
    with opened(face, server.url, timeout_ms=TIMEOUT_MS) as one, ThreadPoolExecutor(CALLERS) as threads:  # type: ignore[attr-defined]
        warm_up(one.store)
        server.pause()
        took_s = list(threads.map(lambda key: undecided_after_s(one, key), asked))
        took_s += [undecided_after_s(one, key) for key in later]
        server.resume()
        assert max(took_s) < NEAR_S
        leases = [Lease(key, f"gone {key.name}", 1, 0) for key in (*asked, *later)]
        assert all(threads.map(lambda lease: one.drive(abandon(lease)), leases))
        for key in (*asked, *later):
            assert execute(one, key, "b", POLICY, ledger)[1] == Stored()
    assert set(ledger.effects().values()) == {1}


@pytest.mark.parametrize("face", FACES)
def test_a_completion_outlives_a_store_that_hangs(face: str, server: Server) -> None:
    """The work has run: its result is worth more than one time-out."""
    (key,) = keys(1)
    with opened(face, server.url, timeout_ms=300) as one, ThreadPoolExecutor(1) as threads:  # type: ignore[attr-defined]
        decision = one.drive(acquire(key, FINGERPRINT, "a", POLICY))
        assert isinstance(decision, Run)
        server.pause()
        plan = settle(decision.lease, Ending.SUCCEEDED, Result("text", b"a"), POLICY, fingerprint=FINGERPRINT)
        settling = threads.submit(one.drive, plan)
        time.sleep(0.9)  # three time-outs; nothing tells when a store does not answer
        server.resume()
        assert settling.result(30) == Stored()


@pytest.mark.parametrize("cut_s", [0.1, 0.8], ids=["early", "late"])
@pytest.mark.parametrize("face", FACES)
def test_a_claim_whose_connection_is_cut_goes_on_with_the_same_deadline(
    face: str, cut_s: float, place: Place, key: Key, ledger: Ledger
) -> None:
    """The connection of the claim is cut, and the store hangs when the claim is asked for again."""
    with opened(face, place.proxy.url, timeout_ms=TIMEOUT_MS) as one:
        warm_up(one.store)
        place.proxy.hold()
        cutting = threading.Timer(cut_s * TIMEOUT_MS / 1000, place.proxy.cut)
        cutting.start()
        took_s = undecided_after_s(one, key)
        cutting.join()
        place.proxy.clear()
        assert cut_s * TIMEOUT_MS / 1000 < took_s < NEARER_S
        assert one.drive(abandon(Lease(key, f"gone {key.name}", 1, 0)))
        assert execute(one, key, "b", POLICY, ledger)[1] == Stored()
    assert ledger.effects()[key.name] == 1


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process has a write transaction open."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.mark.parametrize("face", FACES)
def test_a_claim_behind_others_in_an_sqlite_file_that_is_locked_has_one_deadline(
    face: str, tmp_path: Path, ledger: Ledger
) -> None:
    """Whoever asks while the first one waits for the lock does not wait for as long again behind it."""
    asked = keys(CALLERS)

    def ask(nth: int) -> float:
        time.sleep(nth * 0.02)  # so that nobody is in the batch of the first one
        return undecided_after_s(one, asked[nth])

    with (
        opened(face, f"sqlite:///{tmp_path}/s.db", busy_timeout_ms=TIMEOUT_MS) as one,
        ThreadPoolExecutor(CALLERS) as threads,
    ):
        warm_up(one.store)
        with locked(tmp_path / "s.db"):
            took_s = list(threads.map(ask, range(CALLERS)))
        assert max(took_s) < NEARER_S
        assert all(one.drive(abandon(Lease(key, f"gone {key.name}", 1, 0))) for key in asked)
        for key in asked:
            assert execute(one, key, "b", POLICY, ledger)[1] == Stored()
    assert set(ledger.effects().values()) == {1}
