"""What may be given to functions, blocks, flows and transactions: nothing that is misspelt is ignored."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from starlette.applications import Starlette

import semel
from semel import Key, transaction
from semel.fastapi import protect as protect_starlette
from semel.flask import Idempotency
from semel.flow import AsyncFlow, Flow, keyed
from semel.litestar import IdempotencyPlugin
from semel.quart import protect as protect_quart
from semel.transaction import within

STORE = "memory://"
TYPES: dict[str, Any] = {"input": str, "returns": str}
MISSPELT: dict[str, Any] = {"final_error": [ValueError]}


def work(*_: object) -> None:
    raise AssertionError("nothing may run")


async def awork(*_: object) -> None:
    raise AssertionError("nothing may run")


def database() -> sqlite3.Connection:
    return sqlite3.connect(":memory:")


TAKERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "idempotent": lambda options: semel.idempotent(store=STORE, key="x", **options),
    "run": lambda options: semel.run("k", work, store=STORE, **options),
    "arun": lambda options: asyncio.run(semel.arun("k", awork, store=STORE, **options)),
    "operation": lambda options: semel.operation("k", scope="s", store=STORE, **options),
    "Flow": lambda options: Flow("f", [keyed("first", work)], store=STORE, **TYPES, **options),
    "AsyncFlow": lambda options: AsyncFlow(
        "f", [keyed("first", awork)], store=STORE, input=str, returns=str, **options
    ),
    "operation in a transaction": lambda options: within(database()).operation("k", scope="s", **options),
    "run in a transaction": lambda options: transaction.run(lambda: nullcontext(database()), "k", work, **options),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_a_misspelt_option_is_refused_with_the_nearest_one(taker: str) -> None:
    name = taker.partition(" ")[0]
    with pytest.raises(TypeError, match=rf"^{name}\(\) has no option final_error=: did you mean final_errors=\?$"):
        TAKERS[taker](MISSPELT)


@pytest.mark.parametrize("taker", TAKERS)
def test_an_unknown_option_is_refused_with_those_that_there_are(taker: str) -> None:
    with pytest.raises(TypeError, match=r"has no option zzz=: it takes .*final_errors, "):
        TAKERS[taker]({"zzz": 1})


PROTECTORS: dict[str, Callable[[dict[str, Any]], object]] = {
    "protect": lambda options: protect_starlette(Starlette(), store=STORE, **options),
    "IdempotencyPlugin": lambda options: IdempotencyPlugin(store=STORE, **options),
    "Idempotency": lambda options: Idempotency(store=STORE, **options),
    "protect for Quart": lambda options: protect_quart(_quart(), store=STORE, **options),
}


def _quart() -> Any:
    from quart import Quart

    return Quart("app")


@pytest.mark.parametrize("protector", PROTECTORS)
def test_what_protects_an_application_refuses_a_misspelt_option_at_once(protector: str) -> None:
    with pytest.raises(TypeError, match=r"has no option identity=: did you mean identify=\?$"):
        PROTECTORS[protector]({"identity": str})


@pytest.mark.parametrize(
    "make", [lambda: semel.operation("o1", store=STORE), lambda: within(database()).operation("o1")]
)
def test_a_block_needs_a_scope(make: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match=r"operation\('o1'\) needs a scope: .* scope=\"charge\""):
        make()


@pytest.mark.parametrize("given", [{"scope": "s"}, {"tenant": "t"}])
def test_a_whole_key_has_its_scope_and_tenant(given: dict[str, Any]) -> None:
    key = Key("", "s", "k")
    for take in (
        lambda: semel.operation(key, store=STORE, **given),
        lambda: within(database()).operation(key, **given),
        lambda: semel.run(key, work, store=STORE, **given),
    ):
        with pytest.raises(TypeError, match="leave tenant= and scope= out"):
            take()


def test_the_scope_of_a_single_call_in_a_transaction_is_the_name_of_its_work(tmp_path: Any) -> None:
    path = str(tmp_path / "a.db")
    semel.open_store(f"sqlite:///{path}").migrate()  # type: ignore[attr-defined]
    began = lambda: sqlite3.connect(path)  # noqa: E731

    def charge(connection: object) -> str:
        return "charged"

    def ship(connection: object) -> str:
        return "shipped"

    assert [transaction.run(began, "o1", each) for each in (charge, ship, charge)] == ["charged", "shipped", "charged"]
    with pytest.raises(TypeError, match="has no name of its own: give scope="):
        transaction.run(began, "o1", lambda connection: "anything")
    assert transaction.run(began, "o1", lambda connection: "else", scope="else") == "else"
