"""What must hold in every history, by name, and what every run must have seen before its silence means anything."""

from __future__ import annotations

INVARIANTS: dict[str, tuple[str, str]] = {
    "entered-at-most-once": (
        "G1",
        "under at-most-once the work behind a key is entered once, unless it declared that nothing was done",
    ),
    "an-unknown-outcome-blocks": ("G1", "under at-most-once a lapsed key is granted to nobody while it is owed"),
    "a-release-means-nothing-done": (
        "G1",
        "a key is given back only by those who never began, or who declared that nothing was done",
    ),
    "a-success-names-the-one-effect": (
        "G1",
        "a success names an effect that took place, and under at-most-once there is no other one",
    ),
    "a-live-lease-is-respected": ("G3", "nobody is granted a key whose lease is live by the store's clock"),
    "attempts-grow": ("G3", "every take-over has a greater attempt number, and a key that is free begins with 1"),
    "only-the-holder-completes": ("G3", "a result is stored only for the newest holder of the key"),
    "only-the-holder-releases": ("G3", "a key is given back only by its newest holder, and never when it has a result"),
    "only-the-holder-renews": ("G3", "a lease is extended only for the newest holder of the key"),
    "the-holder-is-not-refused": (
        "G3",
        "ownership ends by take-over, not by time: the store never says no to the holder",
    ),
    "the-superseded-are-silent": ("G3", "who was told that the key is in other hands never sends its own answer"),
    "a-result-is-final": (
        "G4",
        "a key that has a result is granted to nobody and gets no other result while it is owed",
    ),
    "a-replay-is-the-record": ("G4", "a replay is the stored answer: status, headers in order with repeats, body"),
    "stored-as-answered": ("G4", "what is stored is what the application answered, or a stable problem if it raised"),
    "only-work-has-results": ("G4", "a result is stored only by an owner that entered the work"),
    "an-answer-follows-its-record": (
        "G5",
        "an answer without the mark leaves after the store acknowledged its result, or its release",
    ),
    "a-mark-has-a-cause": ("G5", "an answer is marked as not stored only if a store did not answer"),
    "a-result-is-tried-again": (
        "G5",
        "an answer is marked as not stored only after more than one try, whatever the store failed with",
    ),
    "no-answer-of-another-tenant": ("G6", "no tenant ever reads another tenant's answer"),
    "another-request-is-refused": ("G6", "no request ever reads the answer of another request under the same key"),
    "work-belongs-to-its-key": ("G6", "the work runs under the key of its own caller, endpoint and name"),
    "no-work-without-a-grant": (
        "G7",
        "nothing runs unless the store's grant has reached the process, or fail-open was chosen",
    ),
    "unprotected-work-is-marked": ("G7", "what ran because the store could not decide is marked as not stored"),
    "the-answer-is-what-the-claim-found": (
        "G8",
        "in progress, unknown, mismatch, expired, replay: each only when the last claim found it",
    ),
    "every-key-settles": (
        "G8",
        "when all is quiet, no key is in progress: it replays, runs, or says that its outcome is unknown",
    ),
    "what-never-ran-is-given-back": (
        "G8",
        "when all is quiet, no key is held by an owner that never ran, unless its process died",
    ),
    "renewal-stops": ("G8", "nobody renews a lease after asking to end it"),
    "everybody-is-answered": ("G9", "each request in a process that lives is answered, and within a bound"),
    "no-hang": ("G9", "the history ends"),
    "retention-ends": ("G9", "a key past retention is free again"),
    "what-is-owed-is-kept": ("G10", "neither purge nor anything else forgets a record that is owed"),
    "unreadable-is-not-absent": ("G10", "a record that cannot be read is reported, and nothing runs"),
    "calm-is-perfect": ("all", "without faults: no 503, no unknown outcome, no mark, no take-over"),
    "no-unexpected-exception": ("all", "the front raises only what the application raised"),
}

KEYS = """claimed taken_over replayed in_flight mismatched unknown expired unreadable completed released left
superseded not_stored store_failed"""
TOLD = """answer replay in-progress outcome-unknown key-reused key-expired result-not-kept internal-error not-executed
record-unreadable store-unavailable accepted marked"""
MESSAGES = "refused lost reply-lost late duplicated slow-request slow-reply outage crash"
HAPPENED = """
claim partial; renew reply-lost; renew lost; release reply-lost; store away; batch; batch failed
reply too late; claim in doubt; claim held; claim misconfigured; complete misconfigured
reply to nobody; answer to nobody; connection refused; caller disconnects; caller cancels
process crash; process pause; process shutdown; process clock; store clock; purged; resolved
crash before effect; crash after effect; crash after complete; take-over after crash; take-over after pause
late holder completed; late holder renewed; zombie refused; claim repeated; complete repeated; claim given back
unprotected work; tombstone kept; second generation; monitor answered; waiter replayed
probe replayed; probe ran; probe unknown
"""
MUST_REACH = frozenset(
    {
        *KEYS.split(),
        *(f"told {kind}" for kind in TOLD.split()),
        *(f"{call} {fault}" for call in ("claim", "complete") for fault in MESSAGES.split()),
        *(event for line in HAPPENED.split("\n") for event in line.split("; ") if event),
    }
)
"""Events of keys, answers to callers, faults on the way to the store, and what the protocol is for."""
