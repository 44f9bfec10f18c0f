"""What all functions on one store share: who renews leases, who gives back claims, and how many may wait.

There is one front for each store object, found again at the store itself, and one store for each URL in a process.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable
from threading import Semaphore
from typing import Any, Generic, TypeVar, cast

from semel.core.effects import Effect
from semel.core.protocol import abandon
from semel.core.records import Lease
from semel.runtime.background import Background
from semel.runtime.drive import OnEvent, adrive, async_performer, drive, ignore, logged, performer
from semel.runtime.keeper import AsyncKeeper, Keeper
from semel.runtime.tasks import Tasks
from semel.store import AsyncStore, Store
from semel.stores.open import open_async_store, open_store

WAITERS_MAX = 1_000
"""How many callers may wait at once, in a process, on one store; the others are told at once to come back."""
ATTRIBUTE = "_semel_functions"
S = TypeVar("S", Store, AsyncStore)


class Shared(Generic[S]):
    """What both kinds of front have."""

    def __init__(self, store: S) -> None:
        self.store: S = store
        self._waiting: dict[int, Semaphore] = {}

    @property
    def waiters(self) -> Semaphore:
        """Those of this process: a forked child does not have its parent's threads, and must not have their locks."""
        pid = os.getpid()
        return self._waiting.get(pid) or self._waiting.setdefault(pid, Semaphore(WAITERS_MAX))


class Front(Shared[Store]):
    """For threads."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.keeper = Keeper(store)
        self._background = Background()
        self._perform = performer(store, logged(ignore))

    def perform(self, on_event: OnEvent) -> Callable[[Effect[Any]], Any]:
        """Who performs effects on the store, and tells `on_event`. The one that tells nobody is made once."""
        return self._perform if on_event is ignore else performer(self.store, logged(on_event))

    def abandon_later(self, lease: Lease) -> None:
        self._background.do(lambda: drive(abandon(lease), self._perform))


class AsyncFront(Shared[AsyncStore]):
    """For tasks."""

    def __init__(self, store: AsyncStore) -> None:
        super().__init__(store)
        self.keeper = AsyncKeeper(store)
        self.tasks = Tasks()
        self._perform = async_performer(store, logged(ignore))

    def perform(self, on_event: OnEvent) -> Callable[[Effect[Any]], Awaitable[Any]]:
        return self._perform if on_event is ignore else async_performer(self.store, logged(on_event))

    def abandon_later(self, lease: Lease) -> None:
        self.tasks.abandon(lambda: adrive(abandon(lease), self._perform))


# Nothing here takes a lock: it could be held by a thread that a forked child does not have.
_fronts: dict[tuple[type, str], Any] = {}


def front_of(store: Store | AsyncStore | str) -> Front:
    if isinstance(store, str):
        return cast(Front, _opened(Front, open_store, store))
    if inspect.iscoroutinefunction(getattr(store, "claim", None)):
        raise TypeError(
            f"{type(store).__name__} is an async store; open one for sync code with semel.open_store(url), "
            "or use `async def` and `async with`"
        )
    return cast(Front, _found_at(store, Front))


def async_front_of(store: Store | AsyncStore | str) -> AsyncFront:
    if isinstance(store, str):
        return cast(AsyncFront, _opened(AsyncFront, open_async_store, store))
    if not inspect.iscoroutinefunction(getattr(store, "claim", None)):
        raise TypeError(
            f"{type(store).__name__} is a sync store; open one for async code with semel.open_async_store(url)"
        )
    return cast(AsyncFront, _found_at(store, AsyncFront))


def _opened(front: Any, open_url: Any, url: str) -> object:
    key = (front, url)
    return _fronts.get(key) or _fronts.setdefault(key, front(open_url(url)))


def _found_at(store: object, front: Any) -> object:
    if not hasattr(store, "claim"):
        raise TypeError(f"store= must be a store or a URL, not {type(store).__name__}")
    there = getattr(store, "__dict__", None)
    if there is None:  # a store without room for it: kept here, which keeps the store, so that its id stays its own
        return _fronts.setdefault((front, f"{id(store)}"), front(store))
    return there.get(ATTRIBUTE) or there.setdefault(ATTRIBUTE, front(store))
