"""The SQL of a claim, of its completion and of a new message inside of a MariaDB transaction. `transaction.py` says
when each is asked.

The session is yours, and so are its settings. What our statements need is set for one statement: strict mode, without
which the server cuts values that are too long, and how long to wait for other transactions.
"""

from __future__ import annotations

from semel.core.effects import Claim
from semel.core.messages import Message
from semel.core.records import Key
from semel.stores.mariadb.packets import listed, literal, text
from semel.stores.mariadb.queries import CLOCK, RECORD, TABLE
from semel.stores.mariadb.schema import MIGRATIONS
from semel.stores.sql.digests import digest_of
from semel.stores.sql.headers import headers_text
from semel.stores.sql.rows import IN_PROGRESS

KNOWN = MIGRATIONS[-1].number
OUTBOX = "semel_outbox"
NEWEST = "(SELECT {} FROM semel_schema ORDER BY number DESC LIMIT 1)"
ENTRY = f"SELECT {NEWEST.format('number')}, {NEWEST.format('readable_from')}, @@innodb_rollback_on_timeout, {CLOCK}"
STRICT = "sql_mode = 'STRICT_ALL_TABLES', unique_checks = 1"
NO_WAIT = "innodb_lock_wait_timeout = 0"


def limited(wait_ms: int) -> str:
    """A bound in milliseconds: that on locks is in seconds, and comes after it."""
    return f"max_statement_time = {wait_ms / 1000:.3f}, innodb_lock_wait_timeout = {2 + wait_ms // 1000}"


def setting(settings: str, sql: str) -> str:
    """A statement with settings of its own."""
    return f"SET STATEMENT {settings} FOR {sql.strip()}"


def look(key: Key) -> str:
    """What there is, without a lock (except at SERIALIZABLE), after the last entry in the book of migrations."""
    return f"{ENTRY}, {RECORD} FROM (SELECT 1) one LEFT JOIN {TABLE} r ON r.digest = {literal(digest_of(key))}"


def insert(call: Claim) -> str:
    """Insert the record, or lock the one that another transaction has committed; the row, after the time.

    `RETURNING` reads what is committed now, also where the snapshot of this transaction is older.
    """
    key = call.key
    named = listed((digest_of(key), key.tenant, key.scope, key.name, call.fingerprint, call.owner))
    times = f"{CLOCK}, {CLOCK} + {call.lease_ms}, {CLOCK} + {call.retention_ms}"
    return f"""
INSERT INTO {TABLE}
    (digest, tenant, scope, name, fingerprint, owner, state, attempt, created_ms, lease_until_ms, expires_ms)
VALUES ({named}, {IN_PROGRESS}, 1, {times})
ON DUPLICATE KEY UPDATE digest = {TABLE}.digest
RETURNING {CLOCK}, {RECORD.replace("r.", "")}"""


def add_message(message: Message) -> str:
    texts = (message.id, message.topic, message.key, message.content_type, headers_text(message.headers))
    return f"""
INSERT INTO {OUTBOX} (created_ms, available_ms, id, aggregatetype, aggregateid, content_type, headers, payload)
VALUES ({CLOCK}, {CLOCK}, {", ".join(map(text, texts))}, {literal(message.payload)})"""


def same_message(message: Message) -> str:
    """Whether a message that has the id of this one is this one."""
    return f"""m.aggregatetype = {text(message.topic)} AND m.aggregateid <=> {text(message.key)}
    AND m.content_type = {text(message.content_type)} AND m.headers = {text(headers_text(message.headers))}
    AND m.payload = {literal(message.payload)}"""


def look_for_message(message: Message) -> str:
    same = f"IF(m.id IS NULL, NULL, {same_message(message)})"
    return f"{ENTRY}, {same} FROM (SELECT 1) one LEFT JOIN {OUTBOX} m ON m.id = {text(message.id)}"


def find_message(message: Message) -> str:
    """As it is committed now: a snapshot may be older. The insert that found it has locked it."""
    return f"SELECT {same_message(message)} FROM {OUTBOX} m WHERE m.id = {text(message.id)} LOCK IN SHARE MODE"
