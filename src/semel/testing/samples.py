"""The times, fingerprints and results that the contract suite uses where any other would do."""

from __future__ import annotations

from semel.core.records import Result

LEASE_MS = 30_000
RETENTION_MS = 3_600_000
SAME, OTHER = "v1:same", "v1:other"
ANSWER, SECOND_ANSWER = Result("text", b"answer"), Result("text", b"second answer")
REFUSAL = Result("text", b"refused", ok=False)
PURGE_ALL = 10_000
