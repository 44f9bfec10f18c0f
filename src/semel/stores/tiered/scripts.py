"""The calls of a tiered store as plans: what is asked of the front, what of the database, and in which order."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from semel.core.backoff import pauses_ms
from semel.core.copies import NO_COPY, FindCopy, ForbidCopy, OpenCopy, PutCopy
from semel.core.effects import Claim, Complete, Effect, Pause, Plan, Read, do
from semel.core.records import Claimed, Key, Occupied
from semel.errors import StoreError, StoreUnavailable
from semel.runtime.clock import clock_from
from semel.store import Clock
from semel.stores.tiered import judgement
from semel.stores.tiered.judgement import Sighting
from semel.stores.tiered.layout import Copy, to_bytes, to_copy
from semel.stores.tiered.settings import TieredSettings

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
FORBID_MS = 900_000
"""Longer than any call of a database may take: no copy is made while an operator's call is under way."""
INSIST_MS, INSIST_FIRST_MS = 2_000, 10
"""How long an operator's call insists on reaching the front, and its first pause between two tries."""
DISTRUSTED_MAX = 1_000
LATEST_CLAIMS, EAGER_ONE_IN = 1_000, 10
"""New results are copied while one in so many of the latest claims is a repeat."""


class CopyLater(Effect[None], frozen=True):
    """Copy the record of `key` to the front, in the background, unless there is too much to do."""

    key: Key


class AskBack(Effect[T_co], Generic[T_co], frozen=True):
    """A call on the database that is no effect by itself. The async face's is awaited."""

    ask: Callable[[], Any]


class BackTime:
    """What time it is in the database, at the latest: by its replies, or by the clock that it was opened with."""

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._sighting: Sighting | None = None
        self.read_ms = clock_from(0)
        """The time since the machine started."""

    def latest_ms(self) -> int | None:
        if self._clock is not None:
            return self._clock()
        return None if self._sighting is None else self._sighting.latest_ms(self.read_ms())

    def note(self, asked_ms: int, told_ms: int) -> None:
        if self._sighting is None or asked_ms >= self._sighting.asked_ms:
            self._sighting = Sighting(asked_ms, told_ms)


class RepeatShare:
    """Whether many of the latest claims were repeats. Otherwise copies of new results would hardly be asked for.

    Threads may lose a count to each other: that changes no answer.
    """

    def __init__(self) -> None:
        self._claims = self._repeats = 0

    def note(self, claimed: Claimed) -> None:
        self._claims += 1
        self._repeats += isinstance(claimed, Occupied)
        if self._claims >= LATEST_CLAIMS:
            self._claims //= 2
            self._repeats //= 2

    def is_large(self) -> bool:
        return self._repeats * EAGER_ONE_IN >= self._claims


class TieredScripts:
    """What one tiered store asks, for threads and for tasks."""

    def __init__(self, settings: TieredSettings, clock: Clock | None) -> None:
        self.settings = settings
        self._place = settings.name
        self._time = BackTime(clock)
        self._share = RepeatShare()
        self._read_ms = self._time.read_ms
        self._distrusted: OrderedDict[Key, int] = OrderedDict()
        """Until when copies of these keys are not believed, by the time since the machine started."""

    def claim(self, call: Claim) -> Plan[Claimed]:
        """A usable copy answers. Everything else is the database's to decide."""
        claimed = (yield from self._find(call)) or (yield from self._ask(call))
        self._share.note(claimed)
        return claimed

    def complete(self, call: Complete) -> Plan[bool]:
        done = yield from self.change(call.key, call)
        if done and self.settings.eager and self._share.is_large() and self._time.latest_ms() is not None:
            yield CopyLater(call.key)
        return done

    def change(self, key: Key, call: Effect[T]) -> Plan[T]:
        """A call of an owner or an operator. Afterwards no hint tells what was before."""
        if not self.settings.hint_ms:
            return (yield from do(call))
        try:
            reply = yield from do(call)
        except StoreError:
            yield from self._forget(key)  # it may have happened
            raise
        yield from self._forget(key)
        return reply

    def copy(self, key: Key) -> Plan[bool]:
        """Copy what the database holds. The ticket is there first: a change of the record takes it away."""
        if self._time.latest_ms() is None or self._distrusts(key):
            return False
        ticket = NO_COPY + secrets.token_bytes(16)
        if not (yield from do(OpenCopy(self._place, key, ticket))):
            return False
        record = yield from do(Read(key))
        now_ms = self._time.latest_ms()
        if record is None or now_ms is None:
            return False
        life_ms = judgement.find_life_ms(record, now_ms, self.settings.keep_ms, self.settings.hint_ms)
        if not life_ms:
            return False
        put = yield from do(PutCopy(self._place, key, ticket, to_bytes(Copy(record, now_ms)), life_ms))
        return bool(put)

    def end(self, key: Key, call: AskBack[bool]) -> Plan[bool]:
        """Remove or expire: the front forgets its copy first, and makes none while the database is at it.

        If the front cannot be reached, nothing is done: other processes may reach it, and would answer from the copy.
        """
        forbid = ForbidCopy(self._place, key, FORBID_MS)
        yield from self._insist(forbid)
        self.distrust(key, self.settings.keep_ms)
        ended = yield from do(call)
        with suppress(StoreError):
            yield from do(forbid)  # a front that was flushed meanwhile may hold a copy again
        return ended

    def _find(self, call: Claim) -> Plan[Occupied | None]:
        """What a copy answers. None when there is none, or the time in the database is not known."""
        if self._time.latest_ms() is None or self._distrusts(call.key):
            return None
        copy = to_copy((yield from do(FindCopy(self._place, call.key))))
        now_ms = self._time.latest_ms()
        if copy is None or now_ms is None:
            return None
        return judgement.answer(copy, call, now_ms, self.settings.hint_ms)

    def _ask(self, call: Claim) -> Plan[Claimed]:
        asked_ms = self._read_ms()
        claimed = yield from do(call)
        if isinstance(claimed, Occupied):
            self._time.note(asked_ms, claimed.now_ms)
            if judgement.is_worth_a_copy(claimed.record, self.settings.hint_ms):
                yield CopyLater(call.key)
        return claimed

    def distrust(self, key: Key, for_ms: int) -> None:
        """Do not believe copies of `key` here. After a failover the front may hold what it had forgotten."""
        self._distrusted[key] = self._read_ms() + for_ms
        while len(self._distrusted) > DISTRUSTED_MAX:
            self._distrusted.popitem(last=False)

    def _distrusts(self, key: Key) -> bool:
        until_ms = self._distrusted.get(key)
        if until_ms is None or self._read_ms() < until_ms:
            return until_ms is not None
        self._distrusted.pop(key, None)
        return False

    def _forget(self, key: Key) -> Plan[None]:
        self.distrust(key, self.settings.hint_ms)
        yield from do(ForbidCopy(self._place, key, 0))

    def _insist(self, forbid: ForbidCopy) -> Plan[None]:
        failure: StoreError | None = None
        for pause_ms in (0, *pauses_ms(budget_ms=INSIST_MS, first_ms=INSIST_FIRST_MS)):
            if pause_ms:
                yield from do(Pause(pause_ms))
            try:
                yield from do(forbid)
            except StoreError as error:
                failure = error
            else:
                return
        raise StoreUnavailable(
            f"nothing was changed: the front has to forget its copy first, and {failure}. Repeat this when the front "
            "answers, or do it on the database's own URL: then a copy may answer for up to "
            f"{self.settings.keep_ms / 1000:g} s more"
        ) from failure
