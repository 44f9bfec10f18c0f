"""Faults in the model, its tables and values, and the memory store on them. Parity compares the model with itself, so
these are for the example tests to find.
"""

from mutants.fault import Fault

MODEL, RECORDS, TABLES, MEMORY = "core/model.py", "core/records.py", "core/tables.py", "stores/memory.py"

FAULTS = [
    Fault(
        "a repeated claim of another request is granted",
        MODEL,
        "        and old.fingerprint == call.fingerprint\n",
        "",
    ),
    Fault("a repeated claim is granted past retention", MODEL, "        and not old.past_retention(now_ms)\n", ""),
    Fault(
        "a mismatch is taken for the same request",
        MODEL,
        "same = old is not None and old.finger",
        "same = True or old.finger",
    ),
    Fault(
        "a repeated claim is a conflict with oneself",
        MODEL,
        "        and _holds(old, call.owner)\n",
        "        and False\n",
    ),
    Fault("the attempt never grows", MODEL, "attempt=old.attempt + 1, ", "attempt=old.attempt, "),
    Fault("the attempt grows by two", MODEL, "attempt=old.attempt + 1, ", "attempt=old.attempt + 2, "),
    Fault("a take-over keeps the owner", MODEL, "old, owner=call.owner, attempt", "old, attempt"),
    Fault("a take-over does not restart the retention", MODEL, ", expires_ms=expires_ms\n", "\n"),
    Fault(
        "get shows what is past retention",
        MODEL,
        "old is None or old.past_retention(now_ms) else old",
        "old is None else old",
    ),
    Fault(
        "renew does not ask for the owner",
        MODEL,
        "not _holds(old, call.lease.owner):\n        return old, None",
        "not old.in_progress():\n        return old, None",
    ),
    Fault(
        "renew revives a result",
        MODEL,
        "not _holds(old, call.lease.owner):\n        return old, None",
        "old.owner != call.lease.owner:\n        return old, None",
    ),
    Fault(
        "renew adds to the old end",
        MODEL,
        "lease_until_ms=now_ms + call.lease_ms)",
        "lease_until_ms=old.lease_until_ms + call.lease_ms)",
    ),
    Fault(
        "a lapsed owner may not renew",
        MODEL,
        "    new = replace(old, lease_until_ms",
        "    if old.lapsed(now_ms):\n        return old, None\n    new = replace(old, lease_until_ms",
    ),
    Fault(
        "complete does not ask for the owner",
        MODEL,
        "if old is None or old.owner != call.lease.owner:",
        "if old is None:",
    ),
    Fault(
        "a lapsed owner may not complete",
        MODEL,
        "if old is None or old.owner != call.lease.owner:",
        "if old is None or old.owner != call.lease.owner or old.lapsed(now_ms):",
    ),
    Fault("the last result wins", MODEL, "    if not old.in_progress():\n        return old, True\n", ""),
    Fault(
        "a repeated complete is told no",
        MODEL,
        "    if not old.in_progress():\n        return old, True\n",
        "    if not old.in_progress():\n        return old, False\n",
    ),
    Fault(
        "release does not ask for the owner",
        MODEL,
        "not _holds(old, call.lease.owner):\n        return old, False",
        "not old.in_progress():\n        return old, False",
    ),
    Fault(
        "release removes a result",
        MODEL,
        "not _holds(old, call.lease.owner):\n        return old, False",
        "old.owner != call.lease.owner:\n        return old, False",
    ),
    Fault(
        "release forgets earlier attempts",
        MODEL,
        "    if old.attempt == 1:\n        return None, True\n",
        "    return None, True\n",
    ),
    Fault(
        "a released attempt stays with its owner",
        MODEL,
        "replace(old, owner=NOBODY, lease_until_ms=now_ms)",
        "replace(old, lease_until_ms=now_ms)",
    ),
    Fault(
        "a released attempt stays live",
        MODEL,
        "replace(old, owner=NOBODY, lease_until_ms=now_ms)",
        "replace(old, owner=NOBODY)",
    ),
    Fault("resolve ignores the attempt", MODEL, " or old.attempt != call.attempt or", " or"),
    Fault("resolve hits what came after", MODEL, " or old.owner != call.owner:", ":"),
    Fault(
        "resolve acts on a live lease",
        MODEL,
        "not old.lapsed(now_ms) or old.attempt",
        "not old.in_progress() or old.attempt",
    ),
    Fault("resolve replaces a result", MODEL, "not old.lapsed(now_ms) or old.attempt", "old.attempt"),
    Fault(
        "the late owner is not fenced off by resolve",
        MODEL,
        "replace(_finished(old, call.result, call.retention_ms, now_ms), owner=NOBODY)",
        "_finished(old, call.result, call.retention_ms, now_ms)",
    ),
    Fault(
        "complete does not restart the retention",
        MODEL,
        "expires_ms=now_ms + retention_ms,",
        "expires_ms=record.expires_ms,",
    ),
    Fault(
        "complete does not end the lease",
        MODEL,
        "        lease_until_ms=now_ms,\n",
        "        lease_until_ms=record.lease_until_ms,\n",
    ),
    Fault("complete has no time", MODEL, "        completed_ms=now_ms,\n", ""),
    Fault(
        "a failure is stored as a success", RECORDS, "State.SUCCEEDED if self.ok else State.FAILED", "State.SUCCEEDED"
    ),
    Fault(
        "a lease lapses a moment late",
        RECORDS,
        "now_ms >= self.lease_until_ms\n\n    def answers",
        "now_ms > self.lease_until_ms\n\n    def answers",
    ),
    Fault(
        "retention ends a moment late",
        RECORDS,
        "return now_ms >= self.expires_ms + self.refuse_ms and",
        "return now_ms > self.expires_ms + self.refuse_ms and",
    ),
    Fault(
        "a live lease expires",
        RECORDS,
        "now_ms >= self.expires_ms + self.refuse_ms and now_ms >= self.lease_until_ms",
        "now_ms >= self.expires_ms + self.refuse_ms",
    ),
    Fault(
        "a live lease is past retention a moment early",
        RECORDS,
        "self.refuse_ms and now_ms >= self.lease_until_ms",
        "self.refuse_ms and now_ms >= self.lease_until_ms - 1",
    ),
    Fault(
        "a mismatch takes over",
        TABLES,
        "(Ruling.TAKE_OVER, Ruling.MISMATCH)",
        "(Ruling.TAKE_OVER, Ruling.TAKE_OVER)",
    ),
    Fault(
        "a live lease is taken over",
        TABLES,
        "(Ruling.IN_FLIGHT, Ruling.MISMATCH)",
        "(Ruling.TAKE_OVER, Ruling.MISMATCH)",
    ),
    Fault(
        "an unknown outcome is run again",
        TABLES,
        "(Ruling.UNKNOWN, Ruling.MISMATCH)",
        "(Ruling.GRANT, Ruling.MISMATCH)",
    ),
    Fault("a result is run again", TABLES, "(Ruling.REPLAY, Ruling.MISMATCH)", "(Ruling.GRANT, Ruling.MISMATCH)"),
    Fault("text of a subclass stays one", RECORDS, "    return str.__str__(value)\n", "    return value\n"),
    Fault("bytes of a subclass stay one", RECORDS, "return memoryview(payload).tobytes()", "return payload"),
    Fault("a refused key answers on", RECORDS, "now_ms < self.expires_ms", "now_ms < self.expires_ms + self.refuse_ms"),
    Fault("a refusal is forgotten", MODEL, "now_ms, call.refuse_ms), True", "now_ms), True"),
    Fault("purge ignores its limit", MEMORY, "if forgotten), limit)", "if forgotten), None)"),
    Fault(
        "purge deletes what is owed",
        MODEL,
        "    if old.past_retention(now_ms):\n        return None, True\n    if",
        "    if old.lapsed(now_ms) or old.past_retention(now_ms):\n        return None, True\n    if",
    ),
    Fault(
        "purge leaves the results of refused keys", MODEL, "replace(old, result=None, expires", "replace(old, expires"
    ),
    Fault(
        "a tombstone is gone too early",
        MODEL,
        "expires_ms=old.expires_ms + old.refuse_ms, refuse_ms=0",
        "refuse_ms=0",
    ),
    Fault("nobody is ever woken", MEMORY, "            self._wake(key)\n", "            pass\n"),
    Fault("nobody is woken when a key is freed", MEMORY, "(new is None or new.owner", "new is not None and (new.owner"),
    Fault("nobody is woken by a result", MEMORY, " or new.state is not old.state", ""),
    Fault("counts include what is past retention", MEMORY, " if not record.past_retention(now_ms)\n", "\n"),
    Fault("a page repeats its last record", MEMORY, "> sort_key(after)", ">= sort_key(after)"),
    Fault(
        "scan shows lapsed records as in progress",
        "store.py",
        '"unknown" if record.lapsed(now_ms) else record',
        "record",
    ),
    Fault(
        "remove ignores the lease",
        "core/model.py",
        "return (None, True) if now_ms >= old.lease_until_ms else (old, False)",
        "return (None, True)",
    ),
    Fault(
        "remove acts a moment late",
        "core/model.py",
        "if now_ms >= old.lease_until_ms else (old, False)",
        "if now_ms > old.lease_until_ms else (old, False)",
    ),
    Fault(
        "expire ends an unknown outcome",
        "core/model.py",
        "return (old, False) if old.in_progress() else (replace",
        "return (replace(old, expires_ms=now_ms), True) if old.in_progress() else (replace",
    ),
    Fault(
        "expire prolongs",
        "core/model.py",
        "expires_ms=min(old.expires_ms, now_ms)",
        "expires_ms=max(old.expires_ms, now_ms)",
    ),
    Fault(
        "memory goes by the wall clock",
        "stores/memory.py",
        "import steady_clock",
        "import wall_ms\n\n\ndef steady_clock() -> Clock:\n    return wall_ms\n\n",
    ),
]
