"""`within(connection)`: a store bound to your transaction."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Generic, TypeVar, Unpack, cast, overload

from msgspec.structs import replace

from semel.codecs.payloads import payload_of
from semel.codecs.seal import Seal, check_seal
from semel.connections import (
    AsyncConnection,
    AsyncDriver,
    DjangoProxy,
    Driver,
    PooledConnection,
    SyncConnection,
    driver_for,
    is_async_driver,
)
from semel.core.messages import NO_HEADERS, Message, check_received_id
from semel.core.outbox import AddMessage, IdOrigin
from semel.core.records import Key
from semel.runtime.arguments import check_options
from semel.runtime.drive import adrive, drive
from semel.runtime.operation import current_operation
from semel.runtime.options import block_key
from semel.transaction.blocks import TransactionBlock
from semel.transaction.reception import MessageBlock
from semel.transaction.settings import ReceiveOptions, TransactionOptions, TransactionSettings

R = TypeVar("R")
D = TypeVar("D", bound=Driver | AsyncDriver)


class Binding(Generic[D]):
    """A store bound to one connection or session. It holds nothing, so make one whenever you need it."""

    def __init__(self, driver: D, seal: Seal | None) -> None:
        self._driver = driver
        self._seal = seal

    @overload
    def operation(
        self,
        key: str | Key,
        *,
        returns: type[R],
        scope: str = ...,
        tenant: str = ...,
        fingerprint: object = ...,
        **options: Unpack[TransactionOptions],
    ) -> TransactionBlock[R]: ...
    @overload
    def operation(
        self,
        key: str | Key,
        *,
        scope: str = ...,
        tenant: str = ...,
        fingerprint: object = ...,
        **options: Unpack[TransactionOptions],
    ) -> TransactionBlock[object]: ...
    def operation(
        self,
        key: str | Key,
        *,
        returns: Any = object,
        scope: str | None = None,
        tenant: str = "",
        fingerprint: object = None,
        **options: Unpack[TransactionOptions],
    ) -> TransactionBlock[Any]:
        """A block whose writes and whose record are committed together, or not at all.

        `scope` says what is done: it separates blocks that are given the same keys. `fingerprint` is any data that
        identifies the call: a repeat with another one is refused. `returns` is the type of `op.result` where that is
        more than plain data.
        """
        check_options(options, TransactionOptions, self.operation)
        named = block_key(key, tenant, scope)
        return TransactionBlock(
            self._driver, named, fingerprint, TransactionSettings[Any].of(returns, options), seal=self._seal
        )

    def receive(self, message_id: str, **options: Unpack[ReceiveOptions]) -> MessageBlock:
        """A block that handles a message once for each `handler`: its record is committed with what the block writes.

        `message.duplicate` says whether the handler has handled it before. A repeat that comes while the first delivery
        is being handled waits for the end of that transaction. Acknowledge the message to its broker after the commit.
        """
        check_options(options, ReceiveOptions, self.receive)
        handler, name = options.get("handler"), check_received_id(message_id)
        if not handler:
            raise TypeError(
                f'receive({name!r}) needs a handler: what handles the message, for instance handler="orders.mailer". '
                "Without one, a second handler of the same messages would take all of them for duplicates"
            )
        key = Key(options.get("tenant", ""), handler, name)
        settings = TransactionSettings[None].of_receive(options)
        return MessageBlock(self._driver, key, options.get("fingerprint"), settings, seal=self._seal)


class Bound(Binding[Driver]):
    """Bound to a connection or session for threads."""

    def publish(
        self,
        topic: str,
        payload: object,
        *,
        key: str | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
        id: str | None = None,
        content_type: str | None = None,
    ) -> str:
        """Add a message to the outbox: a relay publishes it if your transaction commits. Returns the message's id.

        The payload is bytes, text, or data that is written as JSON. Messages of one `key` are published in the order
        in which they were added. A message that is in the outbox already is not added again; another one under its id
        is refused with `MessageReused`, and the transaction can go on.

        Inside of an operation the id is derived from its key and the number of the message, so that a repeat of the
        operation adds the same message. Publish in the same order in each attempt. A number is not used again after
        you roll back to a savepoint: if a repeat may publish fewer or more messages before this one, give an `id`.
        Elsewhere the id is random. Payloads are not sealed.
        """
        self._driver.check()
        call = new_message(topic, payload, key, headers, id, content_type)
        drive(self._driver.engine.add_message(call), self._driver.perform)
        return call.message.id


class AsyncBound(Binding[AsyncDriver]):
    """Bound to a connection or session for tasks."""

    async def publish(
        self,
        topic: str,
        payload: object,
        *,
        key: str | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
        id: str | None = None,
        content_type: str | None = None,
    ) -> str:
        """As `Bound.publish`."""
        await self._driver.check()
        call = new_message(topic, payload, key, headers, id, content_type)
        await adrive(self._driver.engine.add_message(call), self._driver.perform)
        return call.message.id


@overload
def within(connection: AsyncConnection, *, schema: str = "", seal: Seal | None = None) -> AsyncBound: ...
@overload
def within(connection: SyncConnection, *, schema: str = "", seal: Seal | None = None) -> Bound: ...
@overload
def within(connection: DjangoProxy, *, schema: str = "", seal: Seal | None = None) -> Bound: ...
@overload
def within(connection: PooledConnection, *, schema: str = "", seal: Seal | None = None) -> AsyncBound: ...
@overload
def within(connection: object, *, schema: str = "", seal: Seal | None = None) -> Bound | AsyncBound: ...
def within(connection: object, *, schema: str = "", seal: Seal | None = None) -> Bound | AsyncBound:
    """Bind to the transaction of `connection`: of psycopg, asyncpg, sqlite3, aiosqlite, SQLAlchemy or Django.

    ```python
    import sqlite3
    import semel
    from semel.transaction import within

    semel.open_store("sqlite:///shop.db").migrate()
    connection = sqlite3.connect("shop.db", isolation_level=None)
    connection.execute("CREATE TABLE payments (amount INTEGER)")

    def pay(order: str, amount: int) -> object:
        connection.execute("BEGIN IMMEDIATE")
        with connection, within(connection).operation(order, scope="pay") as op:
            if not op.replayed:
                connection.execute("INSERT INTO payments VALUES (?)", (amount,))
                op.result = amount
        return op.result

    pay("order-1", 10)
    pay("order-1", 10)
    assert connection.execute("SELECT count(*) FROM payments").fetchone() == (1,)
    ```

    The row and the record commit together, or neither does. `.receive(message_id, handler=…)` does the same for a
    message, and `.publish(topic, payload)` adds a message that is sent if your transaction commits.

    The records are those of the ordinary store of that database. `schema` is the PostgreSQL schema of its tables, if
    the search path does not find them. `seal` is the one of that database's sealed store, if results are sealed.
    """
    check_seal(seal)
    driver = driver_for(connection, schema)
    return AsyncBound(driver, seal) if is_async_driver(driver) else Bound(cast(Driver, driver), seal)


def new_message(
    topic: str, payload: object, key: str | None, headers: Mapping[str, str], id: str | None, content_type: str | None
) -> AddMessage:
    """The message, checked before the operation counts it."""
    encoded, found_type = payload_of(payload)
    random = str(uuid.uuid4())
    chosen_type = found_type if content_type is None else content_type
    message = Message(random if id is None else id, topic, encoded, chosen_type, key, headers).checked()
    operation = current_operation()
    if id is not None:
        return AddMessage(message, IdOrigin.GIVEN)
    if operation is None:
        return AddMessage(message, IdOrigin.RANDOM)
    return AddMessage(replace(message, id=operation.next_message_id()), operation.key)
