"""A real server behind a proxy that cuts connections: before anything, while the handler runs, and at COMMIT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from inbox.shop import Shop, a_delivery, handlings
from semel.inbox import Handling, Settling
from semel.testing import Fault, FaultProxy
from transaction.modes import MODES, Mode, effects

MODE_NAMES = ("psycopg", "asyncpg")


@pytest.fixture(params=[mode for mode in MODES if mode.name in MODE_NAMES], ids=lambda mode: mode.name)
def mode(request: pytest.FixtureRequest) -> Mode:
    return request.param  # type: ignore[no-any-return]


def holds(word: bytes) -> Any:
    return lambda exchange: word in exchange.request


def test_a_server_that_is_away_and_comes_back(mode: Mode, urls: Mapping[str, str]) -> None:
    with FaultProxy(urls["postgres"]) as proxy:
        shop, delivery = Shop(mode, proxy.url, attempts_max=1), a_delivery()
        proxy.inject(Fault.CUT_BEFORE, times=None)
        for verdict in shop.deliver(delivery, delivery):
            assert (verdict.handling, verdict.settling, verdict.counted) == (
                Handling.STORE_AWAY,
                Settling.STOP,
                False,
            )
        proxy.clear()
        assert handlings(shop.deliver(delivery, delivery)) == [Handling.HANDLED, Handling.DUPLICATE]
    assert effects(urls["postgres"], delivery.payload.decode()) == 1


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER], ids=["not committed", "committed"])
def test_a_connection_that_is_lost_at_commit_counts_nothing(mode: Mode, urls: Mapping[str, str], fault: Fault) -> None:
    """The next try finds out what became of it: the handler takes effect once either way."""
    with FaultProxy(urls["postgres"]) as proxy:
        shop, delivery = Shop(mode, proxy.url, attempts_max=1), a_delivery()
        lost = proxy.inject(fault, when=holds(b"COMMIT"), times=1)
        [verdict] = shop.deliver(delivery)
        assert lost.hits == 1
        expected = Handling.DUPLICATE if fault is Fault.CUT_AFTER else Handling.HANDLED
        assert (verdict.handling, verdict.settling) == (expected, Settling.ACKNOWLEDGE)
    assert effects(urls["postgres"], delivery.payload.decode()) == 1


def test_a_connection_that_is_lost_while_the_handler_writes_is_tried_again(mode: Mode, urls: Mapping[str, str]) -> None:
    with FaultProxy(urls["postgres"]) as proxy:
        shop, delivery = Shop(mode, proxy.url, attempts_max=1), a_delivery()
        lost = proxy.inject(Fault.CUT_BEFORE, when=holds(b"INSERT INTO effects"), times=1)
        assert handlings(shop.deliver(delivery)) == [Handling.HANDLED]
        assert lost.hits == 1
    assert effects(urls["postgres"], delivery.payload.decode()) == 1
