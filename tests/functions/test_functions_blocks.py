"""`with semel.operation(…)` and `async with`."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest

import semel
from functions.shop import PATIENCE_S, when_over
from semel.core.records import Acquired


@pytest.fixture
def store() -> semel.Store:
    return semel.open_store("memory://")


@dataclass
class Receipt:
    number: int


def test_a_block_runs_once(store: semel.Store) -> None:
    effects: list[int] = []

    def pay(amount: int) -> Receipt:
        with semel.operation("a", scope="operation", store=store, fingerprint=amount, returns=Receipt) as op:
            if op.replayed:
                return op.result
            effects.append(amount)
            op.result = Receipt(len(effects))
        return op.result

    assert pay(5) == pay(5) == Receipt(1)
    with pytest.raises(semel.KeyReused):
        pay(6)
    assert effects == [5]


def test_an_async_block_runs_once() -> None:
    store = semel.open_async_store("memory://")

    async def pay() -> object:
        async with semel.operation("a", store=store, scope="pay") as op:
            if op.replayed:
                return op.result
            op.result = {"derived": op.derive("psp"), "attempt": op.attempt}
        return op.result

    async def main() -> None:
        first, second = await pay(), await pay()
        assert first == second
        assert isinstance(first, dict)
        assert first["attempt"] == 1

    asyncio.run(main())


def test_a_block_without_a_result_has_the_result_none(store: semel.Store) -> None:
    for replayed in (False, True):
        with semel.operation("a", scope="operation", store=store) as op:
            assert op.replayed is replayed
            assert op.has_result is replayed
    assert op.result is None


def test_leaving_without_looking_is_an_error_the_first_time_already(store: semel.Store) -> None:
    effects: list[int] = []
    for _ in range(2):
        with pytest.raises(semel.Misuse, match="without looking"), semel.operation("a", scope="operation", store=store):
            effects.append(1)

    async def main() -> None:
        for _ in range(2):
            with pytest.raises(semel.Misuse, match="without looking"):
                async with semel.operation("a", scope="operation", store=semel.open_async_store("memory://")):
                    effects.append(1)

    asyncio.run(main())
    assert len(effects) == 4  # a block cannot be skipped, which is why everybody hears of it the first time


def test_other_misuse(store: semel.Store) -> None:
    block = semel.operation("a", scope="operation", store=store)
    with pytest.raises(semel.Misuse, match="not entered"):
        _ = block.operation
    with block as op:
        assert not op.replayed
        with pytest.raises(semel.Misuse, match="before it was set"):
            _ = op.result
        op.result = 1
    with pytest.raises(semel.Misuse, match="entered once"):
        block.__enter__()
    with semel.operation("a", scope="operation", store=store) as op:
        assert op.replayed
        with pytest.raises(semel.Misuse, match="is stored and cannot change"):
            op.result = 2
    with pytest.raises(TypeError, match="sync store"):
        asyncio.run(_entered(semel.operation("a", scope="operation", store=store)))
    with pytest.raises(TypeError, match="async with"):
        semel.operation("a", scope="operation", store=store, reconcile=_entered).__enter__()
    with pytest.raises(semel.Unstorable, match="lock"):
        semel.operation("a", scope="operation", store=store, returns=type(threading.Lock()))


async def _entered(block: Any) -> None:
    async with block:
        pass


def test_a_block_that_raises(store: semel.Store) -> None:
    for _ in range(2):
        block = semel.operation("a", scope="operation", store=store, final_errors=[LookupError])
        with pytest.raises(LookupError, match="final"), block:
            raise LookupError("final")
    with pytest.raises(ValueError, match="other"), semel.operation("b", scope="operation", store=store):
        raise ValueError("other")
    with pytest.raises(semel.OutcomeUnknown):
        semel.operation("b", scope="operation", store=store).__enter__()


def test_an_unknown_block_is_reconciled(store: semel.Store) -> None:
    def block(answer: object) -> semel.Block[object]:
        return semel.operation(
            "a", scope="operation", store=store, final_errors=[LookupError], reconcile=lambda: answer
        )

    with pytest.raises(ValueError, match="other"), block(None):
        raise ValueError("other")

    def late() -> object:
        with block(semel.NotDone) as op:
            if not op.replayed:
                op.result = "ran"
            return op.result

    assert when_over(late) == late() == "ran"


def test_a_reconciler_raises_a_final_error() -> None:
    async def found_out() -> object:
        await asyncio.sleep(0)
        raise LookupError("declined after all")

    async def main() -> None:
        options: dict[str, Any] = {
            "store": semel.open_async_store("memory://"),
            "final_errors": [LookupError],
            "reconcile": found_out,
        }
        with pytest.raises(ValueError, match="other"):
            async with semel.operation("a", scope="operation", **options):
                raise ValueError("other")
        for _ in range(2):
            while True:
                try:
                    await semel.operation("a", scope="operation", **options).__aenter__()
                except semel.InProgress:
                    await asyncio.sleep(0.01)
                except LookupError as error:
                    assert error.args == ("declined after all",)  # noqa: PT017
                    break

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_a_superseded_block_is_told() -> None:
    """Its own result may be on its way to the caller already, so it raises, and has what the store holds."""
    now_ms = [1_000_000]
    store = semel.open_store("memory://", clock=lambda: now_ms[0])
    policy = semel.Policy(guarantee="at-least-once")

    def overtaken(op: semel.BlockOperation[object]) -> None:
        assert not op.replayed
        op.result = "its own"
        now_ms[0] += 31_000
        with semel.operation("a", scope="operation", store=store, policy=policy) as successor:
            assert (successor.replayed, successor.attempt) == (False, 2)
            successor.result = "the successor's"

    with pytest.raises(semel.Superseded), semel.operation("a", scope="operation", store=store, policy=policy) as op:
        overtaken(op)
    assert op.result == "the successor's"


def test_nested_operations_never_mix(store: semel.Store) -> None:
    assert semel.current_operation() is None
    with semel.operation("outer", scope="operation", store=store) as outer:
        assert not outer.replayed
        assert semel.current_operation() is outer
        with semel.operation("inner", scope="operation", store=store) as inner:
            assert not inner.replayed
            assert semel.current_operation() is inner
            inner.result = outer.derive("psp"), inner.derive("psp")
        assert semel.current_operation() is outer
        outer.result = "outer"
        with pytest.raises(KeyError), semel.operation("broken", scope="operation", store=store):
            raise KeyError
        assert semel.current_operation() is outer
    assert semel.current_operation() is None
    with semel.operation("inner", scope="operation", store=store) as inner:
        assert inner.replayed
        assert inner.result == (outer.derive("psp"), inner.derive("psp"))


def test_concurrent_tasks_see_their_own_operation() -> None:
    store = semel.open_async_store("memory://")

    async def pay(key: str) -> None:
        async with semel.operation(key, scope="operation", store=store) as op:
            assert not op.replayed
            for _ in range(5):
                await asyncio.sleep(0)
                current = semel.current_operation()
                assert current is op
                assert current.key.name == key

    async def main() -> None:
        await asyncio.gather(*(pay(f"{number}") for number in range(50)))

    asyncio.run(main())


def test_a_whole_key_may_be_given(store: semel.Store) -> None:
    key = semel.Key("ann", "refunds", "7")
    with semel.operation(key, store=store) as op:
        assert not op.replayed
        assert (op.key, op.tenant) == (key, "ann")
        claimed = store.claim(key, "x", owner="o", lease_ms=1, retention_ms=1, takeover=False)
        assert not isinstance(claimed, Acquired)
