"""Faults of the plan of a call, of the journal and of the table, each of which the simulation must notice."""

from __future__ import annotations

from mutants.fault import Fault

PLAN, MODEL, TABLE = "core/callers.py", "core/journal_model.py", "core/retries.py"

FAULTS = [
    Fault(
        "each run of a program sends a key of its own",
        PLAN,
        "_sender(call, settings, began_ms, entry.key, entry.created_ms, owner, written)",
        "_sender(call, settings, began_ms, proposed, entry.created_ms, owner, written)",
    ),
    Fault(
        "a request leaves before its intent is stored",
        PLAN,
        "    last: CallAnswered | CallUnanswered | None = None\n",
        "    last: CallAnswered | CallUnanswered | None = None\n"
        "    early = _sender(call, settings, began_ms, proposed, 0, owner)\n"
        "    yield from do(SendRequest(early.headers, early.body, 1))\n",
    ),
    Fault(
        "an attempt begins without asking the journal",
        PLAN,
        "    return (yield from do(BeginAttempt(sender.intent, sender.owner, lease_ms)))\n",
        "    return True\n",
    ),
    Fault(
        "a sender that was overtaken goes on",
        PLAN,
        "        if not is_held:\n            #",
        "        if False:\n            #",
    ),
    Fault(
        "an intent that another sender holds is sent",
        PLAN,
        "case IntentGranted():",
        "case IntentGranted() | IntentHeld():",
    ),
    Fault(
        "a call that finds its intent forgotten makes a second key",
        PLAN,
        "                proposed = entry.key  #",
        "                proposed = yield from do(NewKey(settings.dialect.format, intent.id.name))  #",
    ),
    Fault(
        "a journal that fails later hides the answer",
        PLAN,
        "            if last is None:\n                raise\n",
        "            raise\n",
    ),
    Fault(
        "the answer is not kept",
        PLAN,
        "            yield from do(CloseIntent(sender.intent, sender.key, kept))\n",
        "            yield from do(LeaveIntent(sender.intent, sender.owner, str(kept.status)))\n",
    ),
    Fault(
        "nobody is told that the answer is not kept",
        PLAN,
        "            return _unkept(result, str(error))\n    elif",
        "            return result\n    elif",
    ),
    Fault("a doubt is not recorded", PLAN, "in_doubt=step is NextStep.DOUBT", "in_doubt=False"),
    Fault("every end without an answer is a doubt", PLAN, "in_doubt=step is NextStep.DOUBT", "in_doubt=True"),
    Fault("the attempts have no limit", PLAN, "if attempts >= backoff.attempts:", "if attempts >= 100:"),
    Fault("the server is not waited for", PLAN, "if asked else None", "if not asked else None"),
    Fault(
        "a key of the caller's own is sent under the name of another one",
        PLAN,
        "        if call.key and call.key != entry.key and",
        "        if False and",
    ),
    Fault(
        "a name has a new key with each sender",
        MODEL,
        "    granted = replace(\n        entry, owner",
        "    granted = replace(\n        entry, key=call.key, owner",
    ),
    Fault(
        "an intent is granted to a second sender",
        MODEL,
        "    elif entry.is_held(now_ms):\n        return book, IntentHeld",
        "    elif False:\n        return book, IntentHeld",
    ),
    Fault(
        "an intent that is answered is granted",
        MODEL,
        "    elif entry.state is IntentState.ANSWERED:\n",
        "    elif False:\n",
    ),
    Fault(
        "an intent in doubt is granted",
        MODEL,
        "entry.state is IntentState.DOUBTFUL or entry.is_too_old(now_ms)",
        "entry.is_too_old(now_ms)",
    ),
    Fault(
        "an intent that is too old is granted",
        MODEL,
        "entry.state is IntentState.DOUBTFUL or entry.is_too_old(now_ms)",
        "entry.state is IntentState.DOUBTFUL",
    ),
    Fault(
        "an attempt of an intent that is too old begins",
        MODEL,
        "entry is None or entry.is_too_old(now_ms)",
        "entry is None",
    ),
    Fault(
        "the age counts from the last attempt",
        MODEL,
        "        entry, owner=call.owner, lease",
        "        entry, created_ms=now_ms, owner=call.owner, lease",
    ),
    Fault("the longest max_age counts", MODEL, "max_age_ms=min(", "max_age_ms=max("),
    Fault(
        "requests are not compared",
        MODEL,
        "entry.request.digest != (digest := call.request.digest)",
        "(digest := call.request.digest) == ''",
    ),
    Fault("anybody renews, begins and leaves", MODEL, "entry.owner == owner != NOBODY", "owner != NOBODY"),
    Fault(
        "a later answer replaces the first",
        MODEL,
        " or entry.state is IntentState.ANSWERED:\n        return book, False",
        ":\n        return book, False",
    ),
    Fault("open intents are purged", MODEL, "        and entry.state is IntentState.ANSWERED\n", ""),
    Fault(
        "the answer of a proxy is kept",
        TABLE,
        "AttemptEnd.GATEWAY: NextStep.REPEAT",
        "AttemptEnd.GATEWAY: NextStep.CLOSE",
    ),
    Fault(
        "the refusal of a caller is kept",
        TABLE,
        "AttemptEnd.UNAUTHORIZED: NextStep.LEAVE_OPEN",
        "AttemptEnd.UNAUTHORIZED: NextStep.CLOSE",
    ),
    Fault(
        "a server error that is not stored is kept",
        TABLE,
        "AttemptEnd.SERVER_ERROR: NextStep.LEAVE_OPEN",
        "AttemptEnd.SERVER_ERROR: NextStep.CLOSE",
    ),
    Fault(
        "too many requests is an answer", TABLE, "AttemptEnd.LATER: NextStep.REPEAT", "AttemptEnd.LATER: NextStep.CLOSE"
    ),
    Fault(
        "an unknown outcome is tried again",
        TABLE,
        "AttemptEnd.UNKNOWN: NextStep.DOUBT",
        "AttemptEnd.UNKNOWN: NextStep.REPEAT",
    ),
    Fault(
        "an unknown outcome is an answer",
        TABLE,
        '"outcome-unknown": AttemptEnd.UNKNOWN',
        '"outcome-unknown": AttemptEnd.ANSWERED',
    ),
    Fault(
        "a stored failure of a proxy is tried for ever",
        TABLE,
        "OF_STATUS.get(status) in (None, AttemptEnd.GATEWAY)",
        "status not in OF_STATUS",
    ),
]
