"""Faults in the Lua scripts, in how their replies are read, and in how those who wait hear of changes."""

from mutants.fault import Fault

CLAIM, COMPLETE, COUNT, FINISH, PURGE, RELEASE, RENEW, RESOLVE, RETENTION = (
    f"stores/redis/lua/{name}.lua"
    for name in ("claim", "complete", "count", "finish", "purge", "release", "renew", "resolve", "retention")
)
SCRIPTS, OPERATE, LAYOUT = "stores/redis/scripts.py", "stores/redis/operate.py", "stores/redis/layout.py"
GRANTED = "if not (same and lapsed and takeover == 1) then return value end"
HOLDS = "(mine and state == IN_PROGRESS)"
LAPSED = "local lapsed = value and state == IN_PROGRESS and now >= lease_until"
TAKES = "string.sub(calls, start, ends)"
BODY = "string.sub(value, HEAD_SIZE + 1, rest - 1)"

FAULTS = [
    Fault("a mismatch takes over", CLAIM, GRANTED, GRANTED.replace("same and ", "")),
    Fault("a live lease is taken over", CLAIM, GRANTED, GRANTED.replace("lapsed and ", "")),
    Fault("an unknown outcome is run again", CLAIM, GRANTED, GRANTED.replace(" and takeover == 1", "")),
    Fault("a result is run again", CLAIM, "    if state ~= IN_PROGRESS then return value end\n", ""),
    Fault("a lease lapses a moment late", CLAIM, "now >= lease_until", "now > lease_until"),
    Fault("a repeated claim of another request is granted", CLAIM, "if same and mine", "if mine"),
    Fault("a repeated claim is a conflict with oneself", CLAIM, "if same and mine", "if false"),
    Fault(
        "an expired key is granted as a take-over",
        CLAIM,
        "past_retention() then value = nil end",
        "false then value = nil end",
    ),
    Fault("a take-over keeps the attempt", CLAIM, "attempt = attempt + 1", "attempt = attempt"),
    Fault(
        "a take-over keeps the owner",
        CLAIM,
        TAKES,
        f"attempt > 1 and {BODY} or {TAKES}",
    ),
    Fault(
        "a take-over does not restart the retention",
        CLAIM,
        ", now + retention_ms",
        ", value and expires or now + retention_ms",
    ),
    Fault(
        "retention ends a moment late",
        RETENTION,
        "return now >= expires + refuse and",
        "return now > expires + refuse and",
    ),
    Fault(
        "a live lease expires",
        RETENTION,
        "return now >= expires + refuse and now >= lease_until",
        "return now >= expires",
    ),
    Fault(
        "a live lease is past retention a moment early",
        RETENTION,
        "and now >= lease_until",
        "and now >= lease_until - 1",
    ),
    Fault("complete does not restart the retention", FINISH, "= now, now + retention_ms", "= now, expires"),
    Fault(
        "complete does not end the lease",
        FINISH,
        "= now, now + retention_ms",
        "= lease_until, now + retention_ms",
    ),
    Fault(
        "get shows what is past retention",
        SCRIPTS,
        "model.read(to_record(found, call.key), now_ms)",
        "to_record(found, call.key)",
    ),
    Fault("renew does not ask for the owner", RENEW, HOLDS, "(state == IN_PROGRESS)"),
    Fault("renew revives a result", RENEW, HOLDS, "mine"),
    Fault("renew adds to the old end", RENEW, "= now + struct", "= lease_until + struct"),
    Fault("complete does not ask for the owner", COMPLETE, "if not value or not mine then", "if not value then"),
    Fault("the last result wins", COMPLETE, "if state == IN_PROGRESS then", "if value then"),
    Fault("a repeated complete is told no", COMPLETE, "  end\n  return 1\n", "  else return 0 end\n  return 1\n"),
    Fault("release does not ask for the owner", RELEASE, HOLDS, "(state == IN_PROGRESS)"),
    Fault("release removes a result", RELEASE, HOLDS, "mine"),
    Fault("release forgets earlier attempts", RELEASE, "if attempt == 1 then", "if value then"),
    Fault("a released attempt stays with its owner", RELEASE, "disowned()", BODY),
    Fault("a released attempt stays live", RELEASE, "    lease_until = now\n", ""),
    Fault(
        "resolve ignores the attempt",
        RESOLVE,
        "if not lapsed or attempt ~= seen or not mine then",
        "if not lapsed or not mine then",
    ),
    Fault("resolve hits what came after", RESOLVE, " or not mine then", " then"),
    Fault("resolve acts on a live lease", RESOLVE, LAPSED, "local lapsed = value and state == IN_PROGRESS"),
    Fault("resolve replaces a result", RESOLVE, LAPSED, "local lapsed = value and now >= lease_until"),
    Fault("a lapsed outcome is resolved a moment late", RESOLVE, LAPSED, LAPSED.replace(">=", ">")),
    Fault(
        "the late owner is not fenced off by resolve",
        RESOLVE,
        "disowned()",
        BODY,
    ),
    Fault("purge deletes what is owed", PURGE, "and past_retention() then", "and now >= lease_until then"),
    Fault(
        "purge ignores live leases",
        PURGE,
        "and past_retention() then",
        "and now >= expires + refuse then",
    ),
    Fault(
        "purge leaves the results of refused keys",
        PURGE,
        "rest - 1), '')",
        "rest - 1), string.sub(value, rest))",
    ),
    Fault("a tombstone is gone too early", PURGE, "= expires + refuse, 0", "= expires, 0"),
    Fault("a refusal is forgotten", COMPLETE, "retention_ms, refuse_ms)\n", "retention_ms, 0)\n"),
    Fault("purge ignores its limit", PURGE, "  if gone == limit then break end\n", ""),
    Fault("a lease is counted as lapsed a moment late", COUNT, "now < lease_until", "now <= lease_until"),
    Fault("counts include what is past retention", COUNT, "and not past_retention() then", "then"),
    Fault("a failure is stored as a success", LAYOUT, "value[end:], code == SUCCEEDED)", "value[end:], True)"),
    Fault(
        "what cannot be read is left out", OPERATE, "            return UnreadableRecord(", "            return print("
    ),
    Fault("what cannot be read is not counted", COUNT, "    place = 5\n", ""),
    Fault("a page shows a record twice", OPERATE, "if name > passed]", "if name >= passed]"),
    Fault("remove ignores the lease", "stores/redis/lua/remove.lua", "  if now < lease_until then return 0 end\n", ""),
    Fault("remove ignores the owner", "stores/redis/lua/remove.lua", " or not mine then", " then"),
    Fault("remove ignores the attempt", "stores/redis/lua/remove.lua", "attempt ~= seen or ", ""),
    Fault("remove takes a later record of the key", "stores/redis/lua/remove.lua", "created ~= begun or ", ""),
    Fault(
        "remove takes a record that changed since",
        "stores/redis/lua/remove.lua",
        " or (finished and lease_until or 0) ~= completed then",
        " then",
    ),
    Fault(
        "expire ends an unknown outcome",
        "stores/redis/lua/remove.lua",
        "    if not finished then return 0 end\n",
        "",
    ),
    Fault("expire prolongs", "stores/redis/lua/remove.lua", "math.min(expires, now)", "math.max(expires, now)"),
]
