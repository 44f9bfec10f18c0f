"""The tables of the MariaDB store, as numbered migrations.

MariaDB commits after each statement that changes a schema. So every statement here may be run again after a crash, and
the entry in `semel_schema` comes last.
"""

from __future__ import annotations

from semel.core.effects import do
from semel.errors import StoreMisconfigured, StoreUnavailable
from semel.store import Migration
from semel.stores.mariadb.settings import MariadbSettings
from semel.stores.sql import migrations
from semel.stores.sql.migrations import HOW_TO_MIGRATE
from semel.stores.sql.statements import Script, Statement

OPTIONS = "ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin"
TEXTS = OPTIONS.replace("utf8mb4_bin", "utf8mb4_nopad_bin")
BEFORE = "SET SESSION default_storage_engine = InnoDB"

MIGRATIONS = (
    Migration(
        1,
        "records",
        (
            # Bytes decide: most collations call some different texts equal, be it only for blanks at their end.
            f"""CREATE TABLE IF NOT EXISTS semel_records (
    digest BINARY(15) NOT NULL PRIMARY KEY,
    created_ms BIGINT NOT NULL,
    lease_until_ms BIGINT NOT NULL,
    expires_ms BIGINT NOT NULL,
    refuse_ms BIGINT NOT NULL DEFAULT 0,
    attempt BIGINT NOT NULL,
    state TINYINT NOT NULL,
    tenant VARBINARY(255) NOT NULL,
    scope VARBINARY(1024) NOT NULL,
    name VARBINARY(255) NOT NULL,
    fingerprint VARBINARY(255) NOT NULL,
    owner VARBINARY(64) NOT NULL,
    format VARBINARY(64),
    payload LONGBLOB,
    KEY semel_records_expires (expires_ms),
    KEY semel_records_state (state, created_ms)
) {OPTIONS}""",
            # How often a handler failed on a message: counted outside of the transaction that was rolled back.
            f"""CREATE TABLE IF NOT EXISTS semel_attempts (
    digest BINARY(15) NOT NULL PRIMARY KEY,
    expires_ms BIGINT NOT NULL,
    count INT NOT NULL,
    error VARBINARY(4000) NOT NULL,
    KEY semel_attempts_expires (expires_ms)
) {OPTIONS}""",
        ),
    ),
    Migration(
        2,
        "messages",
        (
            # The names without underscores are those that Debezium's outbox event router reads by default, as text:
            # of a collation that tells all texts apart, also by case and by blanks at their end.
            # `blocking` marks what may be in the way of a later message of its key, which is little: a fresh message
            # is not, until a relay takes it.
            f"""CREATE TABLE IF NOT EXISTS semel_outbox (
    sequence BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    created_ms BIGINT NOT NULL,
    available_ms BIGINT NOT NULL,
    lease_until_ms BIGINT NOT NULL DEFAULT 0,
    settled_ms BIGINT NOT NULL DEFAULT 0,
    attempt INT NOT NULL DEFAULT 0,
    state TINYINT NOT NULL DEFAULT 0,
    owner VARCHAR(64) NOT NULL DEFAULT '',
    id VARCHAR(128) NOT NULL,
    aggregatetype VARCHAR(255) NOT NULL,
    aggregateid VARCHAR(255),
    content_type VARCHAR(255) NOT NULL,
    headers MEDIUMTEXT NOT NULL,
    error VARCHAR(1000) NOT NULL DEFAULT '',
    payload LONGBLOB NOT NULL,
    blocking TINYINT AS (IF(state <> 1 AND (state <> 0 OR owner <> '' OR available_ms > created_ms), 1, 0)) STORED,
    UNIQUE KEY semel_outbox_id (id),
    KEY semel_outbox_state (state, sequence),
    KEY semel_outbox_blocking (aggregateid, blocking, sequence),
    KEY semel_outbox_settled (state, settled_ms)
) {TEXTS}""",
        ),
    ),
)
TIMEOUT_S = 600
LOCK = "CONCAT('semel_schema.', LEFT(SHA1(DATABASE()), 32))"
"""One for each database: names of these locks are the whole server's."""


def ready(settings: MariadbSettings) -> Script[None]:
    """Refuse tables that this version cannot use, having made or upgraded them if wanted."""
    number = yield from _number()
    if settings.migrate and number < MIGRATIONS[-1].number:
        yield from migrate(settings)
        number = yield from _number()
    if number == 0:
        raise StoreMisconfigured(f"{settings.shown}: there are no tables of semel; {HOW_TO_MIGRATE}")
    yield from migrations.check(MIGRATIONS, settings.shown)


def migrate(settings: MariadbSettings) -> Script[list[int]]:
    """Apply what is missing, while other migrators wait. A failure closes the connection, which gives the lock back."""
    yield from _limit(TIMEOUT_S)
    applied = yield from apply_alone(settings.shown)
    yield from _limit(settings.timeout_s)
    return applied


def apply_alone(shown: str) -> Script[list[int]]:
    ((locked,),) = yield from do(Statement(f"SELECT GET_LOCK({LOCK}, {TIMEOUT_S})"))
    if locked != 1:
        raise StoreUnavailable(f"{shown}: another migration was still running after {TIMEOUT_S} s")
    yield from do(Statement(BEFORE))
    applied = yield from migrations.apply(MIGRATIONS)
    yield from do(Statement(f"SELECT RELEASE_LOCK({LOCK})"))
    return applied


def printable() -> list[Migration]:
    """What a person would run by hand, in the database of the tables."""
    return migrations.printable(MIGRATIONS, BEFORE)


def _limit(timeout_s: float) -> Script[None]:
    yield from do(Statement(f"SET SESSION max_statement_time = {timeout_s:g}"))


def _number() -> Script[int]:
    """The number of the newest migration that was applied, 0 without any."""
    tables = "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'semel_schema'"
    if not (yield from do(Statement(tables))):
        return 0
    ((number,),) = yield from do(Statement("SELECT COALESCE(MAX(number), 0) FROM semel_schema"))
    return int(number)
