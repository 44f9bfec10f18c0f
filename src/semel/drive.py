"""Runs plans against a store. The drivers decide nothing: they perform effects, and hand back replies and failures."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from semel.core.effects import Claim, Complete, Effect, Emit, Pause, Plan, Read, Release, Renew, Wait
from semel.errors import StoreError
from semel.events import Event, EventKind
from semel.store import AsyncStore, AsyncWatchable, Store, Watchable
from semel.timing import CallListener, Timing

T = TypeVar("T")
OnEvent = Callable[[Event], None]
logger = logging.getLogger("semel")
POLL_MS = 50
"""How often a store that cannot be watched is asked again."""


SERIOUS = frozenset({EventKind.STORE_FAILED, EventKind.NOT_STORED, EventKind.UNREADABLE})
"""What an operator must hear of although no caller is told why."""


def logged(on_event: OnEvent) -> OnEvent:
    """Log each event (what is serious as an error, the rest for debugging), then tell `on_event`."""

    def tell(event: Event) -> None:
        level = logging.ERROR if event.kind in SERIOUS else logging.DEBUG
        if logger.isEnabledFor(level):
            log_event(logger, level, event)
        on_event(event)

    # Who asks for further abilities of the listener finds it behind this.
    return functools.update_wrapper(tell, on_event, assigned=(), updated=())


def log_event(logger: logging.Logger, level: int, event: Event) -> None:
    """As a line for people, and as `semel_…` attributes of the log record for formatters that write JSON."""
    logger.log(level, "%s", event, extra={f"semel_{name}": value for name, value in event.fields().items()})


def ignore(event: Event) -> None:
    """The listener of those who do not listen."""


def drive(plan: Plan[T], perform: Callable[[Effect[Any]], Any]) -> T:
    """Run a plan to its end. A store's failure is thrown into the plan; anything else ends it."""
    try:
        step: Callable[[Any], Effect[Any]] = plan.send
        given: Any = None
        while True:
            try:
                effect = step(given)
            except StopIteration as stop:
                value: T = stop.value
                return value
            try:
                step, given = plan.send, perform(effect)
            except StoreError as error:
                step, given = plan.throw, error
    finally:
        plan.close()


async def adrive(plan: Plan[T], perform: Callable[[Effect[Any]], Awaitable[Any]]) -> T:
    """The same for coroutines."""
    try:
        step: Callable[[Any], Effect[Any]] = plan.send
        given: Any = None
        while True:
            try:
                effect = step(given)
            except StopIteration as stop:
                value: T = stop.value
                return value
            try:
                step, given = plan.send, await perform(effect)
            except StoreError as error:
                step, given = plan.throw, error
    finally:
        plan.close()


def performer(store: Store, on_event: OnEvent = ignore) -> Callable[[Effect[Any]], Any]:
    """Perform effects on `store`."""
    listener = _call_listener(on_event)

    def perform(effect: Effect[Any]) -> Any:
        match effect:
            case Wait(key, owner, timeout_ms):
                started = time.monotonic()
                if isinstance(store, Watchable):
                    store.wait(key, owner=owner, timeout_ms=timeout_ms)
                else:
                    time.sleep(min(timeout_ms, POLL_MS) / 1000)
                return _ms_since(started)
            case Pause(pause_ms):
                time.sleep(pause_ms / 1000)
                return round(time.monotonic() * 1000)
            case Emit(event):
                tell(on_event, event)
            case _ if listener is None:
                return _ask(store, effect)
            case _:
                with Timing(listener, _name(effect)):
                    return _ask(store, effect)

    return perform


def async_performer(store: AsyncStore, on_event: OnEvent = ignore) -> Callable[[Effect[Any]], Awaitable[Any]]:
    """Perform effects on an async `store`."""
    listener = _call_listener(on_event)

    async def perform(effect: Effect[Any]) -> Any:
        match effect:
            case Wait(key, owner, timeout_ms):
                started = time.monotonic()
                if isinstance(store, AsyncWatchable):
                    await store.wait(key, owner=owner, timeout_ms=timeout_ms)
                else:
                    await asyncio.sleep(min(timeout_ms, POLL_MS) / 1000)
                return _ms_since(started)
            case Pause(pause_ms):
                await asyncio.sleep(pause_ms / 1000)
                return round(time.monotonic() * 1000)
            case Emit(event):
                tell(on_event, event)
            case _ if listener is None:
                return await _ask(store, effect)
            case _:
                with Timing(listener, _name(effect)):
                    return await _ask(store, effect)

    return perform


def _ask(store: Store | AsyncStore, call: Effect[Any]) -> Any:
    """Make the call that the effect names. Both faces spell it the same way; the async one answers with a coroutine."""
    match call:
        case Claim(key, fingerprint, owner, lease_ms, retention_ms, takeover):
            return store.claim(
                key, fingerprint, owner=owner, lease_ms=lease_ms, retention_ms=retention_ms, takeover=takeover
            )
        case Complete(lease, result, retention_ms, refuse_ms):
            return store.complete(lease, result, retention_ms=retention_ms, refuse_ms=refuse_ms)
        case Renew(lease, lease_ms):
            return store.renew(lease, lease_ms=lease_ms)
        case Release(lease):
            return store.release(lease)
        case Read(key):
            return store.get(key)
        case _:
            raise TypeError(f"no store performs {call!r}")


def _call_listener(on_event: OnEvent) -> CallListener | None:
    """The listener, if it wants to know how long the store takes; those who do not pay nothing for it."""
    listener: object = inspect.unwrap(on_event)
    return listener if isinstance(listener, CallListener) else None


def _name(call: Effect[Any]) -> str:
    return type(call).__name__.lower()


def tell(on_event: OnEvent, event: Event) -> None:
    """A listener that fails must not change what becomes of the key, or of its answer."""
    try:
        on_event(event)
    except Exception:
        logger.exception("the listener failed on %s", event.kind.value)


def _ms_since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
