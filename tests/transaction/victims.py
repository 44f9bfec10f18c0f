"""A process whose children run one operation each, in every mode, and are killed before or after a chosen statement.

It prints `mode number keys…` for what it did, and is asked for a second pass in which nobody is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import django
from django.conf import settings
from pymysql import install_as_MySQLdb

from semel.connections import aiomysql, aiosqlite, asyncpg, psycopg, pymysql, sqlalchemy, sqlite3
from semel.connections import django as on_django
from semel.transaction import within
from transaction.modes import DJANGO, MODES, Mode, django_databases

RESULT = {"answer": 42}
POINTS_MAX = 100
DRIVERS: tuple[Any, ...] = (
    pymysql.PymysqlDriver,
    aiomysql.AiomysqlDriver,
    psycopg.PsycopgDriver,
    psycopg.AsyncPsycopgDriver,
    asyncpg.AsyncpgDriver,
    sqlite3.SqliteDriver,
    aiosqlite.AiosqliteDriver,
    sqlalchemy.SqlalchemyDriver,
    on_django.DjangoDriver,
)


class Points:
    """Counts the places before and after every statement, and dies at one of them."""

    def __init__(self, fatal: int | None) -> None:
        self.fatal = fatal
        self.passed = 0

    def here(self) -> None:
        if self.passed == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        self.passed += 1

    def watch(self) -> None:
        """Count the statements of ours, in whichever driver they run."""
        for driver in DRIVERS:
            driver.perform = self._around(driver.perform, is_async=asyncio.iscoroutinefunction(driver.perform))

    def _around(self, perform: Any, *, is_async: bool) -> Any:
        def counted(driver: Any, statement: Any) -> Any:
            self.here()
            rows = perform(driver, statement)
            self.here()
            return rows

        async def acounted(driver: Any, statement: Any) -> Any:
            self.here()
            rows = await perform(driver, statement)
            self.here()
            return rows

        return acounted if is_async else counted


def operate(mode: Mode, url: str, key: str, points: Points) -> object:
    """The operation, which also receives and publishes, with points around its effect and the transaction's end."""
    with mode.begin(url, "") as connection:
        points.here()
        with within(connection).operation(key, scope="operation") as op:
            if op.replayed:
                return op.result
            mode.write(connection, key)
            points.here()
            with within(connection).receive(key, handler="victim") as message:
                assert not message.duplicate
                within(connection).publish(key, RESULT)
            op.result = RESULT
        points.here()
    points.here()
    return op.result


async def aoperate(mode: Mode, url: str, key: str, points: Points) -> object:
    async with mode.begin(url, "") as connection:
        points.here()
        async with within(connection).operation(key, scope="operation") as op:
            if op.replayed:
                return op.result
            await mode.write(connection, key)
            points.here()
            async with within(connection).receive(key, handler="victim") as message:
                assert not message.duplicate
                await within(connection).publish(key, RESULT)
            op.result = RESULT
        points.here()
    points.here()
    return op.result


async def aoperated(mode: Mode, url: str, keys: Sequence[str], points: Points) -> list[object]:
    return [await aoperate(mode, url, key, points) for key in keys]


def child(mode: Mode, url: str, keys: Sequence[str], fatal: int | None) -> bool:
    """Run the operations in a child; says whether that was killed."""
    pid = os.fork()
    if pid == 0:
        points = Points(fatal)
        points.watch()
        try:
            if mode.is_async:
                results = asyncio.run(aoperated(mode, url, keys, points))
            else:
                results = [operate(mode, url, key, points) for key in keys]
            os._exit(0 if results == [RESULT] * len(keys) else 3)
        except BaseException as error:
            print("failed", mode.name, *keys, repr(error), flush=True)
            os._exit(4)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return True
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"{mode.name} {keys}: exit status {os.waitstatus_to_exitcode(status)}")
    return False


def configure(postgres: str, sqlite: str, mariadb: str = "", **more: Any) -> None:
    """Django's MariaDB is on PyMySQL: mysqlclient has to be compiled."""
    install_as_MySQLdb()
    settings.configure(DATABASES=django_databases(postgres, sqlite, mariadb), USE_TZ=True, **more)
    django.setup()


def main(postgres: str, sqlite: str, mariadb: str, *names: str) -> None:
    configure(postgres, sqlite, mariadb)
    urls = {"postgres": postgres, "sqlite": sqlite, "mariadb": mariadb}
    killed: dict[Mode, list[str]] = {}
    for mode in (mode for mode in [*MODES, *DJANGO] if mode.name in names):
        for fatal in range(POINTS_MAX):
            key = f"{mode.name}.{fatal}"
            if not child(mode, urls[mode.database], [key], fatal):
                break
            killed.setdefault(mode, []).append(key)
            print("killed", mode.name, mode.database, fatal, key, flush=True)
    print("pass 2", flush=True)
    sys.stdin.readline()  # until somebody has looked at what is there
    for mode, keys in killed.items():
        child(mode, urls[mode.database], keys, None)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
