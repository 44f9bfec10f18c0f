"""Performs the effects of plans on a store, for sync and for async code (the two faces of a store)."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any

from semel.core.effects import Claim, Complete, Doubts, Effect, Emit, Pause, Read, Release, Renew, Wait, Within
from semel.runtime.deadline import shared_deadline
from semel.runtime.durations import CallListener, Timing
from semel.runtime.listener import OnEvent, ignore
from semel.store import AsyncDoubting, AsyncStore, AsyncWatchable, Doubting, Store, Watchable

Performers = Mapping[type[Effect[Any]], Callable[[Any], Any]]
"""The function that performs each kind of effect."""
NO_OTHERS: Performers = MappingProxyType({})
NO_DOUBTS: frozenset[str] = frozenset()
POLL_MS = 50
"""How often a store that cannot be watched is asked again."""


def performer(store: Store, on_event: OnEvent = ignore, others: Performers = NO_OTHERS) -> Callable[[Effect[Any]], Any]:
    """Perform effects on `store`; `others` performs effects that are not about the store."""

    def emit(effect: Emit) -> None:
        on_event(effect.event)

    def wait(effect: Wait) -> int:
        started = time.monotonic()
        if isinstance(store, Watchable):
            store.wait(effect.key, owner=effect.owner, timeout_ms=effect.timeout_ms)
        else:
            time.sleep(min(effect.timeout_ms, POLL_MS) / 1000)
        return _ms_since(started)

    def pause(effect: Pause) -> int:
        time.sleep(_pause_s(effect))
        return round(time.monotonic() * 1000)

    def doubts(effect: Doubts) -> frozenset[str]:
        return store.doubts(effect.before) if isinstance(store, Doubting) else NO_DOUBTS

    def within(effect: Within[Any]) -> Any:
        with shared_deadline(effect.due_ms / 1000):
            return ask(effect.call)

    ask = asking(store, on_event)
    return _by_kind({Emit: emit, Wait: wait, Pause: pause, Doubts: doubts, Within: within, **others}, ask)


def async_performer(
    store: AsyncStore, on_event: OnEvent = ignore, others: Performers = NO_OTHERS
) -> Callable[[Effect[Any]], Awaitable[Any]]:
    """The same for an async `store`."""

    async def emit(effect: Emit) -> None:
        on_event(effect.event)

    async def wait(effect: Wait) -> int:
        started = time.monotonic()
        if isinstance(store, AsyncWatchable):
            await store.wait(effect.key, owner=effect.owner, timeout_ms=effect.timeout_ms)
        else:
            await asyncio.sleep(min(effect.timeout_ms, POLL_MS) / 1000)
        return _ms_since(started)

    async def pause(effect: Pause) -> int:
        await asyncio.sleep(_pause_s(effect))
        return round(time.monotonic() * 1000)

    async def doubts(effect: Doubts) -> frozenset[str]:
        return await store.doubts(effect.before) if isinstance(store, AsyncDoubting) else NO_DOUBTS

    async def within(effect: Within[Any]) -> Any:
        with shared_deadline(effect.due_ms / 1000):
            return await ask(effect.call)

    ask = async_asking(store, on_event)
    return _by_kind({Emit: emit, Wait: wait, Pause: pause, Doubts: doubts, Within: within, **others}, ask)


def _by_kind(performers: Performers, ask: Callable[[Effect[Any]], Any]) -> Callable[[Effect[Any]], Any]:
    """An effect without a performer is a call on the store. This awaits nothing, so both faces share it."""
    find: Callable[..., Callable[[Effect[Any]], Any]] = performers.get

    def perform(effect: Effect[Any]) -> Any:
        return find(type(effect), ask)(effect)

    return perform


def asking(store: Store, on_event: OnEvent) -> Callable[[Effect[Any]], Any]:
    """The function that calls `store`. It times the call only for a listener that asks for that."""
    listener, ask = _call_listener(on_event), partial(_ask, store)

    def timed(call: Effect[Any]) -> Any:
        with Timing(listener, _name(call)) if listener is not None else nullcontext():
            return ask(call)

    return ask if listener is None else timed


def async_asking(store: AsyncStore, on_event: OnEvent) -> Callable[[Effect[Any]], Awaitable[Any]]:
    """The same for an async `store`."""
    listener, ask = _call_listener(on_event), partial(_ask, store)

    async def timed(call: Effect[Any]) -> Any:
        with Timing(listener, _name(call)) if listener is not None else nullcontext():
            return await ask(call)

    return ask if listener is None else timed


def _ask(store: Store | AsyncStore, call: Effect[Any]) -> Any:
    """Make the call that `call` names. Both faces spell it the same way; the async one answers with a coroutine."""
    match call:
        case Claim():
            return store.claim(
                call.key,
                call.fingerprint,
                owner=call.owner,
                lease_ms=call.lease_ms,
                retention_ms=call.retention_ms,
                takeover=call.takeover,
            )
        case Complete():
            return store.complete(call.lease, call.result, retention_ms=call.retention_ms, refuse_ms=call.refuse_ms)
        case Renew():
            return store.renew(call.lease, lease_ms=call.lease_ms)
        case Release():
            return store.release(call.lease)
        case Read():
            return store.get(call.key)
        case _:
            raise TypeError(f"no store performs {call!r}")


def _call_listener(on_event: OnEvent) -> CallListener | None:
    """The listener, if it wants to know how long the store takes. Without one, no call is timed."""
    listener: object = inspect.unwrap(on_event)
    return listener if isinstance(listener, CallListener) else None


def _name(call: Effect[Any]) -> str:
    return type(call).__name__.lower()


def _pause_s(pause: Pause) -> float:
    pause_s = pause.pause_ms / 1000
    return pause_s if pause.due_ms is None else max(0.0, min(pause_s, pause.due_ms / 1000 - time.monotonic()))


def _ms_since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
