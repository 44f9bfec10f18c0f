"""The DynamoDB store when the server, a connection or a clock is in its way: an answer, then work again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from semel import Acquired, Key, Occupied, Result, open_async_store, open_store
from semel.core.records import Claimed, Lease
from semel.errors import StoreError, StoreMisconfigured, StoreTimeout, StoreUnavailable
from semel.store import Doubting, Store
from semel.testing import BlockingStore
from semel.testing.proxy import Fault, FaultProxy, ProxyExchange
from semel.testing.races import at_once
from servers.dynalite import DynaliteServer
from servers.moto import AwsServer
from servers.needing import needed
from stores.dynamodb_answers import ChangedAnswers
from stores.dynamodb_cases import SERVERS, credentials, url_on

ANSWER = Result("text", b"paid")
FACES = ("sync", "async")
pytestmark = pytest.mark.timeout(60)
each_face = pytest.mark.parametrize("face", FACES)


@pytest.fixture(autouse=True)
def signed() -> Iterator[None]:
    with credentials():
        yield


@pytest.fixture(params=SERVERS)
def each_server(request: pytest.FixtureRequest) -> AwsServer:
    server: AwsServer = request.getfixturevalue(f"{request.param}_server")
    return server


@pytest.fixture
def lasting_dynalite(tmp_path: Path) -> Iterator[DynaliteServer]:
    """A server for one test, which may kill, pause and restart it; its tables are files."""
    with needed("dynalite", lambda: DynaliteServer(tmp_path / "tables")) as server:
        yield server


@contextmanager
def opened(face: str, endpoint: str, table: str = "semel-faults", **options: object) -> Iterator[Store]:
    url = url_on(endpoint, table) + "&migrate=auto" + "".join(f"&{name}={value}" for name, value in options.items())
    store = open_store(url) if face == "sync" else BlockingStore(open_async_store(url))
    yield store
    store.close()


def claim(store: Store, key: Key, owner: str = "a", *, lease_ms: int = 60_000, takeover: bool = False) -> Claimed:
    return store.claim(key, "1.same", owner=owner, lease_ms=lease_ms, retention_ms=3_600_000, takeover=takeover)


def granted(store: Store, key: Key, owner: str = "a") -> Lease:
    claimed = claim(store, key, owner)
    assert isinstance(claimed, Acquired)
    return claimed.lease


BODIES = {"PutItem": b'"Item"', "UpdateItem": b'"UpdateExpression"'}
"""What only the body has. Headers may come in a piece of their own, and a fault belongs to the last one."""


def asks_for(operation: str) -> Callable[[ProxyExchange], bool]:
    return lambda exchange: BODIES[operation] in exchange.request


@each_face
def test_a_write_whose_reply_is_lost(each_server: AwsServer, face: str) -> None:
    """The claim, and then the completion, took place; their caller was told that nobody knows."""
    key = Key("lost", type(each_server).__name__, face)
    with FaultProxy(each_server.url) as proxy, opened(face, proxy.url) as store:
        assert store.get(key) is None
        lost = proxy.inject(Fault.CUT_AFTER, when=asks_for("PutItem"))
        with pytest.raises(StoreUnavailable):
            claim(store, key)
        assert lost.hits == 1, "it was not sent again by the driver"
        assert isinstance(claim(store, key, "b"), Occupied)
        lease = granted(store, key)
        lost = proxy.inject(Fault.CUT_AFTER, when=asks_for("UpdateItem"))
        with pytest.raises(StoreUnavailable):
            store.complete(lease, ANSWER, retention_ms=60_000)
        assert lost.hits == 1
        assert store.complete(lease, Result("text", b"again"), retention_ms=60_000)
        record = store.get(key)
        assert record is not None
        assert record.result == ANSWER


@each_face
def test_a_write_that_never_arrives(each_server: AwsServer, face: str) -> None:
    key = Key("never", type(each_server).__name__, face)
    with FaultProxy(each_server.url) as proxy, opened(face, proxy.url) as store:
        assert store.get(key) is None
        proxy.inject(Fault.CUT_BEFORE, when=asks_for("PutItem"))
        with pytest.raises(StoreUnavailable):
            claim(store, key)
        assert store.get(key) is None
        proxy.cut()  # what waits in the pool is not used
        granted(store, key, "b")


@each_face
def test_a_reply_that_makes_no_sense(each_server: AwsServer, face: str) -> None:
    key = Key("garbled", type(each_server).__name__, face)
    with FaultProxy(each_server.url) as proxy, opened(face, proxy.url, timeout_ms=2_000) as store:
        lease = granted(store, key)
        proxy.inject(Fault.GARBLE, when=asks_for("UpdateItem"))
        with pytest.raises(StoreUnavailable):
            store.renew(lease, lease_ms=60_000)
        assert store.renew(lease, lease_ms=60_000)


@each_face
def test_a_killed_server_comes_back_with_all_that_it_acknowledged(lasting_dynalite: DynaliteServer, face: str) -> None:
    with opened(face, lasting_dynalite.url) as store:
        lease = granted(store, Key("t", "s", "done"))
        assert store.complete(lease, ANSWER, retention_ms=3_600_000)
        lasting_dynalite.kill()
        with pytest.raises(StoreUnavailable) as caught:
            claim(store, Key("t", "s", "while it is away"))
        assert not isinstance(caught.value, StoreTimeout), "refused at once, not after the time for an answer"
        lasting_dynalite.restart()
        claimed = claim(store, Key("t", "s", "done"), "b")
        assert isinstance(claimed, Occupied)
        assert claimed.record.result == ANSWER


@each_face
def test_a_server_that_does_not_answer(lasting_dynalite: DynaliteServer, face: str) -> None:
    """What it finds in its sockets when it goes on is carried out, and until then the claim is in doubt."""
    key = Key("t", "s", face)
    endpoint = lasting_dynalite.url
    with opened(face, endpoint, timeout_ms=2_000) as store, opened(face, endpoint) as patient:
        assert isinstance(store, Doubting)
        granted(store, Key("t", "before", face))
        assert patient.get(key) is None
        lasting_dynalite.pause()
        started = time.monotonic()
        with pytest.raises(StoreTimeout):
            claim(store, key)
        assert 1.9 < time.monotonic() - started < 5.5, "its caller is answered before the request is given up"
        lasting_dynalite.resume()
        assert store.doubts(None) == frozenset()
        found = patient.get(key)
        assert found is not None
        assert found.owner == "a"
        granted(store, key)


@each_face
def test_no_server(face: str) -> None:
    with (
        opened(face, "http://127.0.0.1:1") as store,
        pytest.raises(StoreUnavailable, match=r"dynamodb://eu-central-1/semel-faults.*127\.0\.0\.1:1"),
    ):
        claim(store, Key("t", "s", "n"))


@pytest.mark.parametrize(
    ("code", "failure", "words"),
    [
        ("ProvisionedThroughputExceededException", StoreUnavailable, "throttled"),
        ("RequestLimitExceeded", StoreUnavailable, "throttled"),
        ("ThrottlingException", StoreUnavailable, "throttled"),
        ("InternalServerError", StoreUnavailable, "on purpose"),
        ("AccessDeniedException", StoreMisconfigured, "dynamodb:GetItem"),
        ("UnrecognizedClientException", StoreMisconfigured, "AWS_ACCESS_KEY_ID"),
        ("ExpiredTokenException", StoreMisconfigured, "have expired"),
        ("InvalidSignatureException", StoreMisconfigured, "chrony"),
    ],
)
@each_face
def test_a_refusal_says_what_to_do(
    dynalite_server: AwsServer, face: str, code: str, failure: type[StoreError], words: str
) -> None:
    """The emulators refuse nothing of the kind, so this answers as DynamoDB's documentation says. It is asked once."""
    with ChangedAnswers(dynalite_server.url) as answers, opened(face, answers.url) as store:
        key = Key("refused", face, code)
        assert store.get(key) is None
        answers.refusals["PutItem"] = code
        with pytest.raises(failure, match=words):
            claim(store, key)
        assert answers.operations.count("PutItem") == 1
        answers.refusals.clear()
        granted(store, key)


def test_callers_do_not_share_their_failures(dynalite_server: AwsServer) -> None:
    async def claims(endpoint: str) -> list[Any]:
        async with open_async_store(url_on(endpoint, "semel-faults") + "&migrate=auto") as store:  # type: ignore[attr-defined]
            await store.get(Key("t", "s", "n"))
            keys = [Key("apart", "s", f"n{number}") for number in range(8)]
            asked = [
                store.claim(key, "1.f", owner="a", lease_ms=60_000, retention_ms=60_000, takeover=False) for key in keys
            ]
            return await asyncio.gather(*asked, return_exceptions=True)

    with FaultProxy(dynalite_server.url) as proxy:
        cut = proxy.inject(Fault.CUT_AFTER, when=asks_for("PutItem"))
        replies = asyncio.run(claims(proxy.url))
    assert cut.hits == 1
    assert sum(isinstance(reply, StoreUnavailable) for reply in replies) == 1
    assert sum(isinstance(reply, Acquired) for reply in replies) == 7


@each_face
def test_no_more_requests_than_allowed_are_under_way(dynalite_server: AwsServer, face: str) -> None:
    async def claims(endpoint: str) -> list[Any]:
        async with open_async_store(  # type: ignore[attr-defined]
            url_on(endpoint, "semel-faults") + "&migrate=auto&concurrency=3"
        ) as store:
            return await asyncio.gather(*(store.get(Key("many", "s", f"{number}")) for number in range(40)))

    with FaultProxy(dynalite_server.url) as proxy:
        if face == "async":
            assert asyncio.run(claims(proxy.url)) == [None] * 40
        else:
            with opened("sync", proxy.url, concurrency=3) as store:
                assert at_once([lambda: store.get(Key("many", "s", "n"))] * 20) == [None] * 20
        assert proxy.connections <= 3


class TestClock:
    """The time in the server's answers against this machine's."""

    @each_face
    @pytest.mark.parametrize("ahead_s", [-60, 60])
    def test_a_wrong_clock_decides_nothing(self, dynalite_server: AwsServer, face: str, ahead_s: int) -> None:
        key = Key("clock", face, f"{ahead_s}")
        with ChangedAnswers(dynalite_server.url) as answers, opened(face, answers.url) as store:
            answers.ahead_s = ahead_s
            told = "behind" if ahead_s > 0 else "ahead of"
            for _ in range(2):
                with pytest.raises(StoreMisconfigured, match=f"{told} DynamoDB's.*skew_max_ms=1000"):
                    claim(store, key)
            assert "PutItem" not in answers.operations
            answers.ahead_s = 0
            assert store.get(key) is None
            granted(store, key)

    @each_face
    def test_a_claim_by_a_clock_that_goes_wrong_is_given_back(self, dynalite_server: AwsServer, face: str) -> None:
        """As when a virtual machine was paused. What was done before is stored all the same."""
        key, done = Key("paused", "s", face), Key("paused", "done", face)
        with ChangedAnswers(dynalite_server.url) as answers, opened(face, answers.url) as store:
            lease = granted(store, done)
            answers.ahead_s = 60
            assert store.complete(lease, ANSWER, retention_ms=60_000)
            answers.ahead_s = 0
            assert isinstance(claim(store, done, "b"), Occupied)
            answers.ahead_s = 60
            with pytest.raises(StoreMisconfigured, match="behind DynamoDB's"):
                claim(store, key)
            answers.ahead_s = 0
            assert store.get(key) is None, "nothing ran, and nothing is in doubt"
            granted(store, key, "b")

    @each_face
    def test_how_wrong_it_may_be_is_an_option(self, dynalite_server: AwsServer, face: str) -> None:
        with ChangedAnswers(dynalite_server.url) as answers, opened(face, answers.url, skew_max_ms=60_000) as store:
            answers.ahead_s = 50
            granted(store, Key("clock", "allowed", face))

    @each_face
    def test_a_lease_of_another_caller_lapses_later(self, dynalite_server: AwsServer, face: str) -> None:
        """By as much as two clocks may be apart. Its own caller sees it as it is."""
        key = Key("margin", "s", face)
        with opened(face, dynalite_server.url, skew_max_ms=500) as store:
            lease = claim(store, key, lease_ms=1)
            began = time.monotonic()
            claimed = claim(store, key, "b", takeover=True)
            assert isinstance(claimed, Occupied)
            assert not claimed.record.lapsed(claimed.now_ms), "it is told to come again"
            assert claim(store, key) == lease
            while not isinstance(claimed, Acquired):
                time.sleep(0.01)
                claimed = claim(store, key, "b", takeover=True)
            assert time.monotonic() - began > 0.9
            assert claimed.lease.attempt == 2
