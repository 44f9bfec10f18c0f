"""What must hold in every history with transactions, by name, and what every run must have reached."""

from __future__ import annotations

from simulation.transactions.scenario import STATEMENT_FAULTS

INVARIANTS: dict[str, tuple[str, str]] = {
    "one-run-per-key": ("G2", "at most one run of a key commits within its retention"),
    "a-run-is-whole": ("G2", "a success commits all rows of exactly one run, and a failure none"),
    "rows-and-record-are-one": ("G2", "no row is committed without the finished record of its run"),
    "settled-when-the-answer-is-whole": ("G2", "nothing commits before the handler has given its whole answer"),
    "given-up-is-not-stored": (
        "G2",
        "a run that the database gave up (lost connection, deadlock) is not stored as a failure",
    ),
    "only-work-has-results": ("G2", "a record is committed only for a run that did not declare that nothing was done"),
    "nothing-done-is-true": ("G2", "a run whose caller was told that nothing was done never commits"),
    "nothing-is-unknown": ("G2", "nobody is told that an outcome is unknown, or that an answer was not stored"),
    "one-task-for-one-connection": (
        "G2",
        "a connection is used by the task that borrowed it and by the handler that it runs, one at a time, and ended "
        "only by the former",
    ),
    "a-handler-keeps-its-connection": (
        "G2",
        "no transaction is ended, and no connection goes back to the pool, while its handler works on it",
    ),
    "a-task-ends-what-it-began": ("G2", "no task ends with a connection of the pool"),
    "nothing-stays-open": ("G2", "when all is quiet, no transaction is open, and every pool is full"),
    "a-success-names-the-committed-run": ("G4", "a success names a run whose rows and record are committed already"),
    "a-replay-is-the-record": ("G4", "a replay is the committed answer: status, headers in order with repeats, body"),
    "stored-as-answered": ("G4", "what is stored is what the application answered, or a stable problem if it raised"),
    "an-answer-follows-its-record": ("G5", "a failure leaves after its record was committed"),
    "an-answer-holds-no-connection": ("G5", "an answer leaves when its request has handed its connection back"),
    "no-answer-of-another-tenant": ("G6", "no tenant ever reads another tenant's answer"),
    "another-request-is-refused": ("G6", "no request ever reads the answer of another request under the same key"),
    "work-belongs-to-its-key": ("G6", "the work runs under the key of its own caller, endpoint and name"),
    "accepted-means-begun": ("G8", "no request is accepted unless its key is claimed"),
    "a-monitor-tells-the-truth": (
        "G8",
        "no monitor says that nothing is known of an operation that was running, or committed, all the time",
    ),
    "every-key-settles": ("G8", "when all is quiet, every key runs or replays, and the repeat gets the same answer"),
    "twins-wait-without-a-connection": ("G9", "no repeat waits in the database for the first request"),
    "everybody-is-answered": ("G9", "each request in a process that lives is answered, and within a bound"),
    "no-hang": ("G9", "the history ends"),
    "calm-is-perfect": ("all", "without faults: no 503, and each outcome is what the application made of it"),
    "no-unexpected-exception": ("all", "the front raises only what the application raised"),
}

KEYS = "claimed replayed in_flight mismatched completed released superseded expired"
TOLD = """answer replay in-progress key-reused key-expired result-not-kept internal-error not-executed interrupted
store-unavailable accepted"""
WORKS = """created streamed large empty redirect refused conflict failed raised raised-early raised-midway
raised-after-answer raised-late not-executed nothing-done unknown swallowed too-long unfinished"""
HAPPENED = """
process crash; process pause; process shutdown; process clock; process cancel; work cancelled
caller disconnects; caller cancels; answer to nobody; connection refused; reply to nobody
database away; session terminated; purged; waits in the database; waiter replayed
committed unheard; run rolled back; second run; second generation; failure remembered; commit refused
claim lost; insist lost; complete lost; read lost; write lost; rollback lost; connect refused; claim reply-lost
write deadlock; write reply-lost; complete reply-lost; rollback reply-lost
monitor answered; monitor accepted; probe replayed; probe ran
"""
MUST_REACH = frozenset(
    {
        *KEYS.split(),
        *(f"told {kind}" for kind in TOLD.split()),
        *(f"work {outcome}" for outcome in WORKS.split()),
        *(f"commit {fault}" for fault in STATEMENT_FAULTS),
        *(event for line in HAPPENED.split("\n") for event in line.split("; ") if event),
    }
)
