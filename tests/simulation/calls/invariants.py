"""What must hold in every history of callers, by name, and what every run must have reached."""

from __future__ import annotations

INVARIANTS: dict[str, tuple[str, str]] = {
    "one-effect-per-intent": (
        "plan",
        "an intent takes effect once, if its max_age and the time on the way are within the server's retention",
    ),
    "one-answer-per-intent": ("plan", "all programs that ask for an intent get the same answer, byte for byte"),
    "one-key-per-intent": ("journal", "an intent has one key, over all attempts, processes and crashes"),
    "one-key-per-call": (
        "plan",
        "a call that finds its intent forgotten while it runs does not begin it anew under another key",
    ),
    "one-request-per-key": ("plan", "every attempt with a key sends the same headers and the same body"),
    "nothing-leaves-before-it-is-stored": ("plan", "no request is sent whose key and body are not in the journal"),
    "every-attempt-is-granted": ("plan", "each attempt begins after the journal said to this sender that it may"),
    "one-sender-at-a-time": ("journal", "no intent is granted while another sender holds it"),
    "only-the-sender-speaks": ("journal", "only who was granted an intent last renews it, repeats it or leaves it"),
    "what-is-answered-is-not-sent": ("journal", "no attempt begins for an intent that has its answer"),
    "what-is-in-doubt-is-not-sent": ("journal", "no attempt begins for an intent that is in doubt"),
    "what-is-too-old-is-not-sent": ("journal", "no attempt begins when the intent is older than its shortest max_age"),
    "another-request-is-refused": ("journal", "another request under the name of an intent is never sent"),
    "no-open-intent-is-lost": ("journal", "only people end an intent that is not answered, and not while it is sent"),
    "the-first-answer-stays": ("journal", "an answer that is kept is never replaced"),
    "what-is-kept-is-the-answer": (
        "table",
        "a journal keeps only what the service answered for the operation: no refusal before it, nothing of a proxy",
    ),
    "what-is-told-is-the-answer": ("table", "what a program is told to be the answer is the operation's"),
    "what-is-told-is-kept": ("plan", "the answer that a program got is in the journal, or the program is told so"),
    "a-repeat-has-a-reason": ("table", "nothing is sent again after an answer that says how it ended, or not to"),
    "a-repeat-waits": ("table", "a repeat waits as long as the server asked for, up to the limit"),
    "no-more-attempts-than-allowed": ("plan", "a call sends no more requests than its settings allow"),
    "a-refusal-says-why": ("plan", "drifted, other key, too old, doubtful, busy: each only when it is so"),
    "a-doubt-has-a-cause": ("table", "an intent is in doubt only if the server said that it cannot tell"),
    "a-journal-error-means-nothing-was-sent": (
        "plan",
        "an error of the journal reaches the program only if this call has sent nothing",
    ),
    "every-call-ends": ("plan", "each call in a process that lives ends, and within its deadline and one time-out"),
    "every-intent-settles": (
        "plan",
        "when the faults are over, asking again gets the answer, or a refusal that lasts and says why",
    ),
    "calm-is-perfect": ("all", "without faults an intent is sent for one effect, and nobody is in doubt"),
    "no-unexpected-exception": ("all", "neither servers nor clients raise anything else"),
    "no-hang": ("all", "the history ends"),
}

JOURNAL = "crash-before crash-after pause-before pause-after unavailable reply-lost slow"
SENT = """crash-before crash-after crash-answered pause-before unreached lost late reply-lost duplicated repeated
slow-request slow-reply gateway throttled unauthorized server-error moved outage server-crash"""
ENDS = """answered moved not_kept stored_failure server_error in_progress later gateway unauthorized unreadable unknown
unreached lost"""
HAPPENED = """
step close; step repeat; step leave_open; step doubt; taken over; asked again after a crash
waited for another sender; carried twice; answer to nobody; network away
process crash; process pause; call cancelled; purged; forgotten; journal clock; store clock; store purge
told journal; told replayed; told fresh; told unkept; told unanswered; told journal error
refused drifted; refused other_key; refused too_old; refused doubtful; refused busy
doubled beyond retention; sent twice and done once
"""
MUST_REACH = frozenset(
    {
        *(f"{call} {fault}" for call in ("open", "close") for fault in JOURNAL.split()),
        *(f"send {fault}" for fault in SENT.split()),
        *(f"attempt {end}" for end in ENDS.split()),
        *(event for line in HAPPENED.split("\n") for event in line.split("; ") if event),
    }
)
