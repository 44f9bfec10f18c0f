"""What must hold in every history of messages, by name, and what every run must have reached."""

from __future__ import annotations

INVARIANTS: dict[str, tuple[str, str]] = {
    "published-only-if-committed": ("outbox", "nothing is published unless the transaction that added it committed"),
    "one-content-per-id": ("outbox", "a message is published with the same id and content each time"),
    "published-in-order": (
        "outbox",
        "a message is first published after every message of its key that was committed before it was added",
    ),
    "the-head-goes-first": ("outbox", "no message is taken without the earlier waiting messages of its key"),
    "a-live-lease-is-respected": ("outbox", "no message is taken that another relay holds"),
    "a-failed-message-waits": ("outbox", "no message is taken before its next try is due"),
    "only-the-holder-settles": ("outbox", "what became of a message is said by the relay that holds it"),
    "published-means-confirmed": ("outbox", "a message counts as published after the broker confirmed it"),
    "an-outage-costs-no-attempt": (
        "outbox",
        "an attempt is counted only if the broker refused the message: not for a broker or a store that is away, nor "
        "for a relay that was killed",
    ),
    "a-dead-message-has-a-cause": (
        "outbox",
        "a message is given up when the broker refused it for good, or refused it as often as may be",
    ),
    "only-the-published-are-purged": ("outbox", "a purge deletes what was published and kept for long enough"),
    "only-the-holder-publishes": (
        "relay",
        "a relay starts to publish what it holds, while the time-out of the broker fits into its lease",
    ),
    "a-stop-starts-nothing": ("relay", "a relay that was asked to stop starts to publish nothing"),
    "a-stopped-relay-holds-nothing": ("relay", "a relay that stopped, and had its answers, holds no message"),
    "a-stop-ends": ("relay", "a relay that is asked to stop ends soon"),
    "a-relay-goes-on": ("relay", "a relay that was not asked to stop does not end"),
    "every-message-is-published": ("relay", "when all is quiet, every committed message is published or given up"),
    "one-effect-per-message": (
        "inbox",
        "a message takes effect once, however often it is delivered, unless the guarantee is at-least-once",
    ),
    "rows-and-record-are-one": ("inbox", "the rows of a handler that returned and the record of its message are one"),
    "acknowledged-means-recorded": (
        "inbox",
        "a delivery is acknowledged only if the record of its message is stored, and its handler has returned",
    ),
    "another-message-is-refused": ("inbox", "a message under the id of another one is never acknowledged"),
    "only-failures-are-counted": (
        "inbox",
        "no attempt is counted unless a handler ran and did not return, or was rolled back",
    ),
    "told-means-counted": ("inbox", "a verdict that counts an attempt has its count stored"),
    "a-dead-letter-has-a-cause": (
        "inbox",
        "a dead letter has a final error, used up exactly its attempts, has no id, has the id of another message, "
        "or has an unknown outcome",
    ),
    "nothing-is-unknown": ("inbox", "no outcome is unknown, unless the guarantee is at-most-once"),
    "every-message-takes-effect": ("inbox", "when all is quiet, every message took effect or is a dead letter"),
    "every-delivery-is-judged": ("inbox", "when all is quiet, nothing is without a verdict, and no transaction open"),
    "everything-settles": ("all", "the history comes to rest when its faults are over"),
    "no-hang": ("all", "the history ends"),
    "calm-is-perfect": ("all", "without faults every message is published once and delivered once"),
    "no-unexpected-exception": ("all", "neither relays nor consumers raise"),
    "one-task-for-one-connection": ("inbox", "a connection is used by the task that borrowed it, one at a time"),
    "a-task-ends-what-it-began": ("inbox", "no task ends with a connection of the pool"),
}

CALLS = "refused lost reply-lost late slow-request slow-reply outage crash"
PUBLISHED = "lost reply-lost late slow-reply outage crash fails error closed misconfigured"
JUDGED = """handled duplicate in_progress nothing_done uncommitted raised exhausted final unnamed reused
store_away"""
LEASED = {
    "at-most-once": "handled duplicate in_progress nothing_done unknown final reused store_away",
    "at-least-once": "handled duplicate in_progress nothing_done raised exhausted final reused store_away",
}
HAPPENED = """
message_published; message_failed; message_dead; relay_paused
process crash; process pause; process shutdown; process cancel
wait refused; purge refused; deliver duplicated; deliver foreign; deliver unnamed; verdict lost; verdict late
verdict outage; outbox away; broker away; late commit; rolled back; added again; purged; redriven; discarded
published again; a relay overtaken; settled by the dead; confirmation to nobody; verdict too late
delivered again without a verdict; dead letters delivered again; deliveries together; key blocked; stopped in the middle
commit reply-lost; commit lost; commit late; commit deadlock; commit crash; commit outage
"""
MUST_REACH = frozenset(
    {
        *(f"{call} {fault}" for call in ("take", "settle") for fault in CALLS.split()),
        *(f"publish {fault}" for fault in PUBLISHED.split()),
        *(f"judged {handling}" for handling in JUDGED.split()),
        *(f"{guarantee} {handling}" for guarantee, handlings in LEASED.items() for handling in handlings.split()),
        *(event for line in HAPPENED.split("\n") for event in line.split("; ") if event),
    }
)
