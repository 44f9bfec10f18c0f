"""Faults in transactions of users' own: schemas of other versions, sealed results, pipelines."""

from mutants.fault import Fault

POSTGRES, SQLITE, DRIVER = "stores/postgres/transaction.py", "stores/sqlite/transaction.py", "connections/psycopg.py"
QUERIES = "stores/postgres/transaction_queries.py"
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
]
