"""The SQL of the PostgreSQL store. `scripts.py` says when each is asked and what its answer means.

`$n` are PostgreSQL's own placeholders. Calls come as arrays, one for each field, so that a batch is one statement
whatever its size; answers name a call by its number, counted from 1, wherever SQL lets them. The last parameter is the
time of an injected clock, or NULL for the server's.

Rows are looked up one key at a time (`at_key`) and changed where they were found (`ctid`). A plain join would leave the
planner the choice to walk over the whole table instead, which it takes, and keeps, if the table was empty then.
The price: a row that another caller changed in between is not found again, and the scripts ask once more.
"""

from __future__ import annotations

from semel.stores.sql.rows import COLUMNS, IN_PROGRESS

TABLE = "semel_records"
BACKEND = "pid || '@' || extract(epoch FROM backend_start)"
"""Names one process of the server: numbers are used again."""
CHANNEL = "semel"

RECORD = ", ".join(f"r.{column}" for column in COLUMNS)
NAMED = "r.digest = $1"
SAME = "r.fingerprint = c.fingerprint AND r.tenant = c.tenant AND r.scope = c.scope AND r.name = c.name"
PAST_RETENTION = "r.expires_ms + r.refuse_ms <= now_ms AND r.lease_until_ms <= now_ms"
LAPSED = f"r.state = {IN_PROGRESS} AND r.lease_until_ms <= now_ms"
NOTIFIED = f"CASE WHEN r.watched THEN pg_notify('{CHANNEL}', encode(r.digest, 'hex'))::text END"
NOW = "coalesce({0}::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)"
CLAIMS = """unnest(
        $1::bytea[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::bigint[],
        $9::boolean[]
    ) WITH ORDINALITY
        AS c (digest, tenant, scope, name, fingerprint, owner, lease_ms, retention_ms, takeover, number)"""
"""The calls that `claim` and `take` are asked for."""


def at_key(table: str, columns: str) -> str:
    """The row of the key of `c`, by the primary key whatever the table's size. `LIMIT` keeps it from being a join."""
    return f"LATERAL (SELECT {columns} FROM {table} r WHERE r.digest = c.digest LIMIT 1)"


def moment(now: str) -> str:
    """The time, read once for the whole statement."""
    return f"moment AS MATERIALIZED (SELECT {NOW.format(now)} AS now_ms)"


def durable_moment(now: str) -> str:
    """The time of a statement that writes. What it acknowledges must survive a crash, whatever the default is."""
    return f"""moment AS MATERIALIZED (
    SELECT {NOW.format(now)} AS now_ms,
        CASE WHEN current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')
            THEN set_config('synchronous_commit', 'on', true) END
)"""


def claim(table: str) -> str:
    """Two ways out: what the snapshot showed, or inserted. A lost race has neither.

    What was there and may be had (`open`) is only told: `take` takes it. Hardly any claim needs that, and in the same
    statement every lone claim and replay would pay for it, with a fifth of what the server does.

    Of what was inserted, the caller knows everything but the time: only its digest comes back.
    """
    there = ", ".join(f"old_{column}" for column in COLUMNS)
    return f"""
WITH {durable_moment("$10")}, seen AS MATERIALIZED (
    SELECT c.*, now_ms, {", ".join(f"r.{column} AS old_{column}" for column in COLUMNS)},
        ({PAST_RETENTION})
            OR (c.takeover AND {LAPSED} AND {SAME} AND r.owner <> c.owner) AS open
    FROM moment
    CROSS JOIN {CLAIMS}
    LEFT JOIN {at_key(table, RECORD)} r ON true
), inserted AS (
    INSERT INTO {table} AS r
        (digest, tenant, scope, name, fingerprint, state, owner, attempt, created_ms, lease_until_ms, expires_ms)
    SELECT digest, tenant, scope, name, fingerprint, {IN_PROGRESS}, owner, 1, now_ms, now_ms + lease_ms,
        now_ms + retention_ms
    FROM seen WHERE old_state IS NULL ORDER BY number
    ON CONFLICT (digest) DO NOTHING
    RETURNING r.digest
)
SELECT number, NULL::bytea, now_ms, open, {there} FROM seen WHERE old_state IS NOT NULL
UNION ALL
SELECT NULL, digest, now_ms, NULL{", NULL" * len(COLUMNS)} FROM inserted, moment"""


def take(table: str) -> str:
    """Takes what is past retention, or lapsed and may be taken over. Who finds it changed has to claim again."""
    return f"""
WITH {durable_moment("$10")}
UPDATE {table} AS r SET
    tenant = c.tenant, scope = c.scope, name = c.name,
    attempt = CASE WHEN r.expires_ms + r.refuse_ms <= now_ms THEN 1 ELSE r.attempt + 1 END,
    created_ms = CASE WHEN r.expires_ms + r.refuse_ms <= now_ms THEN now_ms ELSE r.created_ms END,
    fingerprint = c.fingerprint, state = {IN_PROGRESS}, owner = c.owner,
    lease_until_ms = now_ms + lease_ms, expires_ms = now_ms + retention_ms,
    format = NULL, payload = NULL, refuse_ms = 0
FROM moment, {CLAIMS}, {at_key(table, "r.ctid")} found
WHERE r.ctid = found.ctid AND r.lease_until_ms <= now_ms
    AND (r.expires_ms + r.refuse_ms <= now_ms
        OR (c.takeover AND r.state = {IN_PROGRESS} AND {SAME}))
RETURNING NULL, r.digest, now_ms, {NOTIFIED}, {RECORD}"""


def renew(table: str) -> str:
    return f"""
WITH {durable_moment("$4")}
UPDATE {table} AS r SET lease_until_ms = now_ms + c.lease_ms
FROM moment, unnest($1::bytea[], $2::text[], $3::bigint[]) WITH ORDINALITY AS c (digest, owner, lease_ms, number),
    {at_key(table, "r.ctid")} found
WHERE r.ctid = found.ctid AND r.state = {IN_PROGRESS} AND r.owner = c.owner
RETURNING c.number, r.attempt, r.lease_until_ms"""


def complete(table: str) -> str:
    return f"""
WITH {durable_moment("$8")}
UPDATE {table} AS r SET state = c.state, format = c.format, payload = c.payload, refuse_ms = c.refuse_ms,
    lease_until_ms = now_ms, expires_ms = now_ms + c.retention_ms
FROM moment,
    unnest($1::bytea[], $2::text[], $3::bigint[], $4::text[], $5::bytea[], $6::bigint[], $7::bigint[])
    WITH ORDINALITY AS c (digest, owner, state, format, payload, retention_ms, refuse_ms, number),
    {at_key(table, "r.ctid")} found
WHERE r.ctid = found.ctid AND r.state = {IN_PROGRESS} AND r.owner = c.owner
RETURNING c.number, {NOTIFIED}"""


def owned(table: str) -> str:
    """What still belongs to its owner, in progress or finished."""
    return f"""
SELECT c.number, r.state
FROM unnest($1::bytea[], $2::text[]) WITH ORDINALITY AS c (digest, owner, number),
    {at_key(table, "r.owner, r.state")} r
WHERE r.owner = c.owner"""


def release(table: str) -> str:
    """A first attempt that did nothing leaves nothing behind; after a take-over the key stays, without an owner."""
    return f"""
WITH {durable_moment("$3")}, c AS MATERIALIZED (
    SELECT now_ms, c.*, found.ctid AS place
    FROM moment, unnest($1::bytea[], $2::text[]) WITH ORDINALITY AS c (digest, owner, number),
        {at_key(table, "r.ctid")} found
), gone AS (
    DELETE FROM {table} AS r USING c
    WHERE r.ctid = c.place AND r.state = {IN_PROGRESS} AND r.owner = c.owner AND r.attempt = 1
    RETURNING c.number, {NOTIFIED}
), kept AS (
    UPDATE {table} AS r SET owner = '', lease_until_ms = now_ms FROM c
    WHERE r.ctid = c.place AND r.state = {IN_PROGRESS} AND r.owner = c.owner AND r.attempt > 1
    RETURNING c.number, {NOTIFIED}
)
SELECT * FROM gone UNION ALL SELECT * FROM kept"""


def read(table: str) -> str:
    return f"""
WITH {moment("$2")}
SELECT c.number, {RECORD} FROM moment
CROSS JOIN unnest($1::bytea[]) WITH ORDINALITY AS c (digest, number)
CROSS JOIN {at_key(table, RECORD)} r
WHERE NOT ({PAST_RETENTION})"""


def resolve(table: str) -> str:
    return f"""
WITH {durable_moment("$8")}
UPDATE {table} AS r SET state = $4, format = $5, payload = $6, owner = '',
    lease_until_ms = now_ms, expires_ms = now_ms + $7::bigint
FROM moment WHERE {NAMED} AND {LAPSED} AND r.attempt = $2 AND r.owner = $3
RETURNING {NOTIFIED}"""


def resolve_nothing_done(table: str) -> str:
    return f"""
WITH {durable_moment("$4")}
DELETE FROM {table} AS r USING moment WHERE {NAMED} AND {LAPSED} AND r.attempt = $2 AND r.owner = $3
RETURNING {NOTIFIED}"""


COMPLETED = f"CASE WHEN r.state <> {IN_PROGRESS} THEN r.lease_until_ms END"
SEEN = (
    f"{NAMED} AND r.attempt = $2 AND r.owner = $3 AND r.created_ms = $4::bigint "
    f"AND {COMPLETED} IS NOT DISTINCT FROM $5::bigint"
)


def remove(table: str) -> str:
    return f"""
WITH {durable_moment("$6")}
DELETE FROM {table} AS r USING moment WHERE {SEEN} AND r.lease_until_ms <= now_ms
RETURNING {NOTIFIED}"""


def expire(table: str) -> str:
    return f"""
WITH {durable_moment("$6")}
UPDATE {table} AS r SET expires_ms = least(r.expires_ms, now_ms)
FROM moment WHERE {SEEN} AND r.state <> {IN_PROGRESS}
RETURNING 1"""


def watch(table: str) -> str:
    """Marks the row once, however many wait. One row means that the owner holds the key and will wake us."""
    return f"""
WITH held AS (
    SELECT r.watched FROM {table} r WHERE {NAMED} AND r.state = {IN_PROGRESS} AND r.owner = $2
), marked AS (
    UPDATE {table} AS r SET watched = true
    WHERE {NAMED} AND r.state = {IN_PROGRESS} AND r.owner = $2 AND NOT r.watched AND EXISTS (SELECT FROM held)
    RETURNING 1
)
SELECT 1 FROM held WHERE watched UNION ALL SELECT * FROM marked"""


def doubts(table: str) -> str:
    """Of the processes in `$1`, named or numbered, those that are alive; and transactions that wrote to the table.

    Such a transaction has not ended. It may carry a claim that no other one can see yet: while a commit waits for a
    standby it keeps its locks. Of those, too, only what `$1` names, unless `$2`.
    """
    quoted = table.replace("'", "''")
    return f"""
SELECT name FROM (SELECT {BACKEND} AS name, pid FROM pg_stat_activity) AS alive
WHERE name = ANY ($1::text[]) OR (pid::text = ANY ($1::text[]) AND pid <> pg_backend_pid())
UNION ALL
SELECT name FROM (
    SELECT pid || '/' || virtualtransaction AS name FROM pg_locks
    WHERE locktype = 'relation' AND relation = to_regclass('{quoted}') AND mode = 'RowExclusiveLock' AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid <> pg_backend_pid()
) AS writing WHERE $2 OR name = ANY ($1::text[])"""


def purge(table: str) -> str:
    """The inner query locks what it finds and looks at it again; a row that a claim has just now is skipped.

    A key that is only refused loses its result, and is found again when its refusal is over.
    """
    return f"""
WITH {moment("$2")}, past AS MATERIALIZED (
    SELECT r.ctid AS place, r.refuse_ms > 0 AND r.expires_ms + r.refuse_ms > (SELECT now_ms FROM moment) AS refused
    FROM {table} r
    WHERE r.expires_ms <= (SELECT now_ms FROM moment) AND r.lease_until_ms <= (SELECT now_ms FROM moment)
    ORDER BY r.expires_ms LIMIT $1 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM {table} WHERE ctid = ANY (ARRAY(SELECT place FROM past WHERE NOT refused)) RETURNING 1
), emptied AS (
    UPDATE {table} SET format = NULL, payload = NULL, expires_ms = expires_ms + refuse_ms, refuse_ms = 0
    WHERE ctid = ANY (ARRAY(SELECT place FROM past WHERE refused)) RETURNING 1
)
SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM emptied)"""
