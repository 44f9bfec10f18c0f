"""Private PostgreSQL, Redis, PgBouncer and MariaDB servers for the tests, which may kill, pause and restart them."""
