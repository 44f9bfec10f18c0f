"""Faults of claims, completions and messages inside of a MariaDB transaction."""

from mutants.fault import Fault

ENGINE, QUERIES = "stores/mariadb/transaction.py", "stores/mariadb/transaction_queries.py"
ERRORS, CONNECTIONS = "stores/sql/errors.py", "connections/mariadb.py"

FAULTS = [
    Fault("a twin is waited for without a bound", QUERIES, "max_statement_time = {wait_ms / 1000:.3f}, ", ""),
    Fault(
        "a server that rolls back with a wait is not asked about it",
        ENGINE,
        "if limit is NO_WAIT and looked.waits_undo_all:",
        "if False:",
    ),
    Fault("the session's mode decides what fits", QUERIES, "sql_mode = 'STRICT_ALL_TABLES', ", ""),
    Fault("a record in the way is not read", QUERIES, "\nON DUPLICATE KEY UPDATE digest = {TABLE}.digest", ""),
    Fault(
        "a record in the way is taken over", QUERIES, "UPDATE digest = {TABLE}.digest", "UPDATE owner = VALUES(owner)"
    ),
    Fault(
        "a transaction that has ended goes unnoticed",
        ENGINE,
        "            raise ended_inside(call.lease.key) from None\n",
        "            pass\n",
    ),
    Fault(
        "the schema is not looked at",
        ENGINE,
        "        refuse_unfit(number or 0, readable_from or 0, KNOWN, HERE)\n",
        "",
    ),
    Fault(
        "a look at SERIALIZABLE waits as long as the session does",
        ENGINE,
        "setting(limited(max(LOOK_LEAST_MS, bound_ms)), sql)",
        "sql",
    ),
    Fault(
        "the other transaction's message is waited for without a bound",
        ENGINE,
        'still_adding(message.id, f"{WAIT_MS} ms")\n            return True',
        'still_adding(message.id, "ever")\n            return True',
    ),
    Fault(
        "another message under an id is taken for the same",
        ENGINE,
        "                if not same:\n                    raise message_reused(message.id)\n",
        "",
    ),
    Fault(
        "a deadlock is the driver's error",
        ERRORS,
        "if number in (DEADLOCK_FOUND, CHANGED_SINCE_READ):",
        "if number == CHANGED_SINCE_READ:",
    ),
    Fault(
        "a stricter snapshot is the driver's error",
        ERRORS,
        "if number in (DEADLOCK_FOUND, CHANGED_SINCE_READ):",
        "if number == DEADLOCK_FOUND:",
    ),
    Fault(
        "a lock that does not come is the driver's error",
        ERRORS,
        "    if number == LOCK_WAIT_TIMEOUT:\n",
        "    if False:\n",
    ),
    Fault("a missing table is the driver's error", ERRORS, ' or (number in NO_TABLE_NUMBERS and "semel_" in text)', ""),
]
