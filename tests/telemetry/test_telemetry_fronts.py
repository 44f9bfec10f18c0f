"""What the fronts report besides the decisions of the protocol: refusals, and leases that were lost."""

from __future__ import annotations

import asyncio
import time
from io import BytesIO
from pathlib import Path
from wsgiref.types import StartResponse, WSGIEnvironment
from wsgiref.util import setup_testing_defaults

from semel import Key, Policy, open_store
from semel.events import Event, EventKind
from semel.runtime.keeper import AsyncKeeper, Keeper
from semel.stores.memory import AsyncMemoryStore
from semel.wsgi import IdempotencyMiddleware
from telemetry.shop import Shop

KEY = Key("shop", "POST /pay", "k")


def test_a_request_that_is_refused_before_its_key_is_looked_at(tmp_path: Path) -> None:
    events: list[Event] = []
    shop = Shop(tmp_path, events.append, required=True, body_max=16, quota="1/hour")

    async def work() -> None:
        assert (await shop.capture("")).status_code == 400
        assert (await shop.capture(do="much more than sixteen bytes")).status_code == 413
        await shop.capture("first")
        assert (await shop.capture("second")).status_code == 429

    shop.run(work)
    refused = [event for event in events if event.kind is EventKind.REFUSED]
    assert [event.detail for event in refused] == ["key-malformed", "body-too-large", "too-many-keys"]
    assert [event.key.scope for event in refused] == ["POST /payments/17/capture"] * 3
    assert refused[0].key_digest == refused[1].key_digest == ""
    assert refused[2].key.tenant == "shop"
    assert shop.ledger == ["pay"]


def test_a_lost_lease_is_reported_once(tmp_path: Path) -> None:
    events: list[Event] = []
    store = open_store(f"sqlite:///{tmp_path}/semel.db")
    claimed = store.claim(KEY, "1.f", owner="a", lease_ms=30, retention_ms=60_000, takeover=False)
    store.release(claimed.lease)  # type: ignore[union-attr]
    kept = Keeper(store, events.append).keep(claimed.lease, lease_ms=30)  # type: ignore[union-attr]
    deadline = time.monotonic() + 20
    while not events:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert [event.kind for event in events] == [EventKind.LEASE_LOST]
    assert kept.lost
    store.close()


def test_a_lost_lease_is_reported_on_a_loop() -> None:
    events: list[Event] = []

    async def main() -> None:
        store = AsyncMemoryStore()
        claimed = await store.claim(KEY, "1.f", owner="a", lease_ms=30, retention_ms=60_000, takeover=False)
        await store.release(claimed.lease)  # type: ignore[union-attr]
        AsyncKeeper(store, events.append).keep(claimed.lease, lease_ms=30)  # type: ignore[union-attr]
        async with asyncio.timeout(20):
            while not events:
                await asyncio.sleep(0.005)

    asyncio.run(main())
    assert [event.kind for event in events] == [EventKind.LEASE_LOST]


def test_the_wsgi_front_reports_the_same(tmp_path: Path) -> None:
    events: list[Event] = []
    ledger: list[str] = []

    def pay(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        ledger.append("pay")
        start_response("201 Created", [])
        return []

    policy = Policy(required=True, body_max=16, quota="1/hour")
    app = IdempotencyMiddleware(
        pay, store=f"sqlite:///{tmp_path}/semel.db", policy=policy, identify=lambda _: "shop", on_event=events.append
    )
    for key, body in (("", b"{}"), ("large", b"much more than sixteen bytes"), ("first", b"{}"), ("second", b"{}")):
        environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/pay", "HTTP_IDEMPOTENCY_KEY": key}
        environ |= {"CONTENT_LENGTH": str(len(body)), "wsgi.input": BytesIO(body)}  # type: ignore[dict-item]
        setup_testing_defaults(environ)
        list(app(environ, lambda *_: lambda _: None))
    app.close()
    refused = [event for event in events if event.kind is EventKind.REFUSED]
    told = [(event.detail, event.key.tenant) for event in refused]
    assert told == [("key-malformed", ""), ("body-too-large", ""), ("too-many-keys", "shop")]
    assert [event.key.scope for event in refused] == ["POST /pay"] * 3
    assert ledger == ["pay"]
