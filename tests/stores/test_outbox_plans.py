"""How PostgreSQL settles a batch while its statistics know nothing of a backlog: by the primary key, each row once."""

from contextlib import closing
from uuid import uuid4

import psycopg

from outbox.shops import Shop
from semel.stores.postgres.outbox import settle
from semel.stores.postgres.sessions import SESSION
from servers.postgres import Postgres

ARGUMENTS = {
    "$1::bigint[]": "(SELECT array_agg(n) FROM generate_series(1, 100) n)",
    "$2::bigint[]": "array_fill(1::bigint, ARRAY[100])",
    "$3::bigint[]": "array_fill(1::bigint, ARRAY[100])",
    "$4::bigint[]": "array_fill(0::bigint, ARRAY[100])",
    "$5::text[]": "array_fill(''::text, ARRAY[100])",
    "$6::text[]": "array_fill(''::text, ARRAY[100])",
    "$7": "NULL",
}


def test_settling_reads_only_its_own_rows(postgres_server: Postgres) -> None:
    shop = Shop(postgres_server.create_database(f"plans_{uuid4().hex[:12]}"))
    shop.publish(range(1_000))
    query = settle("semel_outbox")
    for name, value in ARGUMENTS.items():
        assert name in query
        query = query.replace(name, value)
    with closing(psycopg.connect(shop.url)) as connection:
        for name, value in SESSION.items():
            connection.execute(f"SET {name} = '{value}'")
        plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN {query}"))
    assert "Index Scan using semel_outbox_pkey" in plan, plan
    assert "semel_outbox_waiting" not in plan
    shop.close()
