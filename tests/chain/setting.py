"""What the processes of the chain are told by their environment, and the SQL that they share."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

VARIABLE = "SEMEL_CHAIN"
TOPIC, DIRECT = "orders", "direct"
INBOX, MARK_FIRST, BARE = "inbox", "mark_first", "bare"
ARMS = (INBOX, MARK_FIRST, BARE)
AUDIT, DEAD = "audit", "dead"
CUSTOMERS = 6
TABLES = (
    "CREATE TABLE customers (id text PRIMARY KEY, last integer NOT NULL)",
    "CREATE TABLE orders (name text PRIMARY KEY, customer text NOT NULL, number integer NOT NULL)",
    "CREATE TABLE direct_orders (run text PRIMARY KEY, name text NOT NULL)",
    "CREATE TABLE ledger (arm text NOT NULL, name text NOT NULL, message text NOT NULL)",
    "CREATE TABLE marks (message text PRIMARY KEY)",
    *(f"INSERT INTO customers VALUES ('c{number}', 0)" for number in range(CUSTOMERS)),
)


@dataclass(frozen=True, slots=True)
class Setting:
    database_url: str
    broker: str
    """Which broker it is: rabbitmq, nats or redis."""
    broker_url: str
    publisher_url: str
    lease_s: float = 3.0

    def environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def read(cls) -> Setting:
        return cls(**json.loads(os.environ[VARIABLE]))

    def engine(self) -> AsyncEngine:
        url = self.database_url.replace("postgresql://", "postgresql+asyncpg://")
        return create_async_engine(url, pool_size=10, pool_pre_ping=True, connect_args={"timeout": 5})


async def execute(session: AsyncSession, sql: str, **values: Any) -> Any:
    return await session.execute(text(sql), values)
