"""What the failures of psycopg and of the server mean, in words for the person who runs the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.errors import ConnectionTimeout

from semel.errors import StoreMisconfigured, StoreTimeout, StoreUnavailable
from semel.stores.sql.migrations import HOW_TO_MIGRATE

GRANTS = (
    "this user needs SELECT, INSERT, UPDATE, DELETE on semel_records and SELECT on semel_schema; and, for a relay, "
    "SELECT, UPDATE, DELETE on semel_outbox"
)
READ_ONLY = "a standby, or read-only for this user: name the primary, or add target_session_attrs=read-write to the URL"
POOLED = "something between here and the server changes connections: add prepare=false to the URL"
STATEMENT_POOLING = "statement pooling mode"  # how PgBouncer says it, with the code of any broken protocol
TRANSACTION_POOLING = "set pool_mode = transaction (or session) for this database in pgbouncer.ini"
MEANINGS = {  # SQLSTATE: (class, what to do)
    "42P01": (StoreMisconfigured, HOW_TO_MIGRATE),
    "42703": (StoreMisconfigured, HOW_TO_MIGRATE),
    "3F000": (StoreMisconfigured, HOW_TO_MIGRATE),
    "42501": (StoreMisconfigured, GRANTS),
    "22021": (StoreMisconfigured, "the database must have the encoding UTF8"),
    "22P05": (StoreMisconfigured, "the database must have the encoding UTF8"),
    "25006": (StoreUnavailable, READ_ONLY),
    "26000": (StoreUnavailable, POOLED),
    "42P05": (StoreUnavailable, POOLED),
    "57014": (StoreTimeout, "the server took longer than timeout_ms"),
}


class Silent(psycopg.OperationalError):
    """The server said nothing until the time of the call was used up."""


@contextmanager
def failures_of(shown: str) -> Iterator[None]:
    """Turn a driver's failure into ours. Whatever it was, what was asked may have happened."""
    try:
        yield
    except psycopg.Error as error:
        silent = isinstance(error, Silent | ConnectionTimeout)
        kind, way_out = MEANINGS.get(error.sqlstate or "", (StoreTimeout if silent else StoreUnavailable, ""))
        text = " ".join(str(error).split()) or type(error).__name__  # the server's words have lines and tabs
        if STATEMENT_POOLING in text:
            kind, way_out = StoreMisconfigured, TRANSACTION_POOLING
        raise kind(f"{shown}: {text}" + (f"; {way_out}" if way_out else "")) from error
    except (OSError, TimeoutError) as error:
        raise StoreUnavailable(f"{shown}: {str(error) or type(error).__name__}") from error
