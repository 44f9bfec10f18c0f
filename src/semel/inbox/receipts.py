"""The leased block around the handling of one message, for effects that are not in your database."""

from __future__ import annotations

from typing import Any, cast

from semel.core.records import Key
from semel.errors import Misuse
from semel.runtime.blocks import Block
from semel.runtime.operation import BlockOperation
from semel.runtime.options import CallSettings
from semel.store import AsyncStore, Store


class LeasedReceipt(BlockOperation[None]):
    """The message that is being handled: `if receipt.duplicate: return`, then the work.

    `derive("name")` gives a stable key for a call further down, `attempt` grows with every take-over, `lost` says that
    another consumer took the message over, and `nothing_done()` gives the message back.
    """

    __slots__ = ()

    @property
    def duplicate(self) -> bool:
        """Whether the message was handled before: then its work must not run again."""
        return self.replayed

    def check_looked(self) -> None:
        if not self._looked:
            raise Misuse(
                "the block was left without looking at receipt.duplicate, so a redelivery runs its work again. "
                "Write `if receipt.duplicate: return` first in the block."
            )


class ReceiveBlock(Block[None]):
    """One message under a lease, to be entered once: `with` an `Inbox`, `async with` an `AsyncInbox`.

    Entering claims the message, or raises `InProgress`, `OutcomeUnknown`, `KeyReused` or a `StoreError`. The lease is
    renewed while the block runs. Leaving records that the message was handled, and only then goes on.
    """

    made_by = "inbox.receive(…)"
    operation_type = LeasedReceipt

    def __init__(
        self,
        key: Key,
        fingerprint: object,
        store: Store | AsyncStore | str,
        settings: CallSettings[None],
        reconcile: Any = None,
    ) -> None:
        super().__init__(key, fingerprint, store, settings, reconcile)

    def __enter__(self) -> LeasedReceipt:
        return cast(LeasedReceipt, super().__enter__())

    async def __aenter__(self) -> LeasedReceipt:
        return cast(LeasedReceipt, await super().__aenter__())
