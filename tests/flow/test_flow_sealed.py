"""A flow on a sealed store leaves nothing in the clear, also where its steps write in transactions."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import semel
from flow.test_flow_crashes import ended, finish
from flow.trips import Boundaries, Clock, Declined, Killed, Trip, World
from semel.codecs.sealed import AsyncSealed, Seal, Sealed
from semel.errors import StoreMisconfigured
from semel.flow import AsyncFlow, Flow, tx

KEYS = {"2026-11": b"k" * 32}
SECRET = "the card number 4929"


@pytest.fixture(params=["sqlite", "postgres"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    url = f"sqlite:///{tmp_path}/semel.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    world = World(url, tmp_path / "ledger")
    world.set_up()
    yield world
    world.close()


def rows(world: World, key: str) -> list[tuple[str, bytes]]:
    """Scope and payload of all results of the flow, as the database holds them."""
    sql = "SELECT scope, name, format, payload FROM semel_records WHERE payload IS NOT NULL"
    with world.begin() as connection:
        found = [row for row in connection.execute(sql).fetchall() if row[1].partition("#")[0] == key]
    assert all(format in ("sealed.2", 5) for _, _, format, _ in found), found
    return [(scope, bytes(payload)) for scope, _, _, payload in found]


def check_sealed(world: World, key: str, count: int) -> None:
    found = rows(world, key)
    assert len(found) == count, [scope for scope, _ in found]
    for scope, payload in found:
        assert b"card" not in payload, scope
        assert b"4929" not in payload, scope


def remember(op: Any, connection: Any) -> str:
    return f"{op.input}, remembered"


async def aremember(op: Any, connection: Any) -> str:
    return f"{op.input}, remembered"


def flow(world: World, store: Any) -> Flow[str, str]:
    steps = [tx("one", remember), tx("two", remember)]
    return Flow("secrets", steps, store=store, input=str, returns=str, transaction=world.begin)


def test_no_step_s_result_is_in_the_clear(world: World, key: str) -> None:
    with Sealed(semel.open_store(world.url), keys=KEYS) as store:
        made = flow(world, store)
        assert [made.run(key, SECRET) for _ in range(2)] == [f"{SECRET}, remembered"] * 2
    check_sealed(world, key, 4)  # the plan, two steps, the flow


def test_no_step_s_result_is_in_the_clear_in_tasks(world: World, key: str) -> None:
    async def play() -> None:
        async with AsyncSealed(semel.open_async_store(world.url), keys=KEYS) as store:
            steps = [tx("one", aremember), tx("two", aremember)]
            made = AsyncFlow("secrets", steps, store=store, input=str, returns=str, transaction=world.abegin)
            assert [await made.run(key, SECRET) for _ in range(2)] == [f"{SECRET}, remembered"] * 2
            await world.aclose()

    asyncio.run(play())
    check_sealed(world, key, 4)


@pytest.mark.parametrize("declined", [False, True])
def test_a_sealed_flow_resumes_after_a_crash_anywhere(
    world: World, boundaries: Boundaries, clock: Clock, key: str, declined: bool
) -> None:
    """What a `tx` step has sealed is opened by the attempt that comes after it, and what an operator says, too."""
    with Sealed(semel.open_store(world.url, clock=clock), keys=KEYS) as store:
        made = world.flow(store)
        crashes = 0
        for boundary in itertools.count(1, 3):
            each = f"{key}-{boundary}"
            boundaries.arm(boundary)
            with suppress(Declined, Killed):
                made.run(each, Trip(each, declined))
            crashed = boundaries.count >= boundary
            boundaries.arm(-1)
            answer = finish(made, world, each, Trip(each, declined), clock)
            ended(world, each, answer, declined=declined)
            rows(world, each)
            if not crashed:
                break
            crashes += 1
    assert crashes > 3


class Logging:
    """A store of a user's own, around another one."""

    def __init__(self, within: Sealed) -> None:
        self._within = within

    def __getattr__(self, name: str) -> Any:
        if name == "seal":
            raise AttributeError(name)
        return getattr(self._within, name)

    # Spelled out: from Python 3.12 on, `isinstance` does not find abilities by __getattr__.

    def resolve(self, *args: Any, **options: Any) -> Any:
        return self._within.resolve(*args, **options)

    def scan(self, *args: Any, **options: Any) -> Any:
        return self._within.scan(*args, **options)

    def counts(self) -> Any:
        return self._within.counts()


def test_a_store_that_hides_its_seal_is_refused_by_name(world: World) -> None:
    store = Logging(Sealed(semel.open_store(world.url), keys=KEYS))
    with pytest.raises(StoreMisconfigured, match=r"Logging.*sealed store.*'one'.*attribute seal"):
        flow(world, store)
    store.seal = store._within.seal  # type: ignore[attr-defined]
    flow(world, store)
    store.seal = "my own way"  # type: ignore[attr-defined]
    with pytest.raises(StoreMisconfigured, match=r"Logging.*'one'.*a Seal, not str"):
        flow(world, store)
    store._within.close()


def test_a_plain_store_stays_plain(world: World, key: str) -> None:
    with closing(semel.open_store(world.url)) as store:
        assert flow(world, store).run(key, SECRET) == f"{SECRET}, remembered"
        assert not hasattr(store, "seal")
    assert isinstance(Sealed(semel.open_store("memory://"), keys=KEYS).seal, Seal)
