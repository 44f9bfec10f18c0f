"""What an operator does: look at a record, ask the bank about an unknown outcome, and resolve the key."""

from __future__ import annotations

import asyncio

import msgspec

from semel.codecs import responses
from semel.core.http import Response
from semel.core.policy import Policy
from semel.core.records import Key
from semel.demo.bank import Bank
from semel.demo.messages import answer, refusal
from semel.demo.payments import PROTECTED, receipt
from semel.demo.timeline import Timeline
from semel.store import AsyncResolvable, AsyncStore


class Reconcile(msgspec.Struct, forbid_unknown_fields=True):
    key: str


class Operator:
    def __init__(self, store: AsyncStore, policy: Policy, bank: Bank, timeline: Timeline) -> None:
        self._store = store
        self._retention_ms = policy.retention_ms
        self._bank = bank
        self._timeline = timeline

    async def show(self, account: str, name: str) -> Response:
        """What the store keeps for a key of the account."""
        try:
            record = await self._store.get(Key(account, f"POST {PROTECTED}", name))
        except ValueError as error:
            return refusal(400, "The key cannot be read", f"{error}.")
        if record is None:
            return refusal(404, "There is no such record", "Unprotected payments have none.")
        shown = {
            "tenant": record.key.tenant,
            "scope": record.key.scope,
            "name": record.key.name,
            "state": record.state.value,
            "attempt": record.attempt,
            "fingerprint": record.fingerprint,
            "created_ms": record.created_ms,
            "lease_until_ms": record.lease_until_ms,
            "expires_ms": record.expires_ms,
        }
        if record.result is not None:
            shown["result"] = {"format": record.result.format, "bytes": len(record.result.payload)}
        return answer(200, shown)

    async def reconcile(self, account: str, body: bytes) -> Response:
        """The payment is in the ledger: its receipt is the answer from now on. It is not: the key is free again."""
        try:
            key = Key(account, f"POST {PROTECTED}", msgspec.json.decode(body, type=Reconcile).key)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            return refusal(400, "The key cannot be read", f'{error}. Send a body like {{"key": "order-1"}}.')
        record = await self._store.get(key)
        if record is None:
            return refusal(404, "There is no such key", "This account never used it, or its retention is over.")
        entry = await asyncio.to_thread(self._bank.find, account, key.name)
        result = responses.encode(receipt(entry), ok=True) if entry else None
        assert isinstance(self._store, AsyncResolvable)
        if not await self._store.resolve(record, result, retention_ms=self._retention_ms):
            return refusal(409, "There is nothing to resolve", "The key has a result already, or its lease is live.")
        self._timeline.add("resolved", account, key.name)
        return answer(200, {"key": key.name, "paid": entry is not None, "resolved": "answer" if entry else "released"})
