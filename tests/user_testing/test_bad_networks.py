"""Transports that duplicate and lose, crash points, and the plugin itself."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from semel.testing import (
    AsyncDuplicatingTransport,
    AsyncLosingTransport,
    CrashPoints,
    DuplicatingTransport,
    Killed,
    LosingTransport,
)
from user_testing import billing
from user_testing.services import Shop, protected

KEY = {"Idempotency-Key": "order-1"}
CHARGE = f"{billing.__name__}.send_invoice"


def shop_behind(shop: Shop, safe: bool) -> httpx.WSGITransport:
    return httpx.WSGITransport(protected(shop.app()) if safe else shop.app())


@pytest.mark.parametrize(("safe", "orders"), [(True, 1), (False, 2)])
def test_every_unsafe_request_arrives_twice(safe: bool, orders: int) -> None:
    shop = Shop()
    transport = DuplicatingTransport(shop_behind(shop, safe))
    with httpx.Client(transport=transport, base_url="http://shop") as client:
        answer = client.post("/orders", content=b"{}", headers=KEY)
        assert (answer.status_code, answer.json()) == (201, {"order": orders})
        assert client.get("/orders").status_code == 405
    assert (shop.orders, transport.duplicates) == (orders, 1)


@pytest.mark.parametrize(("safe", "orders"), [(True, 1), (False, 2)])
def test_the_first_answer_is_lost_and_the_retry_gets_through(safe: bool, orders: int) -> None:
    shop = Shop()
    transport = LosingTransport(shop_behind(shop, safe))
    with httpx.Client(transport=transport, base_url="http://shop") as client:
        with pytest.raises(httpx.ReadError, match="lost, on purpose"):
            client.post("/orders", json={}, headers=KEY)
        assert shop.orders == 1, "the service has acted"
        assert client.post("/orders", json={}, headers=KEY).json() == {"order": orders}
        assert client.get("/orders").status_code == 405
    assert (shop.orders, transport.lost) == (orders, 1)


def test_the_same_for_async_clients() -> None:
    async def app(scope: object, receive: object, send: object) -> None:
        arrived.append(1)
        await send({"type": "http.response.start", "status": 201, "headers": []})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": b"%d" % len(arrived)})  # type: ignore[operator]

    async def ask() -> tuple[bytes, bytes]:
        twice = AsyncDuplicatingTransport(httpx.ASGITransport(app))
        async with httpx.AsyncClient(transport=twice, base_url="http://shop") as client:
            doubled = (await client.post("/")).content
            await client.get("/")
        losing = AsyncLosingTransport(httpx.ASGITransport(app))
        async with httpx.AsyncClient(transport=losing, base_url="http://shop") as client:
            await client.get("/")
            with pytest.raises(httpx.ReadError):
                await client.post("/")
            return doubled, (await client.post("/")).content

    arrived: list[int] = []
    assert asyncio.run(ask()) == (b"2", b"6")


@pytest.mark.parametrize(("point", "effects"), [("before", 0), ("after", 1)])
def test_crash_points(tmp_path: Path, point: str, effects: int) -> None:
    ledger = tmp_path / "ledger"
    with pytest.MonkeyPatch.context() as patch:
        crash = CrashPoints(patch)
        getattr(crash, point)(CHARGE)
        with pytest.raises(Killed, match=f"{point} {CHARGE}"):
            billing.send_invoice(ledger)
        assert (ledger.exists(), crash.crashes) == (bool(effects), [CHARGE])
        crash.disarm()
        billing.send_invoice(ledger)
    assert ledger.read_text() == "sent\n" * (effects + 1)


def test_a_child_that_lives_and_a_child_that_fails(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        crash = CrashPoints(patch)
        assert crash.in_child(lambda: billing.send_invoice(tmp_path / "ledger")) is False
        with pytest.raises(RuntimeError, match="exit code"):
            crash.in_child(lambda: sys.exit(3))
        with pytest.raises(LookupError, match=r"package\.module\.function"):
            crash.after("no.such.function")


def test_the_plugin_asks_for_nothing_that_may_not_be_installed(tmp_path: Path) -> None:
    """It is loaded by every pytest run where semel is installed."""
    (tmp_path / "test_it.py").write_text(
        "def test_it(semel_clock, semel_store):\n"
        "    before = semel_clock()\n"
        "    semel_clock.advance(5)\n"
        "    assert semel_clock() == before + 5\n"
        "    assert semel_store.counts().in_progress == 0\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for absent in ("hypothesis", "httpx", "httpx2"):
        (tmp_path / f"{absent}.py").write_text(f"raise ModuleNotFoundError('no {absent} here', name='{absent}')\n")
    plugins = ["-p", "no:semel", "-p", "semel.testing.plugin", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
