"""Faults in SQLite's statements, in its inspection, in how it wakes those who wait, and in how it
knows its files and the time.

A claim looks before it writes, so what the writing statement checks again is seen in races only.
"""

from mutants.fault import Fault

SCRIPTS, OPERATE, WATCH = (f"stores/sqlite/{name}.py" for name in ("scripts", "operate", "watch"))
ATTEMPT = "attempt = CASE WHEN {PAST_RETENTION} THEN 1 ELSE attempt + 1 END"
CREATED = "created_ms = CASE WHEN {PAST_RETENTION} THEN :now ELSE created_ms END"
DIGESTS, ROWS = "stores/sql/digests.py", "stores/sql/rows.py"
ANSWERS, FILES = "stores/sqlite/answers.py", "stores/sqlite/files.py"
RELEASE_FIRST = "WHERE {HELD} AND attempt = 1 RETURNING 1"
RELEASE_LATER = "SET owner = '', lease_until_ms = :now WHERE {HELD} RETURNING 1"
RENEW = "WHERE {HELD} RETURNING attempt, lease_until_ms"
COMPLETE = 'COMPLETE = f"{FINISH} WHERE {HELD}'
UNKNOWN = "{KEY} AND attempt = :attempt AND owner = :owner AND state = 0 AND lease_until_ms <= :now"
PAST_RETENTION = '"(expires_ms <= :now AND lease_until_ms <= :now)"'

FAULTS = [
    Fault("a take-over keeps the attempt", SCRIPTS, ATTEMPT, ATTEMPT.replace("attempt + 1", "attempt")),
    Fault("an expired key is granted as a take-over", SCRIPTS, ATTEMPT, "attempt = attempt + 1"),
    Fault("an expired key keeps its creation time", SCRIPTS, CREATED, "created_ms = created_ms"),
    Fault("a take-over forgets the creation time", SCRIPTS, CREATED, "created_ms = :now"),
    Fault("an expired key keeps its request", SCRIPTS, "fingerprint = :fingerprint, state", "state"),
    Fault("a take-over keeps the owner", SCRIPTS, "state = 0, owner = :owner,", "state = 0,"),
    Fault(
        "a take-over does not restart the retention", SCRIPTS, "+ :lease, expires_ms = :now + :retention,", "+ :lease,"
    ),
    Fault(
        "a race for a lapsed key has several winners",
        SCRIPTS,
        "state = 0 AND lease_until_ms <= :now AND fingerprint = :fingerprint AND owner <> :owner",
        "state = 0",
    ),
    Fault(
        "a race for an absent key has several winners",
        SCRIPTS,
        "({PAST_RETENTION}\n        OR (:takeover AND",
        "(lease_until_ms = :now + :lease OR {PAST_RETENTION}\n        OR (:takeover AND",
    ),
    Fault(
        "retention ends a moment late", SCRIPTS, PAST_RETENTION, PAST_RETENTION.replace("expires_ms <=", "expires_ms <")
    ),
    Fault(
        "a live lease is past retention a moment late",
        SCRIPTS,
        PAST_RETENTION,
        PAST_RETENTION.replace("until_ms <=", "until_ms <"),
    ),
    Fault("a live lease expires", SCRIPTS, PAST_RETENTION, '"(expires_ms <= :now)"'),
    Fault("get shows what is past retention", SCRIPTS, "WHERE {KEY} AND NOT {PAST_RETENTION}", "WHERE {KEY}"),
    Fault("renew does not ask for the owner", SCRIPTS, RENEW, RENEW.replace("{HELD}", "{KEY} AND state = 0")),
    Fault("renew revives a result", SCRIPTS, RENEW, RENEW.replace("{HELD}", "{KEY} AND owner = :owner")),
    Fault("complete does not ask for the owner", SCRIPTS, COMPLETE, COMPLETE.replace("{HELD}", "{KEY} AND state = 0")),
    Fault("the last result wins", SCRIPTS, COMPLETE, COMPLETE.replace("{HELD}", "{KEY} AND owner = :owner")),
    Fault("a repeated complete is told no", SCRIPTS, "state IN (1, 2)", "state IN (3)"),
    Fault("a repeated failure is told no", SCRIPTS, "state IN (1, 2)", "state IN (1)"),
    Fault(
        "a zombie is told that its result is kept",
        SCRIPTS,
        "{KEY} AND owner = :owner AND state IN",
        "{KEY} AND state IN",
    ),
    Fault(
        "complete does not restart the retention",
        SCRIPTS,
        "lease_until_ms = :now, expires_ms = :now + :retention,",
        "lease_until_ms = :now,",
    ),
    Fault(
        "complete does not end the lease",
        SCRIPTS,
        "lease_until_ms = :now, expires_ms = :now + :retention,",
        "expires_ms = :now + :retention,",
    ),
    Fault(
        "release does not ask for the owner",
        SCRIPTS,
        RELEASE_FIRST,
        RELEASE_FIRST.replace("{HELD}", "{KEY} AND state = 0"),
    ),
    Fault(
        "release removes a result", SCRIPTS, RELEASE_FIRST, RELEASE_FIRST.replace("{HELD}", "{KEY} AND owner = :owner")
    ),
    Fault("release forgets earlier attempts", SCRIPTS, RELEASE_FIRST, "WHERE {HELD} RETURNING 1"),
    Fault("a released attempt stays with its owner", SCRIPTS, RELEASE_LATER, RELEASE_LATER.replace("owner = '', ", "")),
    Fault(
        "a released attempt stays live", SCRIPTS, RELEASE_LATER, RELEASE_LATER.replace(", lease_until_ms = :now", "")
    ),
    Fault(
        "a zombie releases its successor",
        SCRIPTS,
        RELEASE_LATER,
        RELEASE_LATER.replace("{HELD}", "{KEY} AND state = 0"),
    ),
    Fault("resolve ignores the attempt", SCRIPTS, UNKNOWN, UNKNOWN.replace("attempt = :attempt AND ", "")),
    Fault("resolve hits what came after", SCRIPTS, UNKNOWN, UNKNOWN.replace("owner = :owner AND ", "")),
    Fault("resolve acts on a live lease", SCRIPTS, UNKNOWN, UNKNOWN.replace(" AND lease_until_ms <= :now", "")),
    Fault("resolve replaces a result", SCRIPTS, UNKNOWN, UNKNOWN.replace("state = 0 AND ", "")),
    Fault("a lapsed outcome is resolved a moment late", SCRIPTS, UNKNOWN, UNKNOWN.replace("<=", "<")),
    Fault("the late owner is not fenced off by resolve", SCRIPTS, "{FINISH}, owner = '' WHERE", "{FINISH} WHERE"),
    Fault("purge ignores its limit", SCRIPTS, " LIMIT :limit) RETURNING", ") RETURNING"),
    Fault(
        "purge ignores live leases",
        SCRIPTS,
        'LAPSED_PAST_RETENTION = "(expires_ms <= :now AND lease_until_ms <= :now)"',
        'LAPSED_PAST_RETENTION = "(expires_ms <= :now)"',
    ),
    Fault("purge leaves unknown outcomes", SCRIPTS, 'f"state = 0 AND {LAPSED', 'f"state = 9 AND {LAPSED'),
    Fault("purge leaves the results of refused keys", SCRIPTS, "SET format = NULL, payload = NULL, exp", "SET exp"),
    Fault("a tombstone is gone too early", SCRIPTS, "expires_ms = expires_ms + refuse_ms, refuse", "refuse"),
    Fault("a refusal is forgotten", SCRIPTS, "refuse_ms = :refuse", "refuse_ms = 0 * :refuse"),
    Fault("a refusal outlives its result", SCRIPTS, "payload = NULL, refuse_ms = 0\n", "payload = NULL\n"),
    Fault(
        "a lease is shown as lapsed a moment late",
        OPERATE,
        "{IN_PROGRESS} AND lease_until_ms <= :now",
        "{IN_PROGRESS} AND lease_until_ms < :now",
    ),
    Fault(
        "a lease is counted as lapsed a moment late",
        OPERATE,
        "sum(lease_until_ms <= :now)",
        "sum(lease_until_ms < :now)",
    ),
    Fault("a page repeats its last record", OPERATE, "nth) > (:after", "nth) >= (:after"),
    Fault("what cannot be read is left out", ROWS, "            unreadable.append(", "            print("),
    Fault("what cannot be read is not counted", OPERATE, "sum(finished.values())", "0"),
    Fault("scan ignores the age", OPERATE, " AND created_ms <= :created", ""),
    Fault("a prefix is a pattern", OPERATE, "substr(name, 1, :prefix_size) = :prefix", "name LIKE :prefix || '%'"),
    Fault(
        "another process wakes nobody",
        WATCH,
        "if connection.execute(HOLDS, named(key, owner=owner)).fetchone() is None:",
        "if not key:",
    ),
    Fault(
        "remove ignores the lease",
        "stores/sqlite/scripts.py",
        "{SEEN} AND lease_until_ms <= :now RETURNING",
        "{SEEN} RETURNING",
    ),
    Fault(
        "remove acts a moment late",
        "stores/sqlite/scripts.py",
        "{SEEN} AND lease_until_ms <= :now RETURNING",
        "{SEEN} AND lease_until_ms < :now RETURNING",
    ),
    Fault(
        "remove ignores the owner",
        "stores/sqlite/scripts.py",
        'SEEN = f"{KEY} AND owner = :owner AND',
        'SEEN = f"{KEY} AND',
    ),
    Fault(
        "remove ignores the attempt",
        "stores/sqlite/scripts.py",
        "AND attempt = :attempt AND created_ms = :created",
        "AND created_ms = :created",
    ),
    Fault(
        "remove takes a later record of the key",
        "stores/sqlite/scripts.py",
        " AND created_ms = :created AND {COMPLETED} IS",
        " AND {COMPLETED} IS",
    ),
    Fault(
        "remove takes a record that changed since", "stores/sqlite/scripts.py", ' AND {COMPLETED} IS :completed"', '"'
    ),
    Fault(
        "expire ends an unknown outcome",
        "stores/sqlite/scripts.py",
        'WHERE {SEEN} AND state <> 0 RETURNING 1"',
        'WHERE {SEEN} RETURNING 1"',
    ),
    Fault(
        "a claim is granted although somebody was first",
        ANSWERS,
        "now_ms + call.retention_ms)).rowcount == 0:",
        "now_ms + call.retention_ms)).rowcount < 0:",
    ),
    Fault("a new key keeps nothing of its retention", ANSWERS, "now_ms + call.retention_ms)).row", "now_ms + 1)).row"),
    Fault(
        "a zombie is told at once that its result is kept",
        ANSWERS,
        "(*stored, *held)).rowcount == 1 else",
        "(*stored, *held)).rowcount >= 0 else",
    ),
    Fault(
        "complete at once does not ask for the owner",
        ANSWERS,
        "AND owner = ? AND state = 0",
        "AND owner IN (owner, ?) AND state = 0",
    ),
    Fault("complete at once replaces a result", ANSWERS, "AND owner = ? AND state = 0", "AND owner = ?"),
    Fault(
        "complete at once does not end the lease",
        ANSWERS,
        "lease_until_ms = ?, expires_ms = ?",
        "lease_until_ms = max(lease_until_ms, ?), expires_ms = ?",
    ),
    Fault(
        "complete at once does not restart the retention",
        ANSWERS,
        "lease_until_ms = ?, expires_ms = ?",
        "lease_until_ms = ?, expires_ms = min(expires_ms, ?)",
    ),
    Fault("a refusal is forgotten at once", ANSWERS, "refuse_ms = ?", "refuse_ms = 0 * ?"),
    Fault("a failure is replayed as a success", ROWS, "ok=code == SUCCEEDED)", "ok=code in STATES)"),
    Fault(
        "a lapsed key is shown to who may take it over",
        SCRIPTS,
        "    if found.result is not None:\n",
        "    if found.fingerprint == call.fingerprint:\n",
    ),
    Fault(
        "keys of one digest are one key",
        SCRIPTS,
        "digest = :digest AND tenant = :tenant AND scope = :scope AND name = :name",
        "digest = :digest",
    ),
    Fault(
        "a key is claimed without a look",
        SCRIPTS,
        "WHERE NOT EXISTS (SELECT 1 FROM",
        "WHERE 0 = (SELECT count(0) * 0 FROM",
    ),
    Fault(
        "a claim is shown whatever has its digest",
        ANSWERS,
        "rows.get((call.key.tenant, call.key.scope, call.key.name))",
        "next(iter(rows.values()), None)",
    ),
    Fault(
        "what is past retention is still shown to those who ask together",
        SCRIPTS,
        "DIGESTS[:size])}) AND NOT {PAST_RETENTION}",
        "DIGESTS[:size])}) OR 0 AND {PAST_RETENTION}",
    ),
    Fault("the next page begins at another key", OPERATE, "after and after[0]", "after and 0"),
    Fault("only half of a tenant is listed", DIGESTS, 'b"\\xff"', 'b"\\x7f"'),
    Fault("expire prolongs", "stores/sqlite/scripts.py", "min(expires_ms, :now)", "max(expires_ms, :now)"),
    Fault(
        "what is removed is written to",
        "stores/sqlite/writer.py",
        "self._connections.files.check()",
        "self._connections.files.find_loss",
    ),
    Fault("a removed log is not noticed", FILES, '(path, f"{real}-wal", f"{real}-shm")', "(path,)"),
    Fault("a file that is put back is written to", FILES, "if self._loss or self._look() !=", "if self._look() !="),
    Fault(
        "a folder is trusted for ever", FILES, "found == self._trusted and now_s < self._until_s", "found == self._seen"
    ),
    Fault("a replaced file is not noticed", FILES, "return found.st_dev, found.st_ino", "return found.st_dev, 0"),
    Fault(
        "another file with the same inode is taken for the old one",
        "stores/sqlite/connections.py",
        "if self._anchor is not None and drive",
        "if not self and drive",
    ),
    Fault(
        "a new file is begun beside an old log",
        "stores/sqlite/driver.py",
        'if os.path.exists(f"{path}-wal") and not os.path.exists(path):',
        'if path == "":',
    ),
    Fault(
        "a file goes by the wall clock",
        "stores/sqlite/clock.py",
        "return wall_ms if find_boot() is None else clock_from(anchor.offset_ms)",
        "return wall_ms",
    ),
    Fault(
        "each process has a clock of its own",
        "stores/sqlite/clock.py",
        "clock_from(anchor.offset_ms)",
        "clock_from(wall_ms() - boot_ms())",
    ),
]
