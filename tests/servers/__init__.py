"""Private PostgreSQL, Redis and PgBouncer servers for the tests, which may kill, pause and restart them."""
