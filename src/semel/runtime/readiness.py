"""Looks at a store before the first request needs it, and logs what is missing: its tables, or its server.

A store that cannot be used does not stop the start-up: it may be away only for a moment.
"""

from __future__ import annotations

import logging
from typing import Any

from semel.core.records import Key
from semel.errors import StoreError, StoreMisconfigured

PROBE = Key("semel", "start-up", "probe")
"""A key that is never claimed. A store that can read it can be reached, and its tables fit this version."""
START_S = 2.0
"""How long a server that starts waits for its store. After that it takes requests, and the log line comes later."""
UNTIL_THEN = (
    'Until then every request with a key gets 503 (or runs unprotected, where Policy.on_store_error is "open").'
)
logger = logging.getLogger("semel")


def trouble_with(store: Any) -> StoreError | None:
    """Why the store cannot be used now; None if it can. `store` may give each request a transaction of its own."""
    asked = store.request() if getattr(store, "in_transactions", False) else store
    try:
        asked.get(PROBE)
    except StoreError as error:
        return error
    finally:
        if asked is not store:
            asked.end()
    return None


async def async_trouble_with(store: Any) -> StoreError | None:
    asked = store.request() if getattr(store, "in_transactions", False) else store
    try:
        await asked.get(PROBE)
    except StoreError as error:
        return error
    finally:
        if asked is not store:
            await asked.end()
    return None


def look_at(store: Any) -> None:
    """Log what is wrong with the store, if anything is."""
    try:
        _log(trouble_with(store))
    except Exception:
        logger.exception("the store could not be looked at")


async def async_look_at(store: Any) -> None:
    try:
        _log(await async_trouble_with(store))
    except Exception:
        logger.exception("the store could not be looked at")


def _log(trouble: StoreError | None) -> None:
    match trouble:
        case None:
            return
        case StoreMisconfigured():  # no tables, or tables of another version: it stays so until an operator acts
            logger.error("The store cannot be used: %s. %s", trouble, UNTIL_THEN)
        case _:
            logger.warning("The store does not answer: %s. %s", trouble, UNTIL_THEN)
