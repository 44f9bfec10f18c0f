"""What the tests under fire share: a store behind the proxy in either face, the truth by a way around it, a ledger."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from semel import Acquired, Key, Lease, Policy, Record, Result, StoreUnavailable, open_async_store, open_store
from semel.core.decisions import Decision, Run, Settlement
from semel.core.effects import Plan
from semel.core.protocol import acquire, settle
from semel.core.records import Claimed
from semel.core.tables import Ending
from semel.runtime.drive import adrive, drive
from semel.runtime.perform import async_performer, performer
from semel.store import Migratable, Store
from semel.testing import BlockingStore
from semel.testing.proxy import FaultProxy
from stores.dynamodb_cases import DynamodbProxy

T = TypeVar("T")
STORES = ("postgres", "redis")
FACES = ("sync", "async")
LEASE_MS, LONGER_MS, RETENTION_MS = 60_000, 120_000, 3_600_000
PATIENCE_S = 30.0
ANSWER, OTHER_ANSWER = Result("text", b"answer"), Result("text", b"another answer")
FINGERPRINT = "v1:same"


class Opened:
    """A store in one face, for threads, and the driver of that face for plans."""

    def __init__(self, face: str, url: str) -> None:
        self.store: Store
        if face == "sync":
            self.store = store = open_store(url)
            self._drive: Callable[[Plan[object]], object] = lambda plan: drive(plan, performer(store))
        else:
            tasks = open_async_store(url)
            self.store = blocking = BlockingStore(tasks)
            self._drive = lambda plan: blocking._loop.run(adrive(plan, async_performer(tasks)))

    def drive(self, plan: Plan[T]) -> T:
        return self._drive(plan)  # type: ignore[return-value]


@contextmanager
def opened(face: str, url: str, **options: int) -> Iterator[Opened]:
    given = "&".join(f"{name}={value}" for name, value in options.items())
    one = Opened(face, f"{url}{'&' if '?' in url else '?'}{given}" if given else url)
    try:
        yield one
    finally:
        one.store.close()


def warm_up(store: Store) -> None:
    """Every kind of call once, so that the next one of any kind is a single exchange on an open connection."""
    for end in (lambda lease: store.complete(lease, ANSWER, retention_ms=1), store.release):
        lease = granted(claim(store, Key("warm", "up", os.urandom(8).hex()), "a"))
        store.renew(lease, lease_ms=LEASE_MS)
        end(lease)
        store.get(lease.key)


def migrated(url: str) -> str:
    with open_store(url) as store:  # type: ignore[attr-defined]
        if isinstance(store, Migratable):
            store.migrate()
    return url


def claim(store: Store, key: Key, owner: str, *, takeover: bool = False, lease_ms: int = LEASE_MS) -> Claimed:
    return store.claim(key, FINGERPRINT, owner=owner, lease_ms=lease_ms, retention_ms=RETENTION_MS, takeover=takeover)


def granted(claimed: Claimed) -> Lease:
    assert isinstance(claimed, Acquired), claimed
    return claimed.lease


def persist(call: Callable[[], T]) -> T:
    """Ask until the store answers, as a caller does who repeats with its own owner."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except StoreUnavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


class Place:
    """One real server, the proxy in front of it, and the store on it that goes around the proxy."""

    def __init__(self, url: str, proxy: FaultProxy) -> None:
        self.url = url
        self.proxy = proxy
        self.around = open_store(migrated(url))

    def truth(self, key: Key, expected: Callable[[Record | None], bool] = lambda _: True) -> Record | None:
        """What the store holds, which must be as expected: soon, if the server is still busy with what it was asked."""
        deadline = time.monotonic() + PATIENCE_S
        while not expected(record := persist(lambda: self.around.get(key))):
            assert time.monotonic() < deadline, f"the store holds {record}"
            time.sleep(0.01)
        return record


@contextmanager
def placed(url: str) -> Iterator[Place]:
    with (DynamodbProxy if url.startswith("dynamodb:") else FaultProxy)(url) as proxy:
        place = Place(url, proxy)
        yield place
        place.around.close()


class Ledger:
    """Effects, one line for each, in a file outside of everything that is broken here."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ledger"
        self._path.touch()

    def record(self, key: Key) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, f"{key.name}\n".encode())
        os.close(descriptor)

    def effects(self) -> Counter[str]:
        return Counter(self._path.read_text().splitlines())


def execute(one: Opened, key: Key, owner: str, policy: Policy, ledger: Ledger) -> tuple[Decision, Settlement | None]:
    """What a front does for one request: acquire, the work if it is ours, settle."""
    decision = one.drive(acquire(key, FINGERPRINT, owner, policy))
    if not isinstance(decision, Run):
        return decision, None
    ledger.record(key)
    result = Result("text", owner.encode())
    return decision, one.drive(settle(decision.lease, Ending.SUCCEEDED, result, policy, fingerprint=FINGERPRINT))


def url_of(store: str, request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{store}_url")
    return url
