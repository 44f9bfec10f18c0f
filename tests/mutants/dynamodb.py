"""Faults in the conditions of DynamoDB's writes, in what is stored, in the lists of operators, and in the clock."""

from mutants.fault import Fault

QUERIES, SCRIPTS, LAYOUT, OPERATE, CLOCK, DRIVER, ATTEMPTS = (
    f"stores/dynamodb/{name}.py" for name in ("queries", "scripts", "layout", "operate", "clock", "driver", "attempts")
)


def always(left: str, right: str) -> str:
    """Any item fulfils it. DynamoDB refuses values that no condition names, so both must stay."""
    return f"({left} <= {right} OR {left} > {right})"


OWED, LIVE = "#forget_ms <= :now AND", "AND #lease_until_ms <= :lapsed)"
HELD = 'IS_HELD = "#version = :version AND #owner = :owner AND #state = :held"'

FAULTS = [
    Fault("a live lease past its retention is granted", QUERIES, LIVE, f"AND {always('#lease_until_ms', ':lapsed')})"),
    Fault("what is owed is granted", QUERIES, OWED, f"{always('#forget_ms', ':now')} AND"),
    Fault(
        "a retention ends a moment early",
        QUERIES,
        '":now": number(now_ms), ":lapsed"',
        '":now": number(now_ms + 1), ":lapsed"',
    ),
    Fault(
        "a live lease is past retention a moment early",
        QUERIES,
        "number(now_ms - margin_ms)",
        "number(now_ms - margin_ms + 1)",
    ),
    Fault("an owner is not asked for", QUERIES, HELD, HELD.replace("#owner = :owner", always("#owner", ":owner"))),
    Fault("a result is written over", QUERIES, HELD, HELD.replace("#state = :held", always("#state", ":held"))),
    Fault("a release forgets earlier attempts", QUERIES, "#attempt = :first", "#attempt >= :first"),
    Fault(
        "a write does not see what was faster",
        LAYOUT,
        'CHANGING = ("version", "state", "owner", *NUMBERS)',
        'CHANGING = ("version",)',
    ),
    Fault("a lease may outlive its item", QUERIES, "#ttl >= :ttl", always("#ttl", ":ttl")),
    Fault(
        "an item is deleted before the end of its lease",
        LAYOUT,
        "ttl_of(max(forget_ms, record.lease_until_ms))",
        "ttl_of(forget_ms)",
    ),
    Fault("an item is deleted at once", LAYOUT, "(end_ms + TTL_SLACK_MS) // 1000", "end_ms // 1000"),
    Fault(
        "a result is deleted before the refusal ends", SCRIPTS, '"ttl": ttl_of(forget_ms)', '"ttl": ttl_of(expires_ms)'
    ),
    Fault("a refusal is forgotten", SCRIPTS, '"refuse_ms": number(call.refuse_ms)', '"refuse_ms": number(0)'),
    Fault(
        "complete does not restart the retention",
        SCRIPTS,
        '                    "expires_ms": number(expires_ms),\n',
        "",
    ),
    Fault("complete does not end the lease", SCRIPTS, '                    "lease_until_ms": number(now_ms),\n', ""),
    Fault("a failure is stored as a success", LAYOUT, "payload, state is State.SUCCEEDED)", "payload, True)"),
    Fault("renew tells another attempt", SCRIPTS, 'number_in(reply["Attributes"], "attempt")', "1"),
    Fault("an item of another form is read", LAYOUT, 'if number_in(item, "version") != VERSION:', "if False:"),
    Fault(
        "an item of another key is read",
        LAYOUT,
        'if found != key or item["digest"]["S"] != digest_of(key):',
        "if False:",
    ),
    Fault(
        "a lost part is an empty part",
        SCRIPTS,
        'b"".join(reply["Item"]["payload"]["B"] for',
        'b"".join(reply.get("Item", {"payload": {"B": b""}})["payload"]["B"] for',
    ),
    Fault(
        "owners share the parts of their results",
        LAYOUT,
        '{digest}\\0{owner}\\0".encode() + result.payload',
        '{digest}\\0".encode()',
    ),
    Fault("a page shows the parts of a result", OPERATE, "return not item", "return True or not item"),
    Fault("purge ignores its limit", OPERATE, "due[: min(AT_ONCE, limit - gone)]", "due[:AT_ONCE]"),
    Fault("purge keeps the parts of a result", OPERATE, "        yield from _all(extra)\n", ""),
    Fault(
        "a cursor leaves a record out", OPERATE, 'after = item["digest"]["S"]\n', 'after = items[-1]["digest"]["S"]\n'
    ),
    Fault("what cannot be read is left out", OPERATE, "unreadable.append(UnreadableRecord(after, str(error)))", "pass"),
    Fault("what cannot be read is not counted", OPERATE, 'seen["unreadable"] += 1', "pass"),
    Fault(
        "counts include what is past retention", OPERATE, "if not record.past_retention(now_ms):", "if record.attempt:"
    ),
    Fault("a count does not go on", ATTEMPTS, 'number_in(reply["Attributes"], "count")', "1"),
    Fault(
        "a count is remembered for ever",
        QUERIES,
        '_if("#forget_ms > :now", ',
        f'_if("{always("#forget_ms", ":now")}", ',
    ),
    Fault("a clock is not compared", CLOCK, "return abs(self.ahead_ms) > self._settings.skew_max_ms", "return False"),
    Fault(
        "one slow answer proves a wrong clock",
        CLOCK,
        "sent_ms - date_ms - GRAIN_MS, received_ms - date_ms",
        "received_ms - date_ms - GRAIN_MS, sent_ms - date_ms",
    ),
    Fault(
        "a claim by a wrong clock is kept",
        DRIVER,
        "if isinstance(reply, Acquired):",
        "if False:",
    ),
    Fault(
        "another caller's lease has no margin",
        SCRIPTS,
        "record.lease_until_ms + self.margin_ms",
        "record.lease_until_ms",
    ),
    Fault("the driver sends again by itself", DRIVER, '"total_max_attempts": 1', '"total_max_attempts": 3'),
]
