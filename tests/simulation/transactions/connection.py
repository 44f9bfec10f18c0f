"""What a process has of the database: a pool of connections, their driver, and who borrows which."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from semel.connections import Dialect, NamedRows
from semel.core.effects import Effect
from semel.stores.sql.errors import translated
from semel.stores.sql.statements import Statement
from simulation.transactions.database import ENGINE, WRITE, DatabaseError, Rows
from simulation.transactions.server import LOST, Session

if TYPE_CHECKING:
    from simulation.transactions.oracle import Entry
    from simulation.transactions.process import TransactionProcess

POOL_S = 30.0
"""How long a request waits for a connection of the pool."""


class Connection:
    """One connection, as drivers have them. It is for the task that borrowed it, and for that one's handler."""

    def __init__(self, process: TransactionProcess, session: Session) -> None:
        self.process = process
        self.session = session
        self.closed = False
        self.in_transaction = False
        self.borrower: asyncio.Task[Any] | None = None
        self.entry: Entry | None = None
        """The run whose handler has taken it."""
        self.is_busy = False
        self._held_back: list[tuple[int, int]] = []

    async def write(self, entry: int, part: int) -> None:
        self.check_user("written to")
        if self.process.world.scenario.driver.holds_back:
            self._held_back.append((entry, part))
        else:
            await self._insert((entry, part))

    async def flush(self) -> None:
        while self._held_back:
            await self._insert(self._held_back[0])
            self._held_back.pop(0)

    async def _insert(self, row: tuple[int, int]) -> None:
        try:
            await self.execute(WRITE, row)
        except DatabaseError as error:
            if self.entry is not None:
                self.entry.struck = error.sqlstate
            raise

    async def begin(self) -> None:
        self._held_back.clear()
        self.in_transaction = True
        await self.execute("BEGIN")

    async def commit(self) -> None:
        await self.flush()
        await self._end("COMMIT")

    async def roll_back(self) -> None:
        await self._end("ROLLBACK")

    async def _end(self, sql: str) -> None:
        try:
            await self.execute(sql)
        except DatabaseError as error:
            self.in_transaction = self.in_transaction and error.sqlstate == LOST
            raise
        self.in_transaction = False

    async def execute(self, sql: str, params: Sequence[Any] = ()) -> Rows:
        self.check_user(f"used for {sql.split(maxsplit=1)[0]}")
        if self.closed:
            raise DatabaseError(LOST, "the connection is closed")
        self.is_busy = True
        try:
            return await self._ask(sql, params)
        finally:
            self.is_busy = False

    async def _ask(self, sql: str, params: Sequence[Any]) -> Rows:
        server = self.process.world.server
        reply = server.ask(self.session, sql, params)
        try:
            return await asyncio.shield(reply)
        except asyncio.CancelledError:
            if self.process.world.scenario.driver.on_cancel == "closes":
                self.close()
                raise
            server.cancel(self.session)
            try:
                await asyncio.shield(reply)
            except asyncio.CancelledError:
                self.close()
            except DatabaseError as error:
                if error.sqlstate == LOST:
                    self.close()
            raise
        except DatabaseError as error:
            if error.sqlstate == LOST:
                self.close()
            raise

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.process.world.server.close(self.session)

    def check_user(self, how: str) -> None:
        """The task that borrowed it may use it, and its handler for as long as that works; one at a time."""
        task, world, entry = asyncio.current_task(), self.process.world, self.entry
        handles = entry is not None and entry.task is task and entry.is_working()
        if world.over:
            return
        if task is not self.borrower and not handles:
            whose = "after it was handed back" if self.borrower is None else "by another task"
            world.oracle.violated("one-task-for-one-connection", f"a connection was {how} {whose}")
        elif self.is_busy:
            world.oracle.violated("one-task-for-one-connection", f"a connection was {how} in the middle of a statement")
        elif not handles and entry is not None and entry.is_working():
            world.oracle.violated("a-handler-keeps-its-connection", f"a connection was {how} under its handler")


class Driver:
    """Runs the scripts of the real engine on such a connection."""

    dialect = Dialect.POSTGRES
    engine = ENGINE

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def check(self) -> None:
        """It is in a transaction."""

    async def perform(self, statement: Effect[Any]) -> Rows:
        assert isinstance(statement, Statement)
        assert not isinstance(statement.params, dict)
        with translated():
            return await self._connection.execute(statement.sql, list(statement.params))

    async def named(self, statement: Statement) -> NamedRows:
        raise NotImplementedError("no history asks for names")

    async def flush(self) -> None:
        await self._connection.flush()

    def is_lost(self) -> bool:
        return self._connection.closed


class Pool:
    """A fixed number of connections. One that comes back in a transaction, or broken, is thrown away."""

    def __init__(self, process: TransactionProcess) -> None:
        self.process = process
        self.borrowed: list[Connection] = []
        self._idle: list[Connection] = []
        self._room = asyncio.Semaphore(process.world.scenario.driver.pool_size)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Connection]:
        """A transaction on a connection of the pool, as `async_sessionmaker.begin` gives it."""
        connection = await self._borrow()
        try:
            await connection.begin()
            try:
                yield connection
            except BaseException:
                if not self.process.world.over:  # else a dead process is being collected
                    await connection.roll_back()
                raise
            await connection.commit()
        finally:
            self._hand_back(connection)

    async def _borrow(self) -> Connection:
        if self._room.locked():
            self.process.world.reached.add("pool used up")
        async with asyncio.timeout(POOL_S if self._room.locked() else None):
            await self._room.acquire()
        try:
            connection = self._idle.pop() if self._idle else await self._connect()
        except BaseException:
            self._room.release()
            raise
        task = connection.borrower = asyncio.current_task()
        assert task is not None
        self.borrowed.append(connection)
        task.add_done_callback(self._check_ended)
        return connection

    async def _connect(self) -> Connection:
        session, reply = self.process.world.server.connect(self.process)
        connection = Connection(self.process, session)
        try:
            await asyncio.shield(reply)
        except BaseException:
            connection.close()
            raise
        return connection

    def _hand_back(self, connection: Connection) -> None:
        if self.process.world.over:
            return
        connection.check_user("handed back")
        self.borrowed.remove(connection)
        connection.borrower = connection.entry = None
        if connection.in_transaction:
            connection.close()
        if not connection.closed:
            self._idle.append(connection)
        self._room.release()

    def _check_ended(self, task: asyncio.Task[Any]) -> None:
        world = self.process.world
        if not world.over and any(connection.borrower is task for connection in self.borrowed):
            world.oracle.violated("a-task-ends-what-it-began", f"a task of {self.process.name} kept its connection")
