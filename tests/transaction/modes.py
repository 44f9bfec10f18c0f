"""Every kind of connection that `within` takes, as one way to begin a transaction and to write one effect in it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiomysql
import aiosqlite
import asyncpg
import psycopg
import pymysql
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import semel
from servers.mariadb import arguments

CREATE = "CREATE TABLE effects (id integer PRIMARY KEY, name text NOT NULL)"
CREATE_MARIADB = (
    "CREATE TABLE effects (id integer AUTO_INCREMENT PRIMARY KEY, "
    "name varchar(250) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL)"
)
CREATE_POSTGRES = CREATE.replace("integer PRIMARY", "bigserial PRIMARY")
FIND_DEADLOCKS = "ALTER DATABASE {} SET deadlock_timeout = {}"
INSERT = "INSERT INTO effects (name) VALUES ({})"
LEVELS = {"read uncommitted": 1, "read committed": 2, "repeatable read": 3, "serializable": 4}
SNAPSHOTS = ("repeatable read", "serializable")
ON_POSTGRES = ("read committed", *SNAPSHOTS)
ON_MARIADBS = ("read committed", "repeatable read")
ON_SQLITE = ("DEFERRED", "IMMEDIATE")
ON_DJANGOS_SQLITE = (*ON_SQLITE, "EXCLUSIVE")
ON_SQLALCHEMYS_SQLITE = ("", "serializable", "read uncommitted")
DEADLOCK_MS = 50
TIMEOUT_S = 20


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effects"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


@dataclass(frozen=True)
class Mode:
    """`begin(url, level)` commits at its end; `write(connection, name)` is the effect. Both are coroutines if async."""

    name: str
    database: str
    begin: Callable[..., Any]
    write: Callable[[Any, str], Any]
    is_async: bool = False
    levels: tuple[str, ...] = ON_POSTGRES

    def opener(self, url: str, level: str = "") -> Callable[[], Any]:
        return partial(self.begin, url, level)

    def execute(self, connection: Any, sql: str) -> Any:
        """A statement without parameters, in the driver's own way; a coroutine if async. Django's cursor is closed."""
        if self in DJANGO or self.name.startswith("pymysql"):
            with connection.cursor() as cursor:
                cursor.execute(sql)
            return None
        if self.name == "aiomysql":
            return aiomysql_execute(connection, sql)
        return connection.execute(sa.text(sql) if self.name.startswith("sqlalchemy") else sql)

    def end(self, connection: Any, how: str) -> Any:
        """`commit` or `rollback`, behind the back of whoever began."""
        return self.execute(connection, how.upper()) if self in DJANGO else getattr(connection, how)()


def prepare(url: str) -> str:
    """Create the table of effects and those of the store, in the same database."""
    store: Any = semel.open_store(url)
    store.migrate()
    store.close()
    if url.startswith("sqlite"):
        with sqlite3.connect(path_of(url)) as lite:
            lite.execute(CREATE)
        lite.close()
    elif is_mariadb(url):
        mariadb_rows(url, CREATE_MARIADB)
    else:
        with psycopg.connect(url) as connection:
            connection.execute(CREATE_POSTGRES)
            database = sql.Identifier(connection.info.dbname)
            connection.execute(sql.SQL(FIND_DEADLOCKS).format(database, DEADLOCK_MS))
    return url


def is_mariadb(url: str) -> bool:
    return url.startswith(("mysql", "mariadb"))


def mariadb_rows(url: str, sql: str) -> Sequence[Any]:
    """What a statement of the test's own gives, on a connection of its own."""
    with closing(pymysql.connect(**arguments(url), autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        rows: Sequence[Any] = cursor.fetchall()
        return rows


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


def effects(url: str, name: str) -> int:
    """How often it took effect: counted from outside."""
    return ledger(url)[name]


def ledger(url: str) -> Counter[str]:
    """All effects, by name."""
    names = "SELECT name FROM effects"
    if url.startswith("sqlite"):
        lite = sqlite3.connect(path_of(url))
        rows = lite.execute(names).fetchall()
        lite.close()
        return Counter(name for (name,) in rows)
    if is_mariadb(url):
        return Counter(name for (name,) in mariadb_rows(url, names))
    with psycopg.connect(url) as connection:
        return Counter(name for (name,) in connection.execute(names))


# Drivers


@contextmanager
def psycopg_connection(url: str, level: str) -> Iterator[psycopg.Connection[Any]]:
    connection = psycopg.connect(url)
    if level:
        connection.isolation_level = psycopg.IsolationLevel(LEVELS[level])
    with connection:
        yield connection


@contextmanager
def psycopg_transaction(url: str, level: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        if level:
            connection.execute(f"SET default_transaction_isolation = '{level}'".encode())
        with connection.transaction():
            yield connection


@asynccontextmanager
async def psycopg_async(url: str, level: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    connection = await psycopg.AsyncConnection.connect(url)
    if level:
        await connection.set_isolation_level(psycopg.IsolationLevel(LEVELS[level]))
    async with connection:
        yield connection


@asynccontextmanager
async def asyncpg_transaction(url: str, level: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction(isolation=level.replace(" ", "_") or None):
            yield connection
    finally:
        await connection.close(timeout=TIMEOUT_S)


@contextmanager
def sqlite_connection(url: str, level: str) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path_of(url), timeout=TIMEOUT_S)
    if level:
        connection.isolation_level = level  # type: ignore[assignment]
    try:
        with connection:
            yield connection
    finally:
        connection.close()


@asynccontextmanager
async def aiosqlite_connection(url: str, level: str) -> AsyncIterator[aiosqlite.Connection]:
    async with aiosqlite.connect(path_of(url), timeout=TIMEOUT_S, isolation_level=None) as connection:
        await connection.execute(f"BEGIN {level or 'IMMEDIATE'}")
        try:
            yield connection
        except BaseException:
            await connection.rollback()
            raise
        await connection.commit()


@contextmanager
def pymysql_connection(url: str, level: str) -> Iterator[Any]:
    connection = pymysql.connect(**arguments(url))
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level or 'REPEATABLE READ'}")
        yield connection
        connection.commit()
    finally:
        connection.close()  # rolls back what is open


@contextmanager
def pymysql_begun(url: str, level: str) -> Iterator[Any]:
    with pymysql.connect(**arguments(url), autocommit=True, cursorclass=pymysql.cursors.DictCursor) as connection:
        with connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level or 'REPEATABLE READ'}")
        connection.begin()
        yield connection
        connection.commit()


@asynccontextmanager
async def aiomysql_connection(url: str, level: str) -> AsyncIterator[Any]:
    given = arguments(url)
    connection = await aiomysql.connect(db=given.pop("database"), **given)
    try:
        async with connection.cursor() as cursor:
            await cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level or 'REPEATABLE READ'}")
        yield connection
        await connection.commit()
    finally:
        connection.close()


# SQLAlchemy


def sqlalchemy_url(url: str, driver: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}+{driver}://{rest}"


def options(url: str, level: str) -> dict[str, Any]:
    chosen: dict[str, Any] = {"poolclass": sa.NullPool}
    if url.startswith("sqlite"):
        chosen["connect_args"] = {"timeout": TIMEOUT_S}
    if level:
        chosen["isolation_level"] = level.upper()
    return chosen


@contextmanager
def sqlalchemy_connection(driver: str, url: str, level: str) -> Iterator[sa.Connection]:
    with sa.create_engine(sqlalchemy_url(url, driver), **options(url, level)).begin() as connection:
        yield connection


@contextmanager
def sqlalchemy_session(driver: str, url: str, level: str) -> Iterator[Session]:
    with Session(sa.create_engine(sqlalchemy_url(url, driver), **options(url, level))) as session, session.begin():
        yield session


@asynccontextmanager
async def sqlalchemy_async_connection(driver: str, url: str, level: str) -> AsyncIterator[Any]:
    async with create_async_engine(sqlalchemy_url(url, driver), **options(url, level)).begin() as connection:
        yield connection


@asynccontextmanager
async def sqlalchemy_async_session(driver: str, url: str, level: str) -> AsyncIterator[AsyncSession]:
    engine = create_async_engine(sqlalchemy_url(url, driver), **options(url, level))
    async with AsyncSession(engine) as session, session.begin():
        yield session


# Django


def django_databases(postgres: str, sqlite: str, mariadb: str) -> dict[str, dict[str, Any]]:
    """The setting DATABASES: `default`, `lite` and `maria`, and one more of each for every level, by its name."""
    given = psycopg.conninfo.conninfo_to_dict(postgres)
    on_postgres = {"ENGINE": "django.db.backends.postgresql", "NAME": given["dbname"]}
    on_postgres |= {name.upper(): str(given[name]) for name in ("user", "password", "host", "port") if name in given}
    on_sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": path_of(sqlite)}
    databases: dict[str, dict[str, Any]] = {"default": {**on_postgres}}
    databases["lite"] = {**on_sqlite, "OPTIONS": {"timeout": TIMEOUT_S}}
    for level, number in LEVELS.items():
        chosen: dict[str, Any] = {"isolation_level": psycopg.IsolationLevel(number)}
        databases[f"default {level}"] = {**on_postgres, "OPTIONS": chosen}
    for level in ON_DJANGOS_SQLITE:
        databases[f"lite {level}"] = {**on_sqlite, "OPTIONS": {"timeout": TIMEOUT_S, "transaction_mode": level}}
    if mariadb:
        given = arguments(mariadb)
        named = {name.upper(): given[name] for name in ("user", "password", "host", "port")}
        on_mariadb = {"ENGINE": "django.db.backends.mysql", "NAME": given["database"], **named}
        databases["maria"] = {**on_mariadb}
        databases |= {f"maria {level}": {**on_mariadb, "OPTIONS": {"isolation_level": level}} for level in ON_MARIADBS}
    return databases


@contextmanager
def django_atomic(alias: str, url: str, level: str) -> Iterator[Any]:
    from django.db import connections, transaction

    using = f"{alias} {level}".strip()
    try:
        with transaction.atomic(using=using):
            yield connections[using]
    finally:
        connections[using].close()


def django_write(connection: Any, name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(INSERT.format("%s"), [name])


# What is written


def plain(mark: str) -> Callable[[Any, str], Any]:
    return lambda connection, name: connection.execute(INSERT.format(mark), [name])


async def asyncpg_write(connection: Any, name: str) -> None:
    await connection.execute(INSERT.format("$1"), name)


def text_write(connection: Any, name: str) -> Any:
    return connection.execute(sa.text(INSERT.format(":name")), {"name": name})


def orm_write(session: Any, name: str) -> None:
    """Not flushed: leaving the block must do that."""
    session.add(Effect(name=name))


async def orm_async_write(session: Any, name: str) -> None:
    session.add(Effect(name=name))


def pymysql_write(connection: Any, name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(INSERT.format("%s"), [name])


async def aiomysql_write(connection: Any, name: str) -> None:
    await aiomysql_execute(connection, INSERT.format("%s"), [name])


async def aiomysql_execute(connection: Any, sql: str, params: Sequence[Any] | None = None) -> None:
    async with connection.cursor() as cursor:
        await cursor.execute(sql, params)


def _sqlalchemy(driver: str, database: str, *, is_async: bool) -> list[Mode]:
    connect, session = (
        (sqlalchemy_async_connection, sqlalchemy_async_session)
        if is_async
        else (sqlalchemy_connection, sqlalchemy_session)
    )
    write: Callable[[Any, str], Any] = orm_async_write if is_async else orm_write
    levels = {"sqlite": ON_SQLALCHEMYS_SQLITE, "mariadb": ON_MARIADBS}.get(database, ON_POSTGRES)
    return [
        Mode(f"sqlalchemy-{driver}-connection", database, partial(connect, driver), text_write, is_async, levels),
        Mode(f"sqlalchemy-{driver}-session", database, partial(session, driver), write, is_async, levels),
    ]


ON_MARIADB = [
    Mode("pymysql", "mariadb", pymysql_connection, pymysql_write, levels=ON_MARIADBS),
    Mode("pymysql-begun", "mariadb", pymysql_begun, pymysql_write, levels=ON_MARIADBS),
    Mode("aiomysql", "mariadb", aiomysql_connection, aiomysql_write, is_async=True, levels=ON_MARIADBS),
    *_sqlalchemy("pymysql", "mariadb", is_async=False),
    *_sqlalchemy("aiomysql", "mariadb", is_async=True),
]
MODES = [
    Mode("psycopg", "postgres", psycopg_connection, plain("%s")),
    Mode("psycopg-transaction", "postgres", psycopg_transaction, plain("%s")),
    Mode("psycopg-async", "postgres", psycopg_async, plain("%s"), is_async=True),
    Mode("asyncpg", "postgres", asyncpg_transaction, asyncpg_write, is_async=True),
    *_sqlalchemy("psycopg", "postgres", is_async=False),
    *_sqlalchemy("asyncpg", "postgres", is_async=True),
    Mode("sqlite3", "sqlite", sqlite_connection, plain("?"), levels=ON_SQLITE),
    Mode("aiosqlite", "sqlite", aiosqlite_connection, plain("?"), is_async=True, levels=ON_SQLITE),
    *_sqlalchemy("pysqlite", "sqlite", is_async=False),
    *_sqlalchemy("aiosqlite", "sqlite", is_async=True),
    *ON_MARIADB,
]
DJANGO = [
    Mode("django-postgres", "postgres", partial(django_atomic, "default"), django_write, levels=tuple(LEVELS)),
    Mode("django-sqlite", "sqlite", partial(django_atomic, "lite"), django_write, levels=ON_DJANGOS_SQLITE),
    Mode("django-mariadb", "mariadb", partial(django_atomic, "maria"), django_write, levels=ON_MARIADBS),
]
Begin = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]
