"""The MariaDB store: one row for each key, a batch of calls in one round trip, every column compared as bytes.

The URL names the database: `mariadb://user:password@host:3306/database`. Its options: `migrate=auto` (create or upgrade
the tables on first use), `timeout_ms`, `pool_max`, `unix_socket`, `tls=true` (encrypt, and verify the server's
certificate), `tls_ca`, `tls_cert` and `tls_key` (files, each of which implies `tls=true`).
"""
