"""Faults in PostgreSQL's statements, in how their rows are read, and in how those who wait hear of changes.

A claim is checked in the snapshot and again in the row, so a fault that grants too much must be seeded in both.
"""

from mutants.fault import Fault

QUERIES, SCRIPTS, OPERATE, WATCH = (f"stores/postgres/{name}.py" for name in ("queries", "scripts", "operate", "watch"))
ATTEMPT = "attempt = CASE WHEN r.expires_ms + r.refuse_ms <= now_ms THEN 1 ELSE r.attempt + 1 END"
CREATED = "created_ms = CASE WHEN r.expires_ms + r.refuse_ms <= now_ms THEN now_ms ELSE r.created_ms END"
PAST_RETENTION = '"r.expires_ms + r.refuse_ms <= now_ms AND r.lease_until_ms <= now_ms"'
HELD = "AND r.state = {IN_PROGRESS} AND r.owner = c.owner"
RENEW = HELD + "\nRETURNING c.number, r.attempt"
COMPLETE = HELD + "\nRETURNING c.number, {NOTIFIED}"
FINISHED = "lease_until_ms = now_ms, expires_ms = now_ms + c.retention_ms"
RELEASE_FIRST = HELD + " AND r.attempt = 1"
RELEASE_LATER = "UPDATE {table} AS r SET owner = '', lease_until_ms = now_ms FROM c"
UNKNOWN = "{NAMED} AND {LAPSED} AND r.attempt = $2"


def without(text: str, part: str) -> str:
    assert part in text
    return text.replace(part, "")


FAULTS = [
    Fault("a mismatch takes over", QUERIES, '"r.fingerprint = c.fingerprint AND r.tenant', '"r.tenant'),
    Fault("an unknown outcome is run again", QUERIES, "(c.takeover AND ", "(", times=2),
    Fault("a repeated take-over takes over from itself", QUERIES, " AND r.owner <> c.owner", ""),
    Fault("the last of many claims in a batch is told that it won", SCRIPTS, "in reversed(calls)}", "in calls}"),
    Fault("a repeated claim of another request is granted", SCRIPTS, " and record.fingerprint == call.fingerprint", ""),
    Fault(
        "a take-over keeps the attempt",
        QUERIES,
        ATTEMPT,
        "attempt = CASE WHEN r.expires_ms + r.refuse_ms <= now_ms THEN 1 ELSE r.attempt END",
    ),
    Fault("an expired key is granted as a take-over", QUERIES, ATTEMPT, "attempt = r.attempt + 1"),
    Fault("an expired key keeps its creation time", QUERIES, CREATED, "created_ms = r.created_ms"),
    Fault("a take-over forgets the creation time", QUERIES, CREATED, "created_ms = now_ms"),
    Fault("an expired key keeps its request", QUERIES, "fingerprint = c.fingerprint, state", "state"),
    Fault("a take-over does not restart the retention", QUERIES, ", expires_ms = now_ms + retention_ms,", ","),
    Fault(
        "retention ends a moment late", QUERIES, PAST_RETENTION, PAST_RETENTION.replace("refuse_ms <=", "refuse_ms <")
    ),
    Fault("a live lease expires", QUERIES, PAST_RETENTION, '"r.expires_ms + r.refuse_ms <= now_ms"'),
    Fault(
        "a live lease is past retention a moment late",
        QUERIES,
        PAST_RETENTION,
        PAST_RETENTION.replace("until_ms <=", "until_ms <"),
    ),
    Fault(
        "a lease lapses a moment late",
        QUERIES,
        '{IN_PROGRESS} AND r.lease_until_ms <= now_ms"',
        '{IN_PROGRESS} AND r.lease_until_ms < now_ms"',
    ),
    Fault("get shows what is past retention", QUERIES, "\nWHERE NOT ({PAST_RETENTION})", ""),
    Fault("renew does not ask for the owner", QUERIES, RENEW, without(RENEW, " AND r.owner = c.owner")),
    Fault("renew revives a result", QUERIES, RENEW, without(RENEW, "AND r.state = {IN_PROGRESS} ")),
    Fault("complete does not ask for the owner", QUERIES, COMPLETE, without(COMPLETE, " AND r.owner = c.owner")),
    Fault("the last result wins", QUERIES, COMPLETE, without(COMPLETE, "AND r.state = {IN_PROGRESS} ")),
    Fault(
        "a zombie is told that its result is kept",
        QUERIES,
        "\nWHERE r.owner = c.owner",
        "\nWHERE r.owner = c.owner OR r.state <> {IN_PROGRESS}",
    ),
    Fault("a repeated complete is told no", SCRIPTS, " or held in before for", " for"),
    Fault("complete does not restart the retention", QUERIES, FINISHED, "lease_until_ms = now_ms"),
    Fault("complete does not end the lease", QUERIES, FINISHED, "expires_ms = now_ms + c.retention_ms"),
    Fault(
        "release does not ask for the owner", QUERIES, RELEASE_FIRST, without(RELEASE_FIRST, " AND r.owner = c.owner")
    ),
    Fault("release removes a result", QUERIES, RELEASE_FIRST, without(RELEASE_FIRST, "AND r.state = {IN_PROGRESS} ")),
    Fault("release forgets earlier attempts", QUERIES, RELEASE_LATER, "DELETE FROM {table} AS r USING c"),
    Fault("a released attempt stays with its owner", QUERIES, RELEASE_LATER, without(RELEASE_LATER, "owner = '', ")),
    Fault("a released attempt stays live", QUERIES, RELEASE_LATER, without(RELEASE_LATER, ", lease_until_ms = now_ms")),
    Fault("a zombie releases its successor", QUERIES, " AND r.owner = c.owner AND r.attempt > 1", " AND r.attempt > 1"),
    Fault(
        "resolve ignores the attempt",
        QUERIES,
        UNKNOWN,
        UNKNOWN.replace("r.attempt =", "r.attempt <= r.attempt +"),
        times=2,
    ),
    Fault("resolve hits what came after", QUERIES, " AND r.owner = $3\n", " AND $3::text IS NOT NULL\n", times=2),
    Fault(
        "resolve acts on a live lease",
        QUERIES,
        UNKNOWN,
        UNKNOWN.replace("{LAPSED}", "r.state = {IN_PROGRESS}"),
        times=2,
    ),
    Fault(
        "resolve replaces a result",
        QUERIES,
        UNKNOWN,
        UNKNOWN.replace("{LAPSED}", "r.lease_until_ms <= now_ms"),
        times=2,
    ),
    Fault("the late owner is not fenced off by resolve", QUERIES, "payload = $6, owner = '',", "payload = $6,"),
    Fault("purge ignores its limit", QUERIES, "LIMIT $1 FOR", "LIMIT $1 + 100 FOR"),
    Fault("purge ignores live leases", QUERIES, " AND r.lease_until_ms <= (SELECT now_ms FROM moment)", ""),
    Fault("purge leaves the results of refused keys", QUERIES, "SET format = NULL, payload = NULL, exp", "SET exp"),
    Fault("a tombstone is gone too early", QUERIES, "expires_ms = expires_ms + refuse_ms, refuse", "refuse"),
    Fault("a refusal is forgotten", QUERIES, "refuse_ms = c.refuse_ms", "refuse_ms = 0 * c.refuse_ms"),
    Fault("a refusal outlives its result", QUERIES, "payload = NULL, refuse_ms = 0\nFROM", "payload = NULL\nFROM"),
    Fault("purge deletes a moment late", QUERIES, "r.expires_ms <= (SELECT", "r.expires_ms < (SELECT"),
    Fault(
        "a lease is shown as lapsed a moment late",
        OPERATE,
        "r.lease_until_ms <= now_ms",
        "r.lease_until_ms < now_ms",
    ),
    Fault("a page repeats its last record", OPERATE, "r.digest > $", "r.digest >= $"),
    Fault("what cannot be read is not counted", OPERATE, "unreadable=unreadable", "unreadable=0"),
    Fault("scan ignores the age", OPERATE, "now_ms - r.created_ms >= $3", "now_ms >= $3"),
    Fault("a prefix is a pattern", OPERATE, "starts_with(r.name, ${})", "r.name LIKE ${} || '%'"),
    Fault(
        "those who wait only sleep",
        WATCH,
        "if not held() or changed.wait(pause_s):",
        "if held() and changed.wait(pause_s):",
    ),
    Fault(
        "remove ignores the lease",
        "stores/postgres/queries.py",
        "WHERE {SEEN} AND r.lease_until_ms <= now_ms\nRETURNING",
        "WHERE {SEEN}\nRETURNING",
    ),
    Fault(
        "remove ignores the owner",
        "stores/postgres/queries.py",
        "AND r.owner = $3 AND r.created_ms = $4::bigint",
        "AND $3 <> 'x!' AND r.created_ms = $4::bigint",
    ),
    Fault(
        "remove takes a later record of the key",
        "stores/postgres/queries.py",
        'r.created_ms = $4::bigint "',
        '$4::bigint > 0 "',
    ),
    Fault(
        "remove takes a record that changed since",
        "stores/postgres/queries.py",
        "AND {COMPLETED} IS NOT DISTINCT FROM $5::bigint",
        "AND coalesce($5::bigint, 0) >= 0",
    ),
    Fault(
        "expire ends an unknown outcome",
        "stores/postgres/queries.py",
        "FROM moment WHERE {SEEN} AND r.state <> {IN_PROGRESS}\nRETURNING 1",
        "FROM moment WHERE {SEEN}\nRETURNING 1",
    ),
    Fault("only half of a tenant is listed", OPERATE, 'SIZE, b"\\xff"', 'SIZE, b"\\x7f"'),
]
