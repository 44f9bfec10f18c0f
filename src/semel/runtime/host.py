"""The host: a store, and everything that the fronts on it share.

A front (a middleware, a decorator, a block) is built on a host and assembles nothing itself. A front with other
settings is a new front on the same host.

An operation reaches the store through `begin` and `settle`. The host makes the claim, or the completion, itself, and
`decide` says what the reply means. It drives a plan only after a failure, or to wait.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from threading import Lock
from typing import Any, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

from semel.core.decisions import STORED, Decision, Settlement
from semel.core.effects import Claim, Complete, Effect, Plan
from semel.core.protocol import First, abandon, decide
from semel.core.records import Lease
from semel.core.reports import acquired, settled
from semel.errors import StoreError
from semel.runtime.background import Background
from semel.runtime.drive import adrive, drive
from semel.runtime.keeper import AsyncKeeper, Keeper
from semel.runtime.listener import OnEvent, ignore, logged
from semel.runtime.local import PerProcess
from semel.runtime.perform import NO_OTHERS, Performers, asking, async_asking, async_performer, performer
from semel.runtime.tasks import Tasks
from semel.store import AsyncStore, Store
from semel.stores.open import open_async_store, open_store

WAITERS_MAX = 1_000
"""How many callers of a process may wait at once for the first call of their key; more get "in progress" at once."""
B = TypeVar("B")
B_co = TypeVar("B_co", covariant=True)
E = TypeVar("E")
E_contra = TypeVar("E_contra", contravariant=True)


class Attempt(Protocol[B_co, E_contra]):
    """One operation, as its front describes it: its calls on the store, and what their replies mean."""

    @property
    def first_claim(self) -> Claim | None:
        """The claim, if nothing (such as a quota) comes before it."""
        ...

    def has_to_wait(self, decision: Decision) -> bool:
        """Whether the plan has to go on: to wait for another executor, or to ask further."""
        ...

    def begin_with(self, decision: Decision) -> B_co:
        """What the operation begins with. A refusal may be raised."""
        ...

    def begin(self, first: First = None) -> Plan[B_co]: ...
    def abandon(self) -> None: ...
    def completion(self, lease: Lease, ended: E_contra) -> Complete | None: ...
    def settle(self, lease: Lease, ended: E_contra, first: bool | StoreError | None = None) -> Plan[Settlement]: ...


@runtime_checkable
class Housing(Protocol):
    """A store with a place for the host that functions, blocks and flows on it share (`semel.stores.faces` has one)."""

    host: object


class Tally:
    """A number that threads change."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.count = 0


class WaiterCount:
    """The callers of one process that wait, in threads or tasks: a bounded number.

    Counted for each process: a forked child has neither its parent's threads nor the locks that they hold.
    """

    def __init__(self, count_max: int = WAITERS_MAX) -> None:
        self._count_max = count_max
        self._tally = PerProcess(Tally)

    @property
    def count(self) -> int:
        return self._tally.get().count

    def enter(self) -> bool:
        """Whether one more may wait; call `leave` afterwards."""
        tally = self._tally.get()
        with tally.lock:
            if tally.count >= self._count_max:
                return False
            tally.count += 1
            return True

    def leave(self) -> None:
        tally = self._tally.get()
        with tally.lock:
            tally.count -= 1


class Asker(NamedTuple):
    """The two ways to ask one store (a single call, or the effects of a plan), and the listener of what is decided."""

    ask: Callable[[Effect[Any]], Any]
    perform: Callable[[Effect[Any]], Any]
    tell: OnEvent


class AsyncAsker(NamedTuple):
    ask: Callable[[Effect[Any]], Awaitable[Any]]
    perform: Callable[[Effect[Any]], Awaitable[Any]]
    tell: OnEvent


class Host:
    """For threads. `others` performs effects that are not about the store."""

    def __init__(
        self,
        store: Store,
        *,
        on_event: OnEvent = ignore,
        others: Performers = NO_OTHERS,
        waiters_max: int = WAITERS_MAX,
    ) -> None:
        self.store = store
        self.listener = logged(on_event)
        self.keeper = Keeper(store, self.listener)
        self.waiters = WaiterCount(waiters_max)
        self.background = Background()
        self._others = others
        self.asker = self.asker_on(store, self.listener)

    def asker_on(self, store: Store, listener: OnEvent | None = None) -> Asker:
        """An asker for another store (a request's own transaction), or for this store with another listener."""
        listener = listener or self.listener
        return Asker(asking(store, listener), performer(store, listener, self._others), listener)

    def abandon_later(self, lease: Lease) -> None:
        """Release, in the background, a claim that may have been granted. Nothing has begun."""
        self.background.do(lambda: drive(abandon(lease), self.asker.perform))

    def begin(self, attempt: Attempt[B, Any], asker: Asker | None = None) -> B:
        """Claim the key, and return what the attempt begins with."""
        ask, perform, tell = asker or self.asker
        claim, first = attempt.first_claim, None
        if claim is not None:
            try:
                first = ask(claim)
            except StoreError as error:
                first = error
            except BaseException:
                attempt.abandon()
                raise
            else:
                decision = decide(first, claim.fingerprint)
                if not attempt.has_to_wait(decision):
                    tell(acquired(claim.key, decision, claim.owner))
                    return attempt.begin_with(decision)
        return drive(attempt.begin(first), perform)

    def settle(self, attempt: Attempt[Any, E], lease: Lease, ended: E, asker: Asker | None = None) -> Settlement:
        """End the attempt. Renewal must have stopped."""
        ask, perform, tell = asker or self.asker
        complete, first = attempt.completion(lease, ended), None
        if complete is not None:
            try:
                first = ask(complete)
            except StoreError as error:
                first = error
            if first is True:
                tell(settled(lease, STORED, complete.result))
                return STORED
        return drive(attempt.settle(lease, ended, first), perform)


class AsyncHost:
    """For tasks: the same with `await`, line by line."""

    def __init__(
        self,
        store: AsyncStore,
        *,
        on_event: OnEvent = ignore,
        others: Performers = NO_OTHERS,
        waiters_max: int = WAITERS_MAX,
    ) -> None:
        self.store = store
        self.listener = logged(on_event)
        self.keeper = AsyncKeeper(store, self.listener)
        self.waiters = WaiterCount(waiters_max)
        self.tasks = Tasks()
        self._others = others
        self.asker = self.asker_on(store, self.listener)

    def asker_on(self, store: AsyncStore, listener: OnEvent | None = None) -> AsyncAsker:
        listener = listener or self.listener
        perform = async_performer(store, listener, self._others)
        return AsyncAsker(async_asking(store, listener), perform, listener)

    def abandon_later(self, lease: Lease) -> None:
        self.tasks.abandon(lambda: adrive(abandon(lease), self.asker.perform))

    async def begin(self, attempt: Attempt[B, Any], asker: AsyncAsker | None = None) -> B:
        ask, perform, tell = asker or self.asker
        claim, first = attempt.first_claim, None
        if claim is not None:
            try:
                first = await ask(claim)
            except StoreError as error:
                first = error
            except BaseException:
                attempt.abandon()
                raise
            else:
                decision = decide(first, claim.fingerprint)
                if not attempt.has_to_wait(decision):
                    tell(acquired(claim.key, decision, claim.owner))
                    return attempt.begin_with(decision)
        return await adrive(attempt.begin(first), perform)

    async def settle(
        self, attempt: Attempt[Any, E], lease: Lease, ended: E, asker: AsyncAsker | None = None
    ) -> Settlement:
        ask, perform, tell = asker or self.asker
        complete, first = attempt.completion(lease, ended), None
        if complete is not None:
            try:
                first = await ask(complete)
            except StoreError as error:
                first = error
            if first is True:
                tell(settled(lease, STORED, complete.result))
                return STORED
        return await adrive(attempt.settle(lease, ended, first), perform)


AnyHost = Host | AsyncHost

# Hosts that functions, blocks and flows share: one for each store object, and one store for each URL in a process.
# Nothing here takes a lock: in a forked child, a thread that exists only in the parent could hold it.
_hosts: dict[tuple[type, str], Any] = {}


def host_of(store: Store | AsyncStore | str) -> Host:
    if isinstance(store, str):
        return cast(Host, _open_host(Host, open_store, store))
    if inspect.iscoroutinefunction(getattr(store, "claim", None)):
        raise TypeError(
            f"{type(store).__name__} is an async store; open one for sync code with semel.open_store(url), "
            "or use `async def` and `async with`"
        )
    return cast(Host, _find_host(store, Host))


def async_host_of(store: Store | AsyncStore | str) -> AsyncHost:
    if isinstance(store, str):
        return cast(AsyncHost, _open_host(AsyncHost, open_async_store, store))
    if not inspect.iscoroutinefunction(getattr(store, "claim", None)):
        raise TypeError(
            f"{type(store).__name__} is a sync store; open one for async code with semel.open_async_store(url)"
        )
    return cast(AsyncHost, _find_host(store, AsyncHost))


def _open_host(host: Any, open_url: Any, url: str) -> object:
    key = (host, url)
    return _hosts.get(key) or _hosts.setdefault(key, host(open_url(url)))


def _find_host(store: object, host: Any) -> object:
    """The host of a store object. It lives as long as the store if the store has a place for it, else for ever."""
    if not hasattr(store, "claim"):
        raise TypeError(f"store= must be a store or a URL, not {type(store).__name__}")
    if isinstance(store, Housing):
        return store.host or vars(store).setdefault("host", host(store))  # one atomic step: threads may come together
    key = (host, f"{id(store)}")  # the host holds a reference to the store, so no other object gets its id
    return _hosts.get(key) or _hosts.setdefault(key, host(store))
