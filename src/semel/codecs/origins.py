"""Which record a sealed result belongs to, and remembering it from the claim to the completion."""

from __future__ import annotations

from collections import OrderedDict

from msgspec import Struct

from semel.core.records import NOBODY, Acquired, Claimed, Key, Lease, Record

REMEMBERED_MAX = 10_000
"""How many claims without an end are remembered. Older ones are read from the store."""


class Origin(Struct, frozen=True):
    """One life of a key, as the record itself tells it.

    The owner is random for every attempt, so it tells lives apart in which the same request came under the same key. An
    operator's result has no owner: there the moment of the first claim does that.
    """

    key: Key
    fingerprint: str
    attempt: int
    owner: str
    created_ms: int | None = None

    @classmethod
    def of(cls, record: Record) -> Origin:
        """For a result that is stored in this record."""
        created_ms = record.created_ms if record.owner == NOBODY else None
        return cls(record.key, record.fingerprint, record.attempt, record.owner, created_ms)

    @classmethod
    def resolved(cls, record: Record) -> Origin:
        """For an operator's result, which takes the record out of its owner's hands."""
        return cls(record.key, record.fingerprint, record.attempt, NOBODY, record.created_ms)

    @classmethod
    def claimed(cls, lease: Lease, there: Record | None) -> Origin:
        """For the result of an owner whose claim was made elsewhere, and whose record is this now.

        Without a record the store refuses the result, or has it already; otherwise the result cannot be opened.
        """
        return cls(lease.key, "", lease.attempt, lease.owner) if there is None else cls.of(there)

    @property
    def parts(self) -> tuple[str, ...]:
        created = "" if self.created_ms is None else str(self.created_ms)
        key = self.key
        return key.tenant, key.scope, key.name, self.fingerprint, str(self.attempt), self.owner, created


class Origins:
    """The origins of claims that were granted here. A lease does not have the fingerprint.

    Its attempt may be wrong, too: if the reply to a claim was lost, only the owner is known.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[Key, str], Origin] = OrderedDict()

    def remember(self, claimed: Claimed, fingerprint: str) -> None:
        if isinstance(claimed, Acquired):
            lease = claimed.lease
            self._known[lease.key, lease.owner] = Origin(lease.key, fingerprint, lease.attempt, lease.owner)
            if len(self._known) > REMEMBERED_MAX:
                self._known.popitem(last=False)

    def forget(self, key: Key, owner: str) -> None:
        self._known.pop((key, owner), None)

    def find(self, lease: Lease) -> Origin | None:
        return self._known.get((lease.key, lease.owner))
