"""What a consumer asks of a database beside the transaction that handles a message: is it recorded, and did it fail."""

from __future__ import annotations

from typing import cast

from semel.connections import AsyncDriver, Driver, driver_for
from semel.core.attempts import CountAttempt
from semel.core.records import Key
from semel.runtime.drive import adrive, drive


def count_attempt(connection: object, call: CountAttempt, *, schema: str = "") -> int:
    """Count a failed attempt, in the transaction of `connection`, which must not be the one that failed."""
    driver = cast(Driver, driver_for(connection, schema))
    driver.check()
    return drive(driver.engine.count_attempt(call), driver.perform)


async def acount_attempt(connection: object, call: CountAttempt, *, schema: str = "") -> int:
    """The same for tasks."""
    driver = cast(AsyncDriver, driver_for(connection, schema))
    await driver.check()
    return await adrive(driver.engine.count_attempt(call), driver.perform)


def is_recorded(connection: object, key: Key, *, schema: str = "") -> bool:
    """Whether the transaction of `connection` sees a record of `key`."""
    driver = cast(Driver, driver_for(connection, schema))
    driver.check()
    return drive(driver.engine.read(key), driver.perform) is not None


async def ais_recorded(connection: object, key: Key, *, schema: str = "") -> bool:
    """The same for tasks."""
    driver = cast(AsyncDriver, driver_for(connection, schema))
    await driver.check()
    return await adrive(driver.engine.read(key), driver.perform) is not None
