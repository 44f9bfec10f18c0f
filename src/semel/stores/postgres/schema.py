"""The tables of the PostgreSQL store, as numbered migrations."""

from __future__ import annotations

from semel.core.effects import do
from semel.errors import StoreMisconfigured
from semel.store import Migration
from semel.stores.postgres.settings import PostgresSettings
from semel.stores.sql import migrations
from semel.stores.sql.migrations import HOW_TO_MIGRATE
from semel.stores.sql.statements import Script, Statement

MIGRATIONS = (
    Migration(
        1,
        "records",
        (
            # COLLATE "C": bytes decide. Other collations are slower, and some call different texts equal.
            # What has a fixed size comes first: so none of it is lost to alignment. What has no NULL when the work is
            # done needs no list of them. The server's own share of dead rows that autovacuum waits for, a fifth, let
            # ten million keys grow by a seventh, and each purge passes over such rows. A table without the option is as
            # good otherwise; `semel doctor` says when it is large enough to need it.
            """CREATE TABLE semel_records (
    digest bytea PRIMARY KEY,
    created_ms bigint NOT NULL,
    lease_until_ms bigint NOT NULL,
    expires_ms bigint NOT NULL,
    refuse_ms bigint NOT NULL DEFAULT 0,
    attempt bigint NOT NULL,
    state smallint NOT NULL,
    watched boolean NOT NULL DEFAULT false,
    tenant text COLLATE "C" NOT NULL,
    scope text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    fingerprint text COLLATE "C" NOT NULL,
    owner text COLLATE "C" NOT NULL,
    format text COLLATE "C",
    payload bytea
) WITH (autovacuum_vacuum_scale_factor = 0.02)""",
            # A replay should cost a read. Who wants results compressed does it before they get here.
            "ALTER TABLE semel_records ALTER COLUMN payload SET STORAGE EXTERNAL",
            "CREATE INDEX semel_records_expires ON semel_records (expires_ms)",
            # For counting and listing what is in progress or unknown. Renewing a lease changes no column of it.
            # Not `WHERE state = 0`: for "is this key still in progress?" the planner would walk over all keys.
            "CREATE INDEX semel_records_in_progress ON semel_records (created_ms) WHERE state + 0 = 0",
        ),
    ),
    Migration(
        2,
        "messages",
        (
            # The names without underscores are those that Debezium's outbox event router reads by default.
            """CREATE TABLE semel_outbox (
    sequence bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created_ms bigint NOT NULL,
    available_ms bigint NOT NULL,
    lease_until_ms bigint NOT NULL DEFAULT 0,
    settled_ms bigint NOT NULL DEFAULT 0,
    attempt integer NOT NULL DEFAULT 0,
    state smallint NOT NULL DEFAULT 0,
    owner text COLLATE "C" NOT NULL DEFAULT '',
    id text COLLATE "C" NOT NULL UNIQUE,
    aggregatetype text COLLATE "C" NOT NULL,
    aggregateid text COLLATE "C",
    content_type text COLLATE "C" NOT NULL,
    headers text COLLATE "C" NOT NULL,
    error text COLLATE "C" NOT NULL DEFAULT '',
    payload bytea NOT NULL
)""",
            # What waits, in order. Then what may be in the way of a later message of its key, which is little: a fresh
            # message is not, until a relay takes it. Then what operators look for, and what is to be purged.
            "CREATE INDEX semel_outbox_waiting ON semel_outbox (sequence) WHERE state = 0",
            """CREATE INDEX semel_outbox_blocking ON semel_outbox (aggregateid, sequence)
    WHERE state <> 1 AND (state <> 0 OR owner <> '' OR available_ms > created_ms)""",
            "CREATE INDEX semel_outbox_dead ON semel_outbox (sequence) WHERE state <> 0 AND state <> 1",
            "CREATE INDEX semel_outbox_published ON semel_outbox (settled_ms) WHERE state = 1",
            # How often a handler failed on a message: counted outside of the transaction that was rolled back.
            """CREATE TABLE semel_attempts (
    digest bytea PRIMARY KEY,
    expires_ms bigint NOT NULL,
    count integer NOT NULL,
    error text COLLATE "C" NOT NULL
)""",
            "CREATE INDEX semel_attempts_expires ON semel_attempts (expires_ms)",
        ),
    ),
)
LOCK = 0x73656D656C  # "semel": the advisory lock that keeps a second migrator waiting
TIMEOUT = "10min"


def ready(settings: PostgresSettings) -> Script[None]:
    """Refuse tables that this version cannot use, having made or upgraded them if wanted. Run it in one transaction."""
    yield from _begin(settings.schema)
    if settings.migrate and (yield from _number()) < MIGRATIONS[-1].number:
        yield from _apply(settings.schema)
    if (yield from _number()) == 0:
        where = f" in schema {settings.schema}" if settings.schema else ""
        raise StoreMisconfigured(f"{settings.shown}: there are no tables of semel{where}; {HOW_TO_MIGRATE}")
    yield from migrations.check(MIGRATIONS, settings.shown)


def migrate(schema: str) -> Script[list[int]]:
    """Apply what is missing. Run it in one transaction."""
    yield from _begin(schema)
    return (yield from _apply(schema))


def printable(schema: str) -> list[Migration]:
    """What a person would run by hand, in the schema of the tables."""
    where = (f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}", f"SET search_path = {quoted(schema)}") if schema else ()
    return migrations.printable(MIGRATIONS, *where)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _begin(schema: str) -> Script[None]:
    # What the migrator before us did must be seen once its lock is ours, whatever the database's default is.
    yield from do(Statement("SET TRANSACTION ISOLATION LEVEL READ COMMITTED"))
    yield from do(Statement(f"SET LOCAL statement_timeout = '{TIMEOUT}'"))
    if schema:
        yield from do(Statement(f"SET LOCAL search_path = {quoted(schema)}"))


def _number() -> Script[int]:
    """The number of the newest migration that was applied, 0 without any."""
    ((book,),) = yield from do(Statement("SELECT to_regclass('semel_schema')::text"))
    if book is None:
        return 0
    ((number,),) = yield from do(Statement("SELECT coalesce(max(number), 0) FROM semel_schema"))
    return int(number)


def _apply(schema: str) -> Script[list[int]]:
    yield from do(Statement("SELECT pg_advisory_xact_lock($1::bigint)::text", [LOCK]))
    if schema and not (yield from do(Statement("SELECT 1 FROM pg_namespace WHERE nspname = $1", [schema]))):
        yield from do(Statement(f"CREATE SCHEMA {quoted(schema)}"))
    return (yield from migrations.apply(MIGRATIONS))
