"""Where the example keeps its rows, and which broker carries its messages: two variables, shared by all processes."""

import os

from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

STORE = os.environ.get("ORDERS_STORE", "sqlite:///orders.db")
"""semel's URL of the database: `sqlite:///…` or `postgresql://…`. The rows of the shop are in the same database."""
BROKER = os.environ.get("ORDERS_BROKER", "http://127.0.0.1:8082/")
"""`amqp://…`, or the address of `shipping.py`, to which the relay then sends webhooks."""
SECRET = "whsec_b25seSBmb3IgdGhpcyBleGFtcGxl"
"""Signs the webhooks."""

DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
scheme, _, rest = STORE.partition("://")
engine = create_async_engine(f"{DRIVERS[scheme]}://{rest}")
Session = async_sessionmaker(engine, expire_on_commit=False)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    item: Mapped[str]


class Shipment(Base):
    __tablename__ = "shipments"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]
    item: Mapped[str]
