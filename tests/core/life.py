"""Short names for the moments in the life of one key. All times are in milliseconds; the claim happens at 0."""

from msgspec.structs import replace

from semel.core.effects import Claim
from semel.core.records import Key, Lease, Record, Result, State

KEY = Key("tenant", "POST /payments", "key-1")
SAME, OTHER = "1.same", "1.other"
LEASE_MS, RETENTION_MS = 30, 1_000
ANSWER, REFUSAL = Result("text", b"paid"), Result("text", b"refused", ok=False)

LIVE = Record(KEY, SAME, State.IN_PROGRESS, "first", 1, 0, LEASE_MS, RETENTION_MS)
"""Claimed at 0 by `first`: live until 30, unknown until 1000."""
SUCCEEDED = replace(
    LIVE, state=State.SUCCEEDED, lease_until_ms=10, expires_ms=10 + RETENTION_MS, completed_ms=10, result=ANSWER
)
"""Completed at 10: answers until 1010."""
FAILED = replace(SUCCEEDED, state=State.FAILED, result=REFUSAL)
SECOND = replace(LIVE, owner="second", attempt=2, lease_until_ms=70, expires_ms=40 + RETENTION_MS)
"""Taken over at 40 by `second`."""


def claim_by(owner: str, fingerprint: str = SAME, *, takeover: bool = False) -> Claim:
    return Claim(KEY, fingerprint, owner, LEASE_MS, RETENTION_MS, takeover)


def lease_of(owner: str, attempt: int = 1) -> Lease:
    return Lease(KEY, owner, attempt, LEASE_MS)
