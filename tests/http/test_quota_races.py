"""A new key is counted before it is claimed, in one atomic step, and counts no more if nothing new ran."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol
from wsgiref.types import StartResponse, WSGIEnvironment

import limits
import pytest
from asking import post
from limits.storage import MovingWindowSupport, Storage
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from wsgi_calls import call

from semel import Policy, StoreMisconfigured, StoreUnavailable, asgi, wsgi
from semel.core.effects import Claim, Effect, Read
from semel.http.quota import AsyncQuotas, Quotas
from semel.stores.memory import AsyncMemoryStore, MemoryStore
from waiting import until

AT_ONCE = 300
Answer = tuple[int, bool]
"""The status, and whether it was replayed."""


class Service(Protocol):
    """An application behind a front, whose effects are counted."""

    effects: list[str]
    status: int
    broken: bool
    """The store cannot claim."""
    known: str
    """The store takes every key that it is asked for by name for this one."""
    gate: threading.Event
    """The work waits for it."""

    def ask(self, *keys: str, tenant: str = "me", body: bytes = b"{}") -> list[Answer]:
        """Ask for all of `keys` at once."""
        ...

    def close(self) -> None: ...


class Served:
    def __init__(self) -> None:
        self.effects: list[str] = []
        self.status = 201
        self.broken = False
        self.known = ""
        self.claims = 0
        self.gate, self.claiming = threading.Event(), threading.Event()
        self.gate.set()
        self.claiming.set()

    def check(self, call: Effect[Any]) -> Effect[Any]:
        if isinstance(call, Claim):
            self.claims += 1
            if self.broken:
                raise StoreUnavailable("down")
        if isinstance(call, Read) and self.known:
            return Read(replace(call.key, name=self.known))
        return call


class Asgi(Served):
    def __init__(self, policy: Policy, storage: str) -> None:
        super().__init__()
        served = self

        class Store(AsyncMemoryStore):
            async def _call(self, call: Any) -> Any:
                call = served.check(call)
                while isinstance(call, Claim) and not served.claiming.is_set():
                    await asyncio.sleep(0.001)
                return await super()._call(call)

        async def work(scope: Any, receive: Any, send: Any) -> None:
            served.effects.append(Request(scope).headers["idempotency-key"])
            while not served.gate.is_set():
                await asyncio.sleep(0.001)
            await PlainTextResponse("paid", status_code=served.status)(scope, receive, send)

        self.app = asgi.IdempotencyMiddleware(
            work, store=Store(), policy=policy, identify=tenant_of_scope, quota_storage=storage
        )
        self.loop = asyncio.new_event_loop()
        """All requests run in it, as on a server: the end of one wakes those that wait for it."""
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def ask(self, *keys: str, tenant: str = "me", body: bytes = b"{}") -> list[Answer]:
        async def main() -> list[Answer]:
            answers = await asyncio.gather(*(post(self.app, "/pay", key, tenant=tenant, body=body) for key in keys))
            return [(answer.status_code, "idempotent-replayed" in answer.headers) for answer in answers]

        return asyncio.run_coroutine_threadsafe(main(), self.loop).result()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


class Wsgi(Served):
    def __init__(self, policy: Policy, storage: str) -> None:
        super().__init__()
        served = self

        class Store(MemoryStore):
            def _call(self, call: Any) -> Any:
                return super()._call(served.check(call))

        def work(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
            served.effects.append(environ["HTTP_IDEMPOTENCY_KEY"])
            served.gate.wait()
            start_response(f"{served.status} X", [("Content-Type", "text/plain")])
            return [b"paid"]

        self.app = wsgi.IdempotencyMiddleware(
            work, store=Store(), policy=policy, identify=lambda environ: environ["HTTP_TENANT"], quota_storage=storage
        )

    def ask(self, *keys: str, tenant: str = "me", body: bytes = b"{}") -> list[Answer]:
        answers: list[Answer] = []
        ready = threading.Barrier(len(keys))

        def one(key: str) -> None:
            ready.wait()
            answer = call(self.app, "/pay", key=key, body=body, HTTP_TENANT=tenant)
            answers.append((answer.status, answer.replayed))

        threads = [threading.Thread(target=one, args=(key,)) for key in keys]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    def close(self) -> None: ...


def tenant_of_scope(scope: Any) -> str:
    tenant: bytes = dict(scope["headers"])[b"tenant"]
    return tenant.decode()


Serve = Callable[..., Service]


@pytest.fixture(params=["asgi", "wsgi"])
def front(request: pytest.FixtureRequest) -> Any:
    return {"asgi": Asgi, "wsgi": Wsgi}[request.param]


@pytest.fixture(params=["memory", "redis"])
def serve(request: pytest.FixtureRequest, front: Any) -> Serve:
    storage = "memory://" if request.param == "memory" else request.getfixturevalue("redis_url")

    def served(**policy: Any) -> Service:
        service: Service = front(Policy(**{"quota": "5/minute", **policy}), storage)
        request.addfinalizer(service.close)
        return service

    return served


@pytest.fixture
def tenant(request: pytest.FixtureRequest) -> str:
    """One for each test: Redis counts for all of them."""
    name: str = request.node.name
    return name


def test_no_more_new_keys_run_than_are_allowed_however_many_come_at_once(serve: Serve, tenant: str) -> None:
    service = serve()
    keys = [f"{number}" for number in range(AT_ONCE)]
    answers = service.ask(*keys, tenant=tenant)
    assert Counter(status for status, _ in answers) == {201: 5, 429: AT_ONCE - 5}
    assert len(service.effects) == 5
    assert service.ask(*service.effects, tenant=tenant) == [(201, True)] * 5, "known keys are answered, over the quota"
    assert service.ask("new", tenant=tenant) == [(429, False)]
    assert len(service.effects) == 5
    assert service.ask("new", tenant=f"{tenant}-other") == [(201, False)]


def test_repeats_use_up_nothing(serve: Serve, tenant: str) -> None:
    service = serve()
    service.ask("first", tenant=tenant)
    for _ in range(5):
        assert service.ask("first", tenant=tenant) == [(201, True)]
    assert service.ask("first", tenant=tenant, body=b"another request") == [(422, False)]
    assert service.ask("1", "2", "3", "4", tenant=tenant) == [(201, False)] * 4
    assert service.ask("5", tenant=tenant) == [(429, False)]
    assert sorted(service.effects) == ["1", "2", "3", "4", "first"]


def test_a_released_key_gives_its_charge_back(serve: Serve, tenant: str) -> None:
    """One operation that is refused ten times is one new key when it runs."""
    service = serve()
    service.status = 503
    for _ in range(10):
        assert service.ask("first", tenant=tenant) == [(503, False)]
    service.status = 201
    assert service.ask("first", "1", "2", "3", "4", tenant=tenant) == [(201, False)] * 5
    assert service.ask("5", tenant=tenant) == [(429, False)]
    assert len(service.effects) == 15


def test_a_claim_that_fails_gives_its_charge_back(serve: Serve, tenant: str) -> None:
    service = serve()
    service.broken = True
    assert service.ask("1", "2", "3", tenant=tenant) == [(503, False)] * 3
    service.broken = False
    assert service.ask("1", "2", "3", "4", "5", tenant=tenant) == [(201, False)] * 5


def test_callers_that_wait_for_the_first_one_hold_no_place(serve: Serve, tenant: str) -> None:
    service = serve(in_flight="wait", wait=10)
    service.gate.clear()
    first, slow = (
        threading.Thread(target=service.ask, args=["slow"] * count, kwargs={"tenant": tenant}) for count in (1, 19)
    )
    first.start()
    try:
        until(lambda: service.effects == ["slow"])
        slow.start()
        until(lambda: service_waits(service) == 19)
    finally:
        service.gate.set()
    assert sorted(service.ask("1", "2", "3", "4", tenant=tenant)) == [(201, False)] * 4
    first.join()
    slow.join()
    assert service.ask("5", tenant=tenant) == [(429, False)]
    assert sorted(service.effects) == ["1", "2", "3", "4", "slow"]


def service_waits(service: Any) -> int:
    count: int = service.app.host.waiters.count
    return count


def test_a_waiter_that_is_granted_after_all_is_counted(serve: Serve, tenant: str) -> None:
    """It was known when it came, and is new when the first one has given the key back."""
    service = serve(in_flight="wait", wait=2, quota="1/minute")
    service.gate.clear()
    service.status = 503
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda: answers.extend(service.ask("first", tenant=tenant))) for _ in range(2)]
    threads[0].start()
    until(lambda: service.effects == ["first"])
    threads[1].start()
    until(lambda: service_waits(service) == 1)
    service.gate.set()
    for thread in threads:
        thread.join()
    assert {status for status, _ in answers} <= {503, 429}, "refused if it was faster than the first one's return"
    assert len(service.effects) == [status for status, _ in answers].count(503)
    service.status = 201
    assert service.ask("other", tenant=tenant) == [(201, False)], "neither counts any more"
    assert service.ask("first", tenant=tenant) == [(429, False)]


def test_a_grant_that_is_one_too_many_is_given_back_and_never_runs(serve: Serve, tenant: str) -> None:
    """The key was known when it was looked up, and gone when it was claimed."""
    service = serve(quota="1/minute")
    service.ask("1", tenant=tenant)
    service.known = "1"
    assert service.ask("2", tenant=tenant) == [(429, False)]
    assert service.effects == ["1"]
    service.known = ""
    assert service.ask("2", tenant=tenant) == [(429, False)], "the claim was given back, else it were in progress"


def test_a_caller_who_leaves_during_its_claim_gives_the_charge_back(tenant: str, redis_url: str) -> None:
    async def main(storage: str) -> None:
        service = Asgi(Policy(quota="1/minute"), storage)
        service.claiming.clear()
        asked = asyncio.create_task(post(service.app, "/pay", "gone", tenant=tenant))
        while not service.claims:
            await asyncio.sleep(0.001)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        service.claiming.set()
        while (answer := await post(service.app, "/pay", "other", tenant=tenant)).status_code == 429:
            await asyncio.sleep(0.001)
        assert (answer.status_code, service.effects) == (201, ["other"])
        service.close()

    for storage in ("memory://", redis_url):
        asyncio.run(asyncio.wait_for(main(storage), 10))


class Other(Storage, MovingWindowSupport):
    """A storage that counts, and that semel does not know."""

    STORAGE_SCHEME = ["othermemory"]
    base_exceptions = ValueError

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        return 0

    def get(self, key: str) -> int:
        return 0

    def get_expiry(self, key: str) -> float:
        return 0

    def check(self) -> bool:
        return True

    def reset(self) -> int | None:
        return None

    def clear(self, key: str) -> None: ...

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return True

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        return 0, 0


def test_a_storage_that_cannot_give_back_is_refused_by_name() -> None:
    assert isinstance(limits.storage.storage_from_string("othermemory://"), Other)
    with pytest.raises(
        StoreMisconfigured,
        match=r"nothing counts quotas in othermemory://.*give redis://… to count for all processes, or memory://",
    ):
        _ = Quotas("othermemory://").limiter


def test_a_hit_is_given_back_exactly_once(redis_url: str) -> None:
    """And that very one: another key's charge stays."""
    policy = Policy(quota="2/minute")
    for quotas in (Quotas(), Quotas(redis_url)):
        first, other = quotas.charge(policy, "exact"), quotas.charge(policy, "exact")
        assert not isinstance(first, int)
        assert not isinstance(other, int)
        assert isinstance(quotas.charge(policy, "exact"), int)
        for _ in range(3):
            quotas.give_back(first)
        assert not isinstance(quotas.charge(policy, "exact"), int)
        assert isinstance(quotas.charge(policy, "exact"), int)


def test_a_cancelled_charge_counts_nothing(redis_url: str) -> None:
    async def main() -> None:
        quotas, policy = AsyncQuotas(redis_url), Policy(quota="3/minute")
        for turns in range(20):
            charging = asyncio.create_task(quotas.charge(policy, "cancelled"))
            for _ in range(turns):
                await asyncio.sleep(0)
            charging.cancel()
            found = (await asyncio.gather(charging, return_exceptions=True))[0]
            if not isinstance(found, BaseException | int):  # it was faster
                await quotas.give_back(found)
        await quotas._tasks.drain()
        charged = [await quotas.charge(policy, "cancelled") for _ in range(4)]
        assert [isinstance(each, int) for each in charged] == [False, False, False, True]

    asyncio.run(main())
