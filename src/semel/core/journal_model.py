"""What a journal does, as pure functions: the journal and a call in, the new journal and the reply out.

Journals that are kept in files are compared with this model, call by call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from semel.core.journal import (
    BeginAttempt,
    CloseIntent,
    ForgetIntent,
    IntentDrifted,
    IntentEntry,
    IntentGranted,
    IntentHeld,
    IntentId,
    IntentKept,
    IntentReply,
    IntentStale,
    IntentState,
    JournalCall,
    LeaveIntent,
    ListIntents,
    OpenIntent,
    PurgeIntents,
    ReadIntent,
    RenewIntent,
)
from semel.core.records import NOBODY

T = TypeVar("T")


class IntentBook(Struct, frozen=True):
    """The intents of a journal, by their names."""

    entries: Mapping[IntentId, IntentEntry] = MappingProxyType({})

    def but(self, *changed: IntentEntry, gone: tuple[IntentId, ...] = ()) -> IntentBook:
        kept = {name: entry for name, entry in self.entries.items() if name not in gone}
        return IntentBook(MappingProxyType(kept | {entry.id: entry for entry in changed}))


def answer(book: IntentBook, call: JournalCall[T], now_ms: int) -> tuple[IntentBook, T]:
    """The journal after a call, and the reply."""
    changed, reply = STEPS[type(call)](book, call.checked(), now_ms)
    return changed, reply


def open_intent(book: IntentBook, call: OpenIntent, now_ms: int) -> tuple[IntentBook, IntentReply]:
    """Grant an intent to one sender, or say why not. The request is compared before anything else."""
    entry = book.entries.get(call.id)
    if entry is None:
        entry = IntentEntry(call.id, call.key, call.request, IntentState.OPEN, now_ms, call.max_age_ms, 0)
    elif entry.request.digest != (digest := call.request.digest):
        return book, IntentDrifted(entry, digest)
    elif entry.state is IntentState.ANSWERED:
        return book, IntentKept(entry)
    elif entry.is_held(now_ms):
        return book, IntentHeld(entry, now_ms)
    entry = replace(entry, max_age_ms=min(entry.max_age_ms, call.max_age_ms))
    if entry.state is IntentState.DOUBTFUL or entry.is_too_old(now_ms):
        return book, IntentStale(entry)
    granted = replace(
        entry, owner=call.owner, lease_until_ms=now_ms + call.lease_ms, attempts=entry.attempts + 1, error=""
    )
    return book.but(granted), IntentGranted(granted)


def renew_intent(book: IntentBook, call: RenewIntent, now_ms: int) -> tuple[IntentBook, bool]:
    """A lease that has ended is renewed, too, as long as no other sender has the intent."""
    entry = _entry_of(book, call.id, call.owner)
    if entry is None:
        return book, False
    return book.but(replace(entry, lease_until_ms=now_ms + call.lease_ms)), True


def begin_attempt(book: IntentBook, call: BeginAttempt, now_ms: int) -> tuple[IntentBook, bool]:
    """Count an attempt, unless the server may have forgotten the key meanwhile."""
    entry = _entry_of(book, call.id, call.owner)
    if entry is None or entry.is_too_old(now_ms):
        return book, False
    return book.but(replace(entry, lease_until_ms=now_ms + call.lease_ms, attempts=entry.attempts + 1)), True


def close_intent(book: IntentBook, call: CloseIntent, now_ms: int) -> tuple[IntentBook, bool]:
    """Keep the first answer. It settles a doubt, too."""
    entry = book.entries.get(call.id)
    if entry is None or entry.key != call.key or entry.state is IntentState.ANSWERED:
        return book, False
    closed = replace(
        entry,
        state=IntentState.ANSWERED,
        owner=NOBODY,
        lease_until_ms=0,
        finished_ms=now_ms,
        answer=call.answer,
        error="",
    )
    return book.but(closed), True


def leave_intent(book: IntentBook, call: LeaveIntent, now_ms: int) -> tuple[IntentBook, bool]:
    """End a lease early."""
    entry = _entry_of(book, call.id, call.owner)
    if entry is None:
        return book, False
    state = IntentState.DOUBTFUL if call.in_doubt else entry.state
    return book.but(replace(entry, state=state, owner=NOBODY, lease_until_ms=0, error=call.error)), True


def read_intent(book: IntentBook, call: ReadIntent, now_ms: int) -> tuple[IntentBook, IntentEntry | None]:
    return book, book.entries.get(call.id)


def forget_intent(book: IntentBook, call: ForgetIntent, now_ms: int) -> tuple[IntentBook, bool]:
    """Delete an intent that no sender holds."""
    entry = book.entries.get(call.id)
    if entry is None or entry.key != call.key or entry.is_held(now_ms):
        return book, False
    return book.but(gone=(call.id,)), True


def purge_intents(book: IntentBook, call: PurgeIntents, now_ms: int) -> tuple[IntentBook, int]:
    """Delete what was answered long ago."""
    answered = sorted(
        (entry.finished_ms, name)
        for name, entry in book.entries.items()
        if name.namespace == call.namespace
        and entry.state is IntentState.ANSWERED
        and now_ms - entry.finished_ms >= call.older_ms
    )
    gone = tuple(name for _, name in answered[: call.limit])
    return book.but(gone=gone), len(gone)


def list_intents(book: IntentBook, call: ListIntents, now_ms: int) -> tuple[IntentBook, tuple[IntentEntry, ...]]:
    found = [
        entry
        for name, entry in sorted(book.entries.items(), key=lambda item: item[0])
        if name.namespace == call.namespace
        and name.name > call.after
        and (entry.state is IntentState.ANSWERED) == call.answered
    ]
    return book, tuple(found[: call.limit])


def _entry_of(book: IntentBook, name: IntentId, owner: str) -> IntentEntry | None:
    """The intent, if this sender had it last and it is not closed. An owner is never `NOBODY`."""
    entry = book.entries.get(name)
    return entry if entry is not None and entry.owner == owner != NOBODY else None


Step = Callable[[IntentBook, Any, int], tuple[IntentBook, Any]]
STEPS: Mapping[type[JournalCall[Any]], Step] = MappingProxyType(
    {
        OpenIntent: open_intent,
        RenewIntent: renew_intent,
        BeginAttempt: begin_attempt,
        CloseIntent: close_intent,
        LeaveIntent: leave_intent,
        ReadIntent: read_intent,
        ForgetIntent: forget_intent,
        PurgeIntents: purge_intents,
        ListIntents: list_intents,
    }
)
