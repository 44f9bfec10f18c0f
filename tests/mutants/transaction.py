"""Faults in transactions of users' own: schemas of other versions, sealed results, pipelines, messages."""

from mutants.fault import Fault

POSTGRES, SQLITE, DRIVER = "stores/postgres/transaction.py", "stores/sqlite/transaction.py", "connections/psycopg.py"
QUERIES = "stores/postgres/transaction_queries.py"
BINDING, RECEPTION, OPERATION = "transaction/binding.py", "transaction/reception.py", "runtime/operation.py"
SEALED, FLOW = "stores/sql/seal.py", "flow/transactions.py"
OLD_OR_NEW = "WHERE number < {KNOWN} OR readable_from > {KNOWN}"

FAULTS = [
    Fault(
        "PostgreSQL: a claim writes into a newer schema",
        POSTGRES,
        "            refuse_unfit(number, readable_from, KNOWN, HERE)\n",
        "",
    ),
    Fault(
        "PostgreSQL: the record is there before the refusal",
        QUERIES,
        'FITS = f"coalesce(version[1] >= {KNOWN} AND version[2] <= {KNOWN}, false)"',
        'FITS = "true"',
    ),
    Fault("SQLite: a claim writes into a newer schema", SQLITE, OLD_OR_NEW, "WHERE number < {KNOWN}"),
    Fault("the results of tx steps are in the clear", FLOW, "sealed_engine(unit.engine, seal)", "unit.engine"),
    Fault(
        "blocks store results in the clear",
        SEALED,
        "return engine if seal is None else SealedEngine",
        "return engine if seal or True else SealedEngine",
    ),
    Fault(
        "a sent statement passes for a transaction",
        DRIVER,
        "        if self._connection.autocommit:\n            self._catch_up()\n",
        "",
    ),
    # Messages
    Fault(
        "PostgreSQL: another message under the same id passes for the same one",
        POSTGRES,
        "                if not same:\n                    raise message_reused(message.id)\n",
        "",
    ),
    Fault("SQLite: the payload of a repeat is not compared", SQLITE, " AND payload = :payload FROM", " FROM"),
    Fault(
        "PostgreSQL: the key of a repeat is not compared",
        QUERIES,
        " AND m.aggregateid IS NOT DISTINCT FROM $3::text",
        "",
    ),
    Fault(
        "PostgreSQL: the transaction is broken when the bound on waiting is reached",
        POSTGRES,
        '            yield from do(Statement("ROLLBACK TO SAVEPOINT semel"))\n'
        '            yield from do(Statement("RELEASE SAVEPOINT semel"))\n'
        "            return None\n",
        "            return None\n",
    ),
    Fault(
        "PostgreSQL: two transactions with one id wait without a bound",
        QUERIES,
        "coalesce(pg_try_advisory_xact_lock($7::bigint), true) END AS ours",
        "true OR pg_try_advisory_xact_lock($7::bigint) END AS ours",
    ),
    Fault(
        "PostgreSQL: every given id has a lock of its own",
        POSTGRES,
        "crc32(call.message.id.encode()) % GIVEN_LOCKS",
        "crc32(call.message.id.encode())",
    ),
    Fault(
        "PostgreSQL: a message is written into a newer schema",
        QUERIES,
        "SELECT CASE WHEN EXISTS (SELECT FROM seen) OR NOT {FITS} THEN false\n        ELSE coalesce(",
        "SELECT CASE WHEN EXISTS (SELECT FROM seen) THEN false\n        ELSE coalesce(",
    ),
    Fault(
        "PostgreSQL: a message that is there already is told again",
        QUERIES,
        "SELECT version, a.notified IS NOT NULL, same, ours",
        "SELECT version, a.notified IS NOT NULL, same, ours OR ({NOTIFIED}) IS NULL",
    ),
    Fault(
        "a repeat of an operation adds a second message",
        BINDING,
        "operation.next_message_id()), operation.key",
        "random), operation.key",
    ),
    Fault("every message of an operation has the same id", OPERATION, "            self._published += 1\n", ""),
    Fault(
        "messages of two steps have the same ids",
        "flow/steps.py",
        'f"semel.outbox/{self._place}/{number}"',
        'f"semel.outbox/{number}"',
    ),
    Fault(
        "a refused message is counted",
        BINDING,
        "    encoded, found_type = payload_of(payload)\n",
        "    if id is None and (current := current_operation()) is not None:\n        current.next_message_id()\n"
        "    encoded, found_type = payload_of(payload)\n",
    ),
    Fault("a session in autocommit mode publishes", BINDING, "        self._driver.check()\n", ""),
    Fault(
        "all handlers of a message are one",
        BINDING,
        'Key(options.get("tenant", ""), handler, name)',
        'Key(options.get("tenant", ""), "handler", name)',
    ),
    Fault(
        "a duplicate runs again",
        RECEPTION,
        "held_lease(decision.record), is_duplicate=True",
        "held_lease(decision.record)",
    ),
    Fault("a handler need not look at duplicates", RECEPTION, "        if not self._looked:\n", "        if False:\n"),
    Fault("a duplicate publishes again", RECEPTION, "        if self._is_duplicate:\n", "        if False:\n"),
    Fault(
        "the fingerprint of a received message is ignored",
        BINDING,
        'options.get("fingerprint"), settings',
        "None, settings",
    ),
    Fault(
        "a received message is forgotten after a day",
        "transaction/settings.py",
        "timedelta(days=7)",
        "timedelta(days=1)",
    ),
]
