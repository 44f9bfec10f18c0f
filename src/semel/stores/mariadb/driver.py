"""One connection to MariaDB, set up for our packets, in both faces; and all that we use of the drivers' internals.

- `Connection._read_timeout` of PyMySQL: how long one read waits. A call has one deadline for all that it waits for, and
  PyMySQL takes this time only when it connects. Without it, each read has the whole time of a call.

Everything else is public: `cursor`, `execute`, `fetchall`, `nextset`, `close`, `server_status`. Values stand in the
text of our statements (`packets.literal`), so the drivers' own quoting is not used: that of aiomysql 0.3 cannot write
bytes with PyMySQL 1.2.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

import aiomysql
import pymysql
from pymysql.constants import CLIENT, SERVER_STATUS

from semel.core.effects import Effect, T, do
from semel.errors import StoreMisconfigured
from semel.runtime.drive import adrive, drive
from semel.stores.mariadb.failures import PACKET, ROLLED_BACK, failure_of, number_of_failure
from semel.stores.mariadb.packets import Packet, packet
from semel.stores.mariadb.settings import MariadbSettings
from semel.stores.mariadb.versions import refuse_server
from semel.stores.sql.statements import Rows, Script, Statement

if TYPE_CHECKING:
    from pymysql.connections import Connection

TRIES_MAX = 5
"""How often a packet is sent that the server rolled back because of others (deadlock)."""
LEAST_S = 0.001
IDLE_MAX_S = 31_536_000
"""The most that the server takes. By default it closes a connection that was idle for 8 hours."""
STRICT = "STRICT_ALL_TABLES"
ISOLATION = "READ-COMMITTED"
LOCK_PREFIX = "semel."
Sets = list[Rows]


class MariadbLinkState:
    """What both faces know about their connection."""

    lost_before = 0  # for a pool, which keeps several
    due_s: float | None = None
    """When the call that uses this connection now must have ended; None gives each packet its whole time."""

    def __init__(self, connection: Any, settings: MariadbSettings) -> None:
        self.backend = LOCK_PREFIX + secrets.token_hex(16)
        """The name of a lock that this connection holds for as long as the server works for it."""
        self._connection = connection
        self._settings = settings
        self._packet_max = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def _in_transaction(self) -> bool:
        return bool(self._connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)

    def _give_up_s(self) -> float:
        return time.monotonic() + self._settings.timeout_s if self.due_s is None else self.due_s

    def _text_of(self, effect: Effect[Any]) -> str:
        match effect:
            case Packet(sql):
                text = ";\n".join(sql)
            case Statement(sql=sql):
                text = sql
            case other:
                raise TypeError(f"no connection performs {other!r}")
        if 0 < self._packet_max < len(text):
            raise StoreMisconfigured(
                f"{self._settings.shown}: what is to be stored takes a packet of {len(text):,} bytes, and "
                f"max_allowed_packet of the server is {self._packet_max:,}; {PACKET}"
            )
        return text

    def _failure(self, error: Exception) -> Exception:
        return failure_of(error, self._settings.shown, is_late=time.monotonic() >= self._give_up_s())

    def _set_up(self) -> Script[None]:
        """What comes after connecting: the session's settings. They are read back, since a proxy may have kept them."""
        refuse_server(self._connection.get_server_info(), self._settings.shown)
        seconds = -(-self._settings.timeout_ms // 1000)
        *_, variables = yield from do(
            packet(
                f"SET SESSION autocommit = 1, sql_mode = '{STRICT},NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', "
                f"innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}, wait_timeout = {IDLE_MAX_S}, "
                f"max_statement_time = {self._settings.timeout_s:g}, sql_notes = 0",
                "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
                f"SELECT GET_LOCK('{self.backend}', 0)",
                "SHOW SESSION VARIABLES WHERE Variable_name IN "
                "('autocommit', 'sql_mode', 'tx_isolation', 'max_allowed_packet')",
            )
        )
        found: dict[str, str] = dict(variables)
        ours = STRICT in found["sql_mode"] and found["tx_isolation"] == ISOLATION and found["autocommit"] == "ON"
        if not ours:
            raise StoreMisconfigured(
                f"{self._settings.shown}: the session is {found!r}, although strict mode, READ COMMITTED and "
                "autocommit were set: what stands between here and the server must keep a session's settings"
            )
        self._packet_max = int(found["max_allowed_packet"])


class MariadbLink(MariadbLinkState):
    """Runs our packets. After a failure it is closed, so that no later call reads its answer."""

    @classmethod
    def open(cls, settings: MariadbSettings, due_s: float) -> Self:
        left_s = max(LEAST_S, due_s - time.monotonic())
        try:
            connection: Connection[Any] = pymysql.connect(
                **settings.place,
                ssl_disabled=settings.place["ssl"] is None,
                database=settings.database,
                charset="utf8mb4",
                autocommit=None,
                client_flag=CLIENT.MULTI_STATEMENTS,
                connect_timeout=left_s,
                read_timeout=left_s,
                write_timeout=settings.timeout_s,
            )
        except Exception as error:
            raise failure_of(error, settings.shown, is_late=time.monotonic() >= due_s) from error
        link = cls(connection, settings)
        link.due_s = due_s
        try:
            drive(link._set_up(), link.perform)
        except BaseException:
            link.close()
            raise
        return link

    def run(self, script: Script[T]) -> T:
        try:
            return drive(script, self.perform)
        finally:
            if not self._closed and self._in_transaction:
                self.close()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """MariaDB has no transactions of changes to a schema."""
        yield

    def perform(self, effect: Effect[Any]) -> Any:
        text = self._text_of(effect)
        tries, begun = 1, self._in_transaction
        while True:
            try:
                sets = self._exchange(text)
                return sets if isinstance(effect, Packet) else sets[0]
            except Exception as error:
                if begun or tries == TRIES_MAX or number_of_failure(error) not in ROLLED_BACK:
                    self.close()
                    raise self._failure(error) from error
                tries += 1
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._connection.close()

    def _exchange(self, text: str) -> Sets:
        self._connection._read_timeout = max(LEAST_S, self._give_up_s() - time.monotonic())
        with self._connection.cursor() as cursor:
            cursor.execute(text)
            sets: Sets = [cursor.fetchall() if cursor.description else ()]
            while cursor.nextset():
                sets.append(cursor.fetchall() if cursor.description else ())
            return sets


class AsyncMariadbLink(MariadbLinkState):
    """The same for coroutines."""

    @classmethod
    async def open(cls, settings: MariadbSettings, due_s: float) -> Self:
        place = {**settings.place, "autocommit": None}
        try:
            async with asyncio.timeout(due_s - time.monotonic()):
                connection = await aiomysql.connect(**place, db=settings.database, charset="utf8mb4")
        except Exception as error:
            raise failure_of(error, settings.shown, is_late=time.monotonic() >= due_s) from error
        link = cls(connection, settings)
        link.due_s = due_s
        try:
            await adrive(link._set_up(), link.perform)
        except BaseException:
            await link.close()
            raise
        return link

    async def run(self, script: Script[T]) -> T:
        try:
            return await adrive(script, self.perform)
        finally:
            if not self._closed and self._in_transaction:
                await self.close()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        yield

    async def perform(self, effect: Effect[Any]) -> Any:
        text = self._text_of(effect)
        tries, begun = 1, self._in_transaction
        while True:
            try:
                async with asyncio.timeout(self._give_up_s() - time.monotonic()):
                    sets = await self._exchange(text)
                return sets if isinstance(effect, Packet) else sets[0]
            except Exception as error:
                if begun or tries == TRIES_MAX or number_of_failure(error) not in ROLLED_BACK:
                    await self.close()
                    raise self._failure(error) from error
                tries += 1
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        """Without a word to the server: it may not be listening."""
        if not self._closed:
            self._closed = True
            self._connection.close()

    def __del__(self) -> None:
        """aiomysql's own `__del__` fails when the event loop of the connection has ended."""
        if not self._closed:
            with suppress(RuntimeError):
                self._connection.close()

    async def _exchange(self, text: str) -> Sets:
        async with self._connection.cursor() as cursor:
            await cursor.execute(text)
            sets: Sets = [await cursor.fetchall() if cursor.description else ()]
            while await cursor.nextset():
                sets.append(await cursor.fetchall() if cursor.description else ())
            return sets
