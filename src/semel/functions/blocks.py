"""`semel.operation`: a block whose work takes effect once for each key.

with semel.operation(key, scope="charge", store=store) as op:
    if op.replayed:
        return op.result
    op.result = charge(…)
"""

from __future__ import annotations

from typing import Any, TypeVar, Unpack, overload

from semel.core.records import Key
from semel.runtime.arguments import check_options
from semel.runtime.blocks import Block
from semel.runtime.options import CallSettings, Options, block_key
from semel.store import AsyncStore, Store

R = TypeVar("R")


@overload
def operation(
    key: str | Key,
    *,
    store: Store | AsyncStore | str,
    returns: type[R],
    scope: str = ...,
    tenant: str = ...,
    fingerprint: object = ...,
    **options: Unpack[Options],
) -> Block[R]: ...
@overload
def operation(
    key: str | Key,
    *,
    store: Store | AsyncStore | str,
    scope: str = ...,
    tenant: str = ...,
    fingerprint: object = ...,
    **options: Unpack[Options],
) -> Block[object]: ...
def operation(
    key: str | Key,
    *,
    store: Store | AsyncStore | str,
    returns: Any = object,
    scope: str | None = None,
    tenant: str = "",
    fingerprint: object = None,
    **options: Unpack[Options],
) -> Block[Any]:
    """A block whose work takes effect once for each key: `with` a store, `async with` an async store or any URL.

    ```python
    import semel

    store = semel.open_store("sqlite:///semel.db")

    def pay(order: str, amount: int) -> object:
        with semel.operation(order, scope="pay", fingerprint=amount, store=store) as op:
            if op.replayed:
                return op.result
            op.result = {"paid": amount}
        return op.result

    assert pay("order-1", 10) == pay("order-1", 10)
    ```

    `scope` says what is done: it separates blocks that are given the same keys. `fingerprint` is any data that
    identifies the call: a repeat with another one is refused. `returns` is the type of `op.result` where that is more
    than plain data. Leaving the block without checking `op.replayed` raises `Misuse`, even on the first call.
    """
    check_options(options, Options, operation)
    return Block(block_key(key, tenant, scope), fingerprint, store, CallSettings[Any].of(returns, options))
