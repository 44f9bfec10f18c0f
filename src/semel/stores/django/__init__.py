"""The store on Django's own connections: `django://default`, where `default` is an alias of `settings.DATABASES`.

It uses the tables and the scripts of the SQLite, PostgreSQL and MariaDB stores, through Django's cursors, in
transactions of its own. A record must never be part of the caller's transaction, or a rollback would take it along with
the work: inside `atomic` every call is refused. (A `TestCase` is the exception: Django's own `durable` transactions
make the same one.)

Waiting for a key polls. Where many wait, open a store of its own with `postgresql://`: it can use the same tables.
"""
