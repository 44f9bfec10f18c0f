"""What `semel doctor` and `semel stats` say of an outbox: dead letters, old messages, and whether a relay runs."""

from __future__ import annotations

from collections.abc import Sequence

from semel.cli.messages import PAGE, count_messages, is_held
from semel.cli.output import duration
from semel.core.outbox import CountMessages, ListMessages, MessageState, OutboxCounts, OutboxEntry, OutboxFilter
from semel.errors import StoreError
from semel.store import Finding, Outboxed, Store

OLD_MS = 5 * 60_000
UNTOUCHED_MS = 60_000
"""A relay takes a message that may be tried within a second or so."""


def count_backlog(store: Store) -> OutboxCounts | None:
    """What is in the outbox; None if the store has none."""
    return store.outbox(CountMessages()) if isinstance(store, Outboxed) else None


def examine_outbox(store: Store) -> Sequence[Finding]:
    """Findings about messages, if there are any messages that wait or are dead."""
    if not isinstance(store, Outboxed):
        return []
    try:
        counts = store.outbox(CountMessages())
        page = store.outbox(ListMessages(OutboxFilter(state=MessageState.WAITING), PAGE))
    except StoreError:  # among the findings already
        return []
    findings: list[Finding] = []
    if counts.dead:
        findings.append(
            Finding(
                "dead letters",
                "warning",
                f"{count_messages(counts.dead)} could not be published and were given up",
                "semel outbox list --state dead says why; mend that, then semel outbox redrive (or discard)",
            )
        )
    if counts.waiting:
        findings.append(_find_backlog(counts, page.entries, page.now_ms))
    return findings


def _find_backlog(counts: OutboxCounts, first: Sequence[OutboxEntry], now_ms: int) -> Finding:
    oldest_ms = counts.oldest_ms or 0
    waiting = f"{count_messages(counts.waiting)} to be published, the oldest for {duration(oldest_ms)}"
    if is_untouched(first, now_ms):
        fix = "run semel relay STORE --to URL, or semel.outbox.Relay in the service"
        return Finding("messages", "warning", f"{waiting}; no relay seems to run", fix)
    if oldest_ms > OLD_MS:
        errors = [entry.error for entry in first if entry.error]
        why = f"; the first error is: {errors[0]}" if errors else ""
        fix = "look at the relay's log: is the broker away? Several relays may work at once"
        return Finding("messages", "warning", f"{waiting}{why}", fix)
    return Finding("messages", "ok", waiting)


def is_untouched(first: Sequence[OutboxEntry], now_ms: int) -> bool:
    """Whether no relay holds any of these messages, and one could have been taken for a while."""
    return not any(is_held(entry, now_ms) for entry in first) and any(
        now_ms - max(entry.available_ms, entry.lease_until_ms) > UNTOUCHED_MS for entry in first
    )
