"""Faults in the outboxes of SQLite and PostgreSQL, and in how their rows are read."""

from mutants.fault import Fault

POSTGRES, SQLITE, MESSAGES = "stores/postgres/outbox.py", "stores/sqlite/outbox.py", "stores/sql/messages.py"

FAULTS = [
    Fault(
        "PostgreSQL takes a message without one that another relay is taking",
        POSTGRES,
        "AS judged WHERE ours ORDER BY",
        "AS judged WHERE sequence IN (SELECT sequence FROM locked) ORDER BY",
    ),
    Fault(
        "PostgreSQL takes a message that another relay took since the snapshot",
        POSTGRES,
        "WHERE o.sequence = ANY (ARRAY(SELECT sequence FROM candidates)) AND {DUE}",
        "WHERE o.sequence = ANY (ARRAY(SELECT sequence FROM candidates))",
    ),
    Fault(
        "PostgreSQL looks at no more candidates when others have them",
        POSTGRES,
        "if candidates < window or window >= WINDOW_MAX:",
        "if candidates <= window:",
    ),
    Fault("PostgreSQL takes what a relay holds", POSTGRES, "AND o.lease_until_ms <= (SELECT now_ms FROM moment) ", ""),
    Fault(
        "PostgreSQL takes a message behind one that waits for its next try",
        POSTGRES,
        "                    OR e.available_ms > (SELECT now_ms FROM moment)\n",
        "",
    ),
    Fault("PostgreSQL settles messages of another relay", POSTGRES, " AND o.owner = c.owner", ""),
    Fault(
        "PostgreSQL purges dead messages", POSTGRES, "WHERE o.state = {PUBLISHED} AND", "WHERE o.state <> {WAITING} AND"
    ),
    Fault(
        "PostgreSQL redrives messages with their old attempts", POSTGRES, "attempt = 0, available_ms", "available_ms"
    ),
    Fault("SQLite takes a message behind one that a relay holds", SQLITE, "e.lease_until_ms > :now OR ", ""),
    Fault(
        "SQLite takes a message behind a dead one that blocks its key",
        SQLITE,
        "WHEN {DEAD} THEN :dead_block ELSE 1 END",
        "WHEN {DEAD} THEN 0 ELSE 1 END",
    ),
    Fault("SQLite settles messages of another relay", SQLITE, " AND owner = :owner RETURNING 1", " RETURNING 1"),
    Fault("SQLite purges what was published just now", SQLITE, "settled_ms <= :now - :older", "settled_ms <= :now"),
    Fault("SQLite discards messages that wait", SQLITE, 'DEAD} RETURNING 1"\nSELECT', 'WAITING} RETURNING 1"\nSELECT'),
    Fault(
        "a message that was not tried counts as an attempt",
        MESSAGES,
        'WAITING, 0, KEPT_MS, "") for',
        'WAITING, 1, KEPT_MS, "") for',
    ),
    Fault(
        "a message that failed is tried again at once", MESSAGES, "1, each.delay_ms, each.error)", "1, 0, each.error)"
    ),
    Fault("an unreadable message does not hold back its key", MESSAGES, "            keys.add(key)\n", ""),
    Fault(
        "a state that is not known is a dead message",
        MESSAGES,
        "STATES[code], created_ms",
        "STATES.get(code, MessageState.DEAD), created_ms",
    ),
]
