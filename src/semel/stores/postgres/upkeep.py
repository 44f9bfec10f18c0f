"""Whether the server cleans up behind the store: autovacuum and its pace, dead rows, transaction numbers.

Every claim, completion and purge leaves a dead row behind. Without vacuum the table grows and each read slows down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from semel.core.effects import Effect
from semel.store import Finding
from semel.stores.postgres.queries import TABLE
from semel.stores.sql.statements import Rows, Statement

Run = Callable[[Effect[Any]], Rows]
HOLDING = {"autovacuum_vacuum_scale_factor": "0.02"}
"""What holds the size of ten million keys while they turn over (docs/postgres-at-size.md). New tables have it."""
QUICKER = {"autovacuum_vacuum_cost_limit": "1000", "autovacuum_vacuum_cost_delay": "2"}
ASKED = ("autovacuum", "track_counts")
OFF = ("off", "false", "no", "0")
DEAD_MIN = 10_000
"""Fewer dead rows than this do no harm, however few are alive."""
LARGE = 1_000_000
"""From so many rows on, what suits a table of any size does not suit this one."""
SHARE_MAX = 0.1
"""Autovacuum should begin before a larger share of the rows than this is dead."""
NAP_MAX_S = 300
PASS_MAX_S = 1_800
"""A vacuum that takes longer than this falls behind: it cleans only what was dead when it began."""
READ_AND_DIRTIED = 22
"""What the server's own figures charge a vacuum for a page that it reads from disk and changes."""
FILLED_MIN = 80
STOP_AT = 2_000_000_000
"""A little later the server takes no transaction any more."""
SETTINGS = (
    "autovacuum_vacuum_scale_factor",
    "autovacuum_vacuum_threshold",
    "autovacuum_naptime",
    "autovacuum_vacuum_cost_delay",
    "autovacuum_vacuum_cost_limit",
    "vacuum_cost_delay",
    "vacuum_cost_limit",
    "autovacuum_freeze_max_age",
)
SERVER = f"SELECT name, setting::float8 FROM pg_settings WHERE name IN {SETTINGS!r}"
# The options of the table, and of the one beside it that holds large answers.
OPTIONS = f"""
SELECT coalesce(array_to_string(c.reloptions, ' '), ''), coalesce(array_to_string(t.reloptions, ' '), ''),
    c.reltuples::float8, (pg_total_relation_size(c.oid) / current_setting('block_size')::bigint)::float8
FROM pg_class c LEFT JOIN pg_class t ON t.oid = c.reltoastrelid WHERE c.oid = to_regclass('{TABLE}')"""
DEAD = f"""
SELECT n_live_tup, n_dead_tup,
    coalesce(to_char(greatest(last_vacuum, last_autovacuum), 'YYYY-MM-DD HH24:MI TZ'), 'never')
FROM pg_stat_all_tables WHERE relid = to_regclass('{TABLE}')"""
AGE = f"""
SELECT age(relfrozenxid)::bigint, (SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database())::bigint
FROM pg_class WHERE oid = to_regclass('{TABLE}')"""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What is set for the table, or for the server where the table says nothing."""

    settings: Mapping[str, float]
    own: Mapping[str, str]
    beside: Mapping[str, str]
    rows: float
    pages: float

    @classmethod
    def read(cls, run: Run) -> Upkeep:
        [(own, beside, rows, pages)] = run(Statement(OPTIONS))
        server = {name: float(setting) for name, setting in run(Statement(SERVER))}
        return cls(server, _options(own), _options(beside), rows, pages)

    def value(self, name: str) -> float:
        return float(self.own.get(name, self.settings[name]))

    @property
    def dead_max(self) -> float:
        """How many rows are dead when autovacuum begins."""
        return self.value("autovacuum_vacuum_threshold") + self.value("autovacuum_vacuum_scale_factor") * self.rows

    @property
    def pass_s(self) -> float:
        """How long the pauses of one vacuum are together if it reads and changes every page."""
        limit, delay_ms = (self._cost(name) for name in ("cost_limit", "cost_delay"))
        return self.pages * READ_AND_DIRTIED / limit * delay_ms / 1000

    def _cost(self, name: str) -> float:
        """-1 means: as for a vacuum that a person starts."""
        value = self.value(f"autovacuum_vacuum_{name}")
        return self.settings[f"vacuum_{name}"] if value < 0 else value


def examine(run: Run, server: Mapping[str, str]) -> Iterator[Finding]:
    upkeep = Upkeep.read(run)
    yield _autovacuum(upkeep, server)
    yield from _fill_factor(upkeep)
    yield _dead_rows(run, upkeep)
    yield _age(run, upkeep)


def _autovacuum(upkeep: Upkeep, server: Mapping[str, str]) -> Finding:
    for name in ASKED:
        if server[name] != "on":
            return _poor(
                f"{name} is off: nothing cleans up behind claims, so the table grows and slows down, and the server "
                "stops all writes when its transaction numbers run out",
                f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();",
            )
    for options, prefix in ((upkeep.own, ""), (upkeep.beside, "toast.")):
        if options.get("autovacuum_enabled", "on").lower() in OFF:
            return _poor(
                f"{prefix}autovacuum_enabled is off for {TABLE}: nothing cleans up behind claims, so the table grows "
                "and slows down",
                f"ALTER TABLE {TABLE} RESET ({prefix}autovacuum_enabled);",
            )
    return _pace(upkeep) or Finding("autovacuum", "ok", f"autovacuum is on, for {TABLE}, too")


def _pace(upkeep: Upkeep) -> Finding | None:
    """Whether autovacuum, which is on, begins soon enough and gets to the end."""
    nap_s = upkeep.value("autovacuum_naptime")
    if nap_s > NAP_MAX_S:
        return _poor(
            f"autovacuum_naptime is {nap_s:.0f} s: autovacuum looks only so often whether there is work",
            "ALTER SYSTEM SET autovacuum_naptime = '1min'; SELECT pg_reload_conf();",
        )
    if upkeep.rows < LARGE:
        return None
    if upkeep.dead_max > SHARE_MAX * upkeep.rows:
        return _poor(
            f"autovacuum begins when {upkeep.dead_max:,.0f} of about {upkeep.rows:,.0f} rows are dead "
            f"(autovacuum_vacuum_scale_factor is {upkeep.value('autovacuum_vacuum_scale_factor'):g}): each purge "
            "passes over them, and the table grows by as much",
            _set(HOLDING),
        )
    if upkeep.pass_s > PASS_MAX_S:
        return _poor(
            f"autovacuum pauses so much that one pass over {TABLE} can take {upkeep.pass_s / 60:.0f} minutes: rows "
            "die faster than it cleans up",
            _set(QUICKER),
        )
    return None


def _set(options: Mapping[str, str]) -> str:
    given = ", ".join(f"{name} = {value}" for name, value in options.items())
    return f"ALTER TABLE {TABLE} SET ({given});"


def _poor(detail: str, fix: str) -> Finding:
    return Finding("autovacuum", "warning", detail, fix)


def _options(text: str) -> dict[str, str]:
    """The options of a table, as in `autovacuum_enabled=off fillfactor=50`. No value of them has blanks."""
    return dict(each.split("=", 1) for each in text.split())


def _fill_factor(upkeep: Upkeep) -> Iterator[Finding]:
    filled = int(upkeep.own.get("fillfactor", 100))
    if filled < FILLED_MIN:
        yield Finding(
            "fillfactor",
            "warning",
            f"fillfactor is {filled} for {TABLE}: the table is larger by as much, and no claim is faster, because a "
            "completion changes a column with an index",
            f"ALTER TABLE {TABLE} RESET (fillfactor); and, when nothing is served, VACUUM FULL {TABLE};",
        )


def _dead_rows(run: Run, upkeep: Upkeep) -> Finding:
    found = run(Statement(DEAD))
    live, dead, vacuumed = found[0] if found else (0, 0, "never")
    detail = f"{dead} dead rows beside {live} live ones; last vacuumed: {vacuumed}"
    # The statistics count from a crash, a restore or a reset on; the number of the last vacuum or analyze survives.
    rows = max(live, upkeep.rows)
    if dead < DEAD_MIN or (dead <= rows / 2 and dead <= 2 * upkeep.dead_max):
        return Finding("dead rows", "ok", detail)
    return Finding(
        "dead rows",
        "warning",
        f"{detail}: reads pass over them, and the table is larger than it needs to be",
        f"VACUUM {TABLE}; and if they stay, end what holds them: a transaction that has been open for long "
        "(pg_stat_activity.xact_start), a prepared one (pg_prepared_xacts) or an unused replication slot",
    )


def _age(run: Run, upkeep: Upkeep) -> Finding:
    """How many transaction numbers are left. The server frees them by itself, unless something holds it back."""
    [(own, database)] = run(Statement(AGE))
    aimed = upkeep.settings["autovacuum_freeze_max_age"]
    oldest = max(own, database)
    where = TABLE if own == oldest else "a table of the same database"
    detail = f"{where} has rows from {oldest:,} transactions ago; the server stops all writes at {STOP_AT:,}"
    fix = f"VACUUM (FREEZE) {TABLE}; (the database's other tables: vacuumdb --freeze) and end what holds it back"
    if oldest > STOP_AT / 2:
        return Finding("transaction numbers", "problem", detail, fix)
    if oldest > 1.5 * aimed:
        return Finding(
            "transaction numbers",
            "warning",
            f"{detail}, and autovacuum, which should freeze them at {aimed:,.0f}, does not get there",
            fix,
        )
    return Finding("transaction numbers", "ok", f"{oldest:,} of {STOP_AT:,} are in use")
