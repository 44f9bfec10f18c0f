"""Faults of MariaDB's outbox: what relays take, settle and purge, and what operators see and redrive."""

from mutants.fault import Fault

OUTBOX = "stores/mariadb/outbox.py"

FAULTS = [
    Fault(
        "a message behind one that a relay holds is taken",
        OUTBOX,
        "e.lease_until_ms > {now} OR e.available_ms > {now}",
        "e.available_ms > {now}",
    ),
    Fault(
        "a message behind one that waits for its next try is taken",
        OUTBOX,
        "e.lease_until_ms > {now} OR e.available_ms > {now}",
        "e.lease_until_ms > {now}",
    ),
    Fault("a dead message never blocks", OUTBOX, "THEN {int(call.dead_block)} ELSE 1 END", "THEN 0 ELSE 1 END"),
    Fault(
        "a state that is not known does not block",
        OUTBOX,
        "{int(call.dead_block)} ELSE 1 END",
        "{int(call.dead_block)} ELSE 0 END",
    ),
    Fault(
        "messages are taken behind one that was taken between the steps",
        OUTBOX,
        "            if key is not None:\n                broken.add(key)\n",
        "            pass\n",
    ),
    Fault(
        "what was taken between the steps is taken again",
        OUTBOX,
        "WHERE o.sequence IN ({asked}) AND {DUE.format(now=now)} ORDER BY",
        "WHERE o.sequence IN ({asked}) ORDER BY",
    ),
    Fault("a take waits for another one", OUTBOX, "LIMIT {limit} FOR UPDATE SKIP LOCKED", "LIMIT {limit} FOR UPDATE"),
    Fault("messages of another relay are settled", OUTBOX, " AND o.owner = {text(owner)}", ""),
    Fault("an attempt is not counted", OUTBOX, "o.attempt = o.attempt + c.tried", "o.attempt = o.attempt"),
    Fault("a message that failed is tried again at once", OUTBOX, "{now} + c.delay_ms),", "{now}),"),
    Fault(
        "a settled message stays with its relay",
        OUTBOX,
        "SET o.state = c.state, o.owner = '', ",
        "SET o.state = c.state, ",
    ),
    Fault("what was published just now is purged", OUTBOX, "<= {now} - {call.older_ms} ORDER", "<= {now} ORDER"),
    Fault("dead messages are purged", OUTBOX, "WHERE o.state = {PUBLISHED} AND", "WHERE o.state <> {WAITING} AND"),
    Fault("messages are redriven with their old attempts", OUTBOX, "o.attempt = 0, ", ""),
    Fault("a message that waits is discarded", OUTBOX, 'AND o.state = {DEAD}"', 'AND o.state <> {PUBLISHED}"'),
    Fault("a list of one key shows others", OUTBOX, 'f"o.aggregateid = {text(wanted.key)}"', '"TRUE"'),
    Fault(
        "unknown states are hidden from operators", OUTBOX, "o.state NOT IN ({WAITING}, {PUBLISHED}, {DEAD})", "FALSE"
    ),
]
