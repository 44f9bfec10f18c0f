"""The sync face: each call is one plan, and copies are made in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self, TypeVar

from semel.core.copies import CopyCall, FindCopy, ForbidCopy, OpenCopy, PutCopy
from semel.core.effects import Claim, Complete, Release, Renew
from semel.core.records import Claimed, Key, Lease, Record, Result
from semel.errors import StoreError
from semel.runtime.background import Queue
from semel.runtime.drive import drive
from semel.runtime.local import PerProcess
from semel.runtime.perform import Performers, performer
from semel.store import (
    AsyncOutboxed,
    AttemptCounting,
    Clock,
    Doubting,
    Finding,
    Fronting,
    Inspectable,
    Migratable,
    Outboxed,
    Removable,
    Resolvable,
    Store,
    Watchable,
    pass_on,
)
from semel.stores.tiered.doctor import examine
from semel.stores.tiered.health import FrontHealth
from semel.stores.tiered.scripts import AskBack, CopyLater, TieredScripts
from semel.stores.tiered.settings import TieredSettings

T = TypeVar("T")
OF_THE_BACK = (Watchable, Doubting, AttemptCounting, Outboxed, AsyncOutboxed, Migratable, Inspectable)
"""Abilities that the front has no part in. Both faces spell them alike."""


class AnyTieredStore:
    """What both faces have: two stores, the plans between them, and the abilities that the back has."""

    host: object = None
    """What the functions on this store share; it lives as long as the store."""

    def __init__(self, front: Any, back: Any, clock: Clock | None, options: dict[str, Any]) -> None:
        self._settings = TieredSettings.of_stores(front, back, options)
        self._given_front, self._back = front, back
        self._front = front.open_front(timeout_ms=self._settings.front_timeout_ms)
        self._health = FrontHealth(self._settings.rest_ms / 1000)
        self._scripts = TieredScripts(self._settings, clock)
        pass_on(back, self, OF_THE_BACK)

    def _has(self, ability: type) -> bool:
        return isinstance(self._back, ability)


class TieredStore(AnyTieredStore):
    """A database with copies of its answers in a front, for threads.

    `back` decides every call that no usable copy answers. `clock` is the one that `back` was opened with, if any.
    """

    def __init__(self, front: Fronting, back: Store, *, clock: Clock | None = None, **options: Any) -> None:
        super().__init__(front, back, clock, options)
        others: Performers = {
            **dict.fromkeys((FindCopy, OpenCopy, PutCopy), self._try),
            ForbidCopy: self._forbid,
            CopyLater: self._copy_later,
            AskBack: lambda effect: effect.ask(),
        }
        self._perform = performer(back, others=others)
        self._copiers = PerProcess(lambda: Copier(lambda key: drive(self._scripts.copy(key), self._perform)))
        if self._has(Resolvable):
            self.resolve = self._resolve
        if self._has(Removable):
            self.remove, self.expire = self._remove, self._expire
        if self._has(Watchable) and self._settings.hint_ms:
            self.wait = self._wait

    def claim(
        self, key: Key, fingerprint: str, *, owner: str, lease_ms: int, retention_ms: int, takeover: bool
    ) -> Claimed:
        call = Claim(key, fingerprint, owner, lease_ms, retention_ms, takeover).checked()
        return drive(self._scripts.claim(call), self._perform)

    def renew(self, lease: Lease, *, lease_ms: int) -> Lease | None:
        return drive(self._scripts.change(lease.key, Renew(lease, lease_ms)), self._perform)

    def complete(self, lease: Lease, result: Result, *, retention_ms: int, refuse_ms: int = 0) -> bool:
        return drive(self._scripts.complete(Complete(lease, result, retention_ms, refuse_ms)), self._perform)

    def release(self, lease: Lease) -> bool:
        return drive(self._scripts.change(lease.key, Release(lease)), self._perform)

    def get(self, key: Key) -> Record | None:
        record: Record | None = self._back.get(key)
        return record

    def purge(self, *, limit: int) -> int:
        gone: int = self._back.purge(limit=limit)
        return gone

    def examine(self) -> Sequence[Finding]:
        return list(examine(self._front, self._back, self._settings))

    def close(self) -> None:
        if (copier := self._copiers.take()) is not None:
            copier.close()
        for store in (self._front, self._given_front, self._back):
            store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _resolve(self, seen: Record, result: Result | None, *, retention_ms: int) -> bool:
        ask = partial(self._back.resolve, seen, result, retention_ms=retention_ms)
        return drive(self._scripts.change(seen.key, AskBack[bool](ask)), self._perform)

    def _remove(self, seen: Record) -> bool:
        return drive(self._scripts.end(seen.key, AskBack(partial(self._back.remove, seen))), self._perform)

    def _expire(self, seen: Record) -> bool:
        return drive(self._scripts.end(seen.key, AskBack(partial(self._back.expire, seen))), self._perform)

    def _wait(self, key: Key, *, owner: str, timeout_ms: int) -> bool:
        ended: bool = self._back.wait(key, owner=owner, timeout_ms=timeout_ms)
        self._scripts.distrust(key, self._settings.hint_ms)  # a hint that came late would have it wait again, at once
        return ended

    def _copy_later(self, effect: CopyLater) -> None:
        self._copiers.get().add(effect.key)

    def _forbid(self, call: ForbidCopy) -> bool | None:
        """An operator's order must reach the front. An owner goes on without."""
        return self._front.answer_copy(call) if call.forbid_ms else self._try(call)

    def _try(self, call: CopyCall[T]) -> T | None:
        if not self._health.may_ask():
            return None
        try:
            reply: T = self._front.answer_copy(call)
        except StoreError as failure:
            self._health.note_failure(failure)
            return None
        self._health.note_answer()
        return reply


class Copier:
    """Makes copies in a thread, one after the other. What its queue has no room for, a replay copies."""

    def __init__(self, copy: Callable[[Key], object]) -> None:
        self._copy = copy
        self._queue = Queue()
        self._lock = threading.Lock()
        self._is_open = True

    def add(self, key: Key) -> None:
        self._queue.add(lambda: self._work(key))

    def close(self) -> None:
        """Wait for the copy at hand, and make no more: the stores are about to be closed."""
        with self._lock:
            self._is_open = False

    def _work(self, key: Key) -> None:
        with self._lock, suppress(StoreError):
            if self._is_open:
                self._copy(key)
