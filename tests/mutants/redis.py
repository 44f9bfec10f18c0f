"""Faults in the Lua scripts, in how their replies are read, and in how those who wait hear of changes."""

from mutants.fault import Fault

CLAIM, COMPLETE, COUNT, PURGE, RECORD, RELEASE, RENEW, RESOLVE = (
    f"stores/redis/lua/{name}.lua"
    for name in ("claim", "complete", "count", "purge", "record", "release", "renew", "resolve")
)
SCRIPTS, LAYOUT = "stores/redis/scripts.py", "stores/redis/layout.py"
GRANTED = "if not (same and lapsed and takeover == 1) then return value end"
HOLDS = "if not r or not holds(r, owner) then return 0 end"
RENEWS = "if not r or not holds(r, owner) then return false end"
LAPSED = "local lapsed = r and r.state == IN_PROGRESS and now >= r.lease_until"

FAULTS = [
    Fault("a mismatch takes over", CLAIM, GRANTED, GRANTED.replace("same and ", "")),
    Fault("a live lease is taken over", CLAIM, GRANTED, GRANTED.replace("lapsed and ", "r.state == IN_PROGRESS and ")),
    Fault("an unknown outcome is run again", CLAIM, GRANTED, GRANTED.replace(" and takeover == 1", "")),
    Fault("a result is run again", CLAIM, "local lapsed = r.state == IN_PROGRESS and now", "local lapsed = now"),
    Fault("a lease lapses a moment late", CLAIM, "now >= r.lease_until", "now > r.lease_until"),
    Fault("a repeated claim of another request is granted", CLAIM, "if same and holds(r, owner)", "if holds(r, owner)"),
    Fault("a repeated claim is a conflict with oneself", CLAIM, "if same and holds(r, owner)", "if false"),
    Fault(
        "an expired key is granted as a take-over",
        CLAIM,
        "past_retention(r) then r = nil end",
        "false then r = nil end",
    ),
    Fault("a take-over keeps the attempt", CLAIM, "r.attempt = r.attempt + 1", "r.attempt = r.attempt"),
    Fault("a take-over keeps the owner", CLAIM, "r.expires = owner, now", "r.expires = r.owner or owner, now"),
    Fault(
        "a take-over does not restart the retention", CLAIM, ", now + retention_ms", ", r.expires or now + retention_ms"
    ),
    Fault(
        "retention ends a moment late",
        RECORD,
        "return now >= r.expires + r.refuse and",
        "return now > r.expires + r.refuse and",
    ),
    Fault(
        "a live lease expires",
        RECORD,
        "return now >= r.expires + r.refuse and now >= r.lease_until",
        "return now >= r.expires",
    ),
    Fault(
        "a live lease is past retention a moment early",
        RECORD,
        "and now >= r.lease_until",
        "and now >= r.lease_until - 1",
    ),
    Fault("complete does not restart the retention", RECORD, "= now, now, now + retention_ms", "= now, now, r.expires"),
    Fault(
        "complete does not end the lease",
        RECORD,
        "= now, now, now + retention_ms",
        "= now, r.lease_until, now + retention_ms",
    ),
    Fault(
        "get shows what is past retention",
        SCRIPTS,
        "model.read(to_record(found, call.key), now_ms)",
        "to_record(found, call.key)",
    ),
    Fault(
        "renew does not ask for the owner", RENEW, RENEWS, "if not r or r.state ~= IN_PROGRESS then return false end"
    ),
    Fault("renew revives a result", RENEW, RENEWS, "if not r or r.owner ~= owner then return false end"),
    Fault("renew adds to the old end", RENEW, "= now + lease_ms", "= r.lease_until + lease_ms"),
    Fault("complete does not ask for the owner", COMPLETE, "if not r or r.owner ~= owner then", "if not r then"),
    Fault("the last result wins", COMPLETE, "if r.state == IN_PROGRESS then", "if r then"),
    Fault("a repeated complete is told no", COMPLETE, "  end\n  return 1\n", "  else return 0 end\n  return 1\n"),
    Fault("release does not ask for the owner", RELEASE, HOLDS, "if not r or r.state ~= IN_PROGRESS then return 0 end"),
    Fault("release removes a result", RELEASE, HOLDS, "if not r or r.owner ~= owner then return 0 end"),
    Fault("release forgets earlier attempts", RELEASE, "if r.attempt == 1 then", "if r then"),
    Fault("a released attempt stays with its owner", RELEASE, "= NOBODY, now", "= r.owner, now"),
    Fault("a released attempt stays live", RELEASE, "= NOBODY, now", "= NOBODY, r.lease_until"),
    Fault(
        "resolve ignores the attempt",
        RESOLVE,
        "if not lapsed or r.attempt ~= attempt or r.owner ~= owner then",
        "if not lapsed or r.owner ~= owner then",
    ),
    Fault("resolve hits what came after", RESOLVE, " or r.owner ~= owner then", " then"),
    Fault("resolve acts on a live lease", RESOLVE, LAPSED, "local lapsed = r and r.state == IN_PROGRESS"),
    Fault("resolve replaces a result", RESOLVE, LAPSED, "local lapsed = r and now >= r.lease_until"),
    Fault("a lapsed outcome is resolved a moment late", RESOLVE, LAPSED, LAPSED.replace(">=", ">")),
    Fault("the late owner is not fenced off by resolve", RESOLVE, "    r.owner = NOBODY\n", ""),
    Fault("purge deletes what is owed", PURGE, "if r and past_retention(r) then", "if r and now >= r.lease_until then"),
    Fault(
        "purge ignores live leases",
        PURGE,
        "if r and past_retention(r) then",
        "if r and now >= r.expires + r.refuse then",
    ),
    Fault(
        "purge leaves the results of refused keys",
        PURGE,
        "r.answer, r.expires, r.refuse = '', ",
        "r.expires, r.refuse = ",
    ),
    Fault("a tombstone is gone too early", PURGE, "r.expires + r.refuse, 0", "r.expires, 0"),
    Fault("a refusal is forgotten", COMPLETE, "retention_ms, refuse_ms)\n", "retention_ms, 0)\n"),
    Fault("purge ignores its limit", PURGE, "  if gone == limit then break end\n", ""),
    Fault("a lease is counted as lapsed a moment late", COUNT, "now < r.lease_until", "now <= r.lease_until"),
    Fault("counts include what is past retention", COUNT, "if r and not past_retention(r) then", "if r then"),
    Fault("a failure is stored as a success", LAYOUT, "ok=state is State.SUCCEEDED", "ok=True"),
    Fault("a page shows a record twice", SCRIPTS, "if name > passed]", "if name >= passed]"),
    Fault(
        "remove ignores the lease", "stores/redis/lua/remove.lua", "  if now < r.lease_until then return 0 end\n", ""
    ),
    Fault("remove ignores the owner", "stores/redis/lua/remove.lua", " or r.owner ~= owner then", " then"),
    Fault("remove ignores the attempt", "stores/redis/lua/remove.lua", "r.attempt ~= attempt or ", ""),
    Fault("remove takes a later record of the key", "stores/redis/lua/remove.lua", "r.created ~= created or ", ""),
    Fault(
        "remove takes a record that changed since",
        "stores/redis/lua/remove.lua",
        " or r.completed ~= completed then",
        " then",
    ),
    Fault(
        "expire ends an unknown outcome",
        "stores/redis/lua/remove.lua",
        "    if r.state == IN_PROGRESS then return 0 end\n",
        "",
    ),
    Fault("expire prolongs", "stores/redis/lua/remove.lua", "math.min(r.expires, now)", "math.max(r.expires, now)"),
]
