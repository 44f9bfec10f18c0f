"""Faults in what a copy may answer, in who may write one, and in what becomes of calls when the front fails."""

from mutants.fault import Fault

JUDGEMENT, SCRIPTS, LAYOUT, HEALTH, SETTINGS, STORE, AIO = (
    f"stores/tiered/{name}.py" for name in ("judgement", "scripts", "layout", "health", "settings", "store", "aio")
)
COPIES, LUA = "stores/redis/copies.py", "stores/redis/lua/copy_{}.lua"
LIFE = "max(0, min(keep_ms, record.expires_ms - now_ms - TICKET_MS))"
HINT = "return is_live and record.owner != call.owner and now_ms - copy.read_ms < hint_ms"
LATEST = "return self.told_ms + passed_ms + passed_ms // DRIFT"

FAULTS = [
    Fault("a copy answers for another key", JUDGEMENT, "    if record.key != call.key:\n        return None\n", ""),
    Fault("a copy answers past its record", JUDGEMENT, "if record.answers(now_ms) or", "if record.result or"),
    Fault("a hint outlives the lease", JUDGEMENT, " and now_ms < record.lease_until_ms", ""),
    Fault("a hint refuses the owner itself", JUDGEMENT, HINT, HINT.replace("record.owner != call.owner and ", "")),
    Fault("a hint has no end", JUDGEMENT, HINT, HINT.replace(" and now_ms - copy.read_ms < hint_ms", "")),
    Fault("hints are told unasked", JUDGEMENT, "record.in_progress() and hint_ms > 0", "record.in_progress()"),
    Fault("a late copy outlives its record in the front", JUDGEMENT, LIFE, LIFE.replace(" - TICKET_MS", "")),
    Fault(
        "a copy lives as long as its record",
        JUDGEMENT,
        LIFE,
        "max(0, record.expires_ms - now_ms - TICKET_MS)",
    ),
    Fault("a copy lives for its full time, always", JUDGEMENT, LIFE, "keep_ms"),
    Fault(
        "the life of a hint goes beyond the lease",
        JUDGEMENT,
        "max(0, min(hint_ms, record.lease_until_ms - now_ms))",
        "hint_ms",
    ),
    Fault("large answers are copied", JUDGEMENT, "return len(record.result.payload) <= COPY_MAX", "return True"),
    Fault("an old sighting tells the time", JUDGEMENT, "if not 0 <= passed_ms <= SIGHTING_MS", "if passed_ms < 0"),
    Fault("the time of the database stands still", JUDGEMENT, LATEST, "return self.told_ms"),
    Fault("a fast clock of the database is not feared", JUDGEMENT, LATEST, "return self.told_ms + passed_ms"),
    Fault("another version's copy is read", LAYOUT, "value[:1] != VERSION", "not value"),
    Fault(
        "a damaged copy is read",
        LAYOUT,
        "    if crc32(body := value[at:]).to_bytes(SUM_SIZE) != value[1:at]:\n        return None\n",
        "    body = value[at:]\n",
    ),
    Fault("a ticket is given though there is one", LUA.format("open"), "'NX', ", ""),
    Fault("a copy needs no ticket", LUA.format("put"), "redis.call('GET', name) == ARGV[at]", "true"),
    Fault(
        "copies of two databases meet", COPIES, 'b"%b\\0%b" % (call.place.encode(), frame(call.key))', "frame(call.key)"
    ),
    Fault(
        "a record is removed though its copy stays",
        SCRIPTS,
        "        yield from self._insist(forbid)\n",
        "",
    ),
    Fault(
        "a front that does not forget is no hindrance",
        SCRIPTS,
        "        raise StoreUnavailable(\n",
        "        return\n        raise StoreUnavailable(\n",
    ),
    Fault(
        "an operator's order is given once",
        SCRIPTS,
        "(0, *pauses_ms(budget_ms=INSIST_MS, first_ms=INSIST_FIRST_MS))",
        "(0,)",
    ),
    Fault("nothing is distrusted after a removal", SCRIPTS, "self.distrust(key, self.settings.keep_ms)", "pass"),
    Fault(
        "a copy that is made in the middle of a removal stays",
        SCRIPTS,
        "            yield from do(forbid)  # a front",
        "            pass  # a front",
    ),
    Fault("copies are made of what is removed just now", COPIES, "if call.forbid_ms:", "if False:"),
    Fault("a ticket is the same for all", SCRIPTS, "NO_COPY + secrets.token_bytes(16)", "NO_COPY"),
    Fault(
        "results are not copied",
        SCRIPTS,
        "        if done and self.settings.eager",
        "        if False and self.settings.eager",
    ),
    Fault("results are copied though none is repeated", SCRIPTS, "self._share.is_large() and ", ""),
    Fault(
        "what was repeated long ago counts for ever",
        SCRIPTS,
        "            self._claims //= 2\n",
        "            self._claims = 0\n",
    ),
    Fault("results are copied though that is off", SCRIPTS, "if done and self.settings.eager and", "if done and"),
    Fault(
        "a repeat is not copied",
        SCRIPTS,
        "                yield CopyLater(call.key)\n        return claimed",
        "                pass\n        return claimed",
    ),
    Fault(
        "a hint stays after a call that took effect",
        SCRIPTS,
        "        yield from self._forget(key)\n        return reply",
        "        return reply",
    ),
    Fault(
        "a hint is not forgotten there",
        SCRIPTS,
        "        yield from do(ForbidCopy(self._place, key, 0))\n",
        "        yield from ()\n",
    ),
    Fault(
        "a front that failed is asked again at once",
        HEALTH,
        "        if now_s < self._until_s:\n            return False\n",
        "",
    ),
    Fault(
        "a front that failed is never asked again",
        HEALTH,
        "        self._until_s = now_s + self._rest_s\n        return True",
        "        return False",
    ),
    Fault(
        "all calls try the front after its rest",
        HEALTH,
        "        self._until_s = now_s + self._rest_s\n        return True",
        "        return True",
    ),
    Fault(
        "a waiter believes an old hint",
        STORE,
        "        self._scripts.distrust(key, self._settings.hint_ms)",
        "        pass",
    ),
    Fault(
        "a waiting task believes an old hint",
        AIO,
        "        self._scripts.distrust(key, self._settings.hint_ms)",
        "        pass",
    ),
    Fault(
        "an operator's order is only tried",
        STORE,
        "self._front.answer_copy(call) if call.forbid_ms else self._try(call)",
        "self._try(call)",
    ),
    Fault(
        "an operator's order of a task is only tried",
        AIO,
        "self._front.answer_copy(call) if call.forbid_ms else self._try(call)",
        "self._try(call)",
    ),
    Fault(
        "a database is known by its name on another machine",
        SETTINGS,
        'if host in LOCAL or host.startswith("/") else ""',
        'if False else ""',
    ),
    Fault("a sealed back is taken", SETTINGS, 'if getattr(back, "seal", None) is not None:', "if False:"),
]
