"""The PostgreSQL store: one row for each key, one statement for each batch of calls, one round trip for each statement.

Options of the URL: `schema` (where the tables live; default: the search path), `migrate=auto` (create or upgrade them
on first use), `timeout_ms`, `pool_max`, `prepare=false` (for poolers that are not recognised). Those of
libpq (`sslmode`, …) are taken, too.
"""
