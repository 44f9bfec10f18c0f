"""The journal as a user sees it: intents by their names, what is left open, and how to end it."""

from __future__ import annotations

import time
import warnings
from datetime import timedelta
from types import TracebackType
from typing import Protocol, Self, TypeVar
from urllib.parse import unquote, urlsplit

from semel.client.arguments import check_kind
from semel.client.marker import HEADER, IntentMark
from semel.client.memory import MemoryJournal
from semel.client.sqlite import SqliteJournal
from semel.codecs.seal import Seal, check_seal
from semel.core.call_values import CallRefusal, IntentOf
from semel.core.journal import (
    LIST_MAX,
    PURGE_MAX,
    CallRequest,
    ForgetIntent,
    IntentEntry,
    IntentId,
    IntentState,
    JournalCall,
    ListIntents,
    PurgeIntents,
    ReadIntent,
)
from semel.core.records import read_duration
from semel.errors import OutcomeUnknown, StoreMisconfigured

T = TypeVar("T")
JOURNALS = "Write sqlite:///journal.db, or memory:// for one that ends with the process"


class Indeterminate(OutcomeUnknown):
    """Whether the operation took effect is unknown, and sending it again could do it twice. Nothing was sent now.

    Find out at the service, then `journal.forget(name)` lets the name begin anew under a new key.
    """

    @classmethod
    def of(cls, entry: IntentEntry, refusal: CallRefusal) -> Self:
        """The error for an intent that is not sent again, with its last error and the way out."""
        last = f" (its last attempt: {entry.error})" if entry.error else ""
        name = entry.id.name
        return cls(
            f"intent {name!r}: {refusal.value}{last}. It was not sent again. Find out at the service whether it took "
            f"effect; journal.forget({name!r}) then lets the name begin anew under a new key"
        )


class IntentJournal(Protocol):
    """What keeps intents."""

    def answer(self, call: JournalCall[T]) -> T: ...
    def close(self) -> None: ...


class Intent:
    """One logical operation. Send its request with `extensions={"semel": intent}`, or with `headers=intent.headers`."""

    is_used = False
    """Whether an adapter has seen it."""

    def __init__(self, journal: Journal, part: IntentOf) -> None:
        self.journal, self.part = journal, part

    @property
    def headers(self) -> dict[str, str]:
        """For requests, aiohttp and urllib3, whose requests have no extensions. The adapter does not send them."""
        return {HEADER: IntentMark(self)}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """An answer has closed the intent; without one it stays open, and the next run sends it with the same key."""
        if error is None and not self.is_used:
            warnings.warn(
                f"no request was sent as intent {self.part.id.name!r}, so nothing protects it: send a POST through an "
                'adapter of semel.client, with extensions={"semel": intent} or headers=intent.headers',
                RuntimeWarning,
                stacklevel=2,
            )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


class ResumedIntent(Intent):
    """An intent that the journal knows already. Send `request` as it is: its method, URL, headers and body."""

    def __init__(self, journal: Journal, part: IntentOf, request: CallRequest) -> None:
        super().__init__(journal, part)
        self.request = request


class Journal:
    """Keeps one durable key for each operation that you ask another service for, and its answer.

    ```python
    from datetime import timedelta
    from semel.client import Journal

    journal = Journal("sqlite:///journal.db")
    intent = journal.intent("pay:order:42", max_age=timedelta(hours=23))
    # with httpx and IdempotentTransport: client.post(url, json=…, extensions={"semel": intent})
    journal.close()
    ```

    A process that dies and starts again sends the request again under the same key. After an answer has come, it gets
    the stored one. Where sending again could do the work twice, it gets `Indeterminate` instead.

    `sqlite:///journal.db` outlives crashes; `memory://` lasts as long as the process. `namespace` separates programs
    that share a file. With `seal=Seal(keys)` of `semel.codecs.sealed` the file has requests, answers and errors sealed.
    The names, the keys, the states and the times stay readable.
    """

    def __init__(self, url: str, *, namespace: str = "", seal: Seal | None = None) -> None:
        check_seal(seal)
        self.namespace = IntentId("-", namespace).checked().namespace
        self._kept = _open(url, seal)

    def intent(self, name: str, *, max_age: timedelta) -> Intent:
        """Name an operation. `max_age` is how long the service remembers a key, or less: see its documentation."""
        max_age_ms = read_duration("max_age", max_age)
        return Intent(self, IntentOf(IntentId(name, self.namespace).checked(), max_age_ms))

    def pending(self, *, limit: int = LIST_MAX) -> tuple[IntentEntry, ...]:
        """The intents without an answer, by name: what a dead process left, and what is in doubt."""
        return self.answer(ListIntents(self.namespace, limit))

    def resume(self, entry: IntentEntry) -> ResumedIntent:
        """Take up an intent of `pending()`, to send what a dead process left: the stored request, under its key.

        Raises `Indeterminate` for one that is in doubt, older than its `max_age`, or forgotten meanwhile. One that was
        answered meanwhile gives its answer without a request.
        """
        check_kind(entry, IntentEntry, "entry", "an intent of journal.pending() or journal.read(name)")
        found = self.answer(ReadIntent(entry.id))
        if found is None or found.key != entry.key:
            raise Indeterminate(
                f"intent {entry.id.name!r} was forgotten or purged since it was listed, so nothing is sent for it. "
                "If the operation is still to be done, name it with journal.intent()"
            )
        if found.state is IntentState.DOUBTFUL:
            raise Indeterminate.of(found, CallRefusal.DOUBTFUL)
        if found.state is IntentState.OPEN and found.is_too_old(wall_clock_ms()):
            raise Indeterminate.of(found, CallRefusal.TOO_OLD)
        return ResumedIntent(self, IntentOf(found.id, found.max_age_ms), found.request)

    def read(self, name: str) -> IntentEntry | None:
        """An intent with its answer, if it has one."""
        return self.answer(ReadIntent(IntentId(name, self.namespace).checked()))

    def forget(self, name: str) -> bool:
        """Delete an intent, so that its name begins anew under a new key. False without one, or while it is sent."""
        entry = self.read(name)
        return entry is not None and self.answer(ForgetIntent(entry.id, entry.key))

    def purge(self, *, older: timedelta, limit: int = PURGE_MAX) -> int:
        """Delete intents that were answered so long ago, and say how many. Asking for one again then sends it anew."""
        return self.answer(PurgeIntents(self.namespace, read_duration("older", older, least_ms=0), limit))

    def close(self) -> None:
        """Close the file. A program need not: what was answered is on the disk. The next call opens it again."""
        self._kept.close()

    def answer(self, call: JournalCall[T]) -> T:
        """Answer a call of a plan."""
        return self._kept.answer(call)


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def find_path(url: str) -> str:
    """The file of a journal's URL; empty for a journal in memory."""
    check_kind(url, str, "url", "text, for example 'sqlite:///journal.db'")
    parts = urlsplit(url)
    if parts.scheme and parts.scheme not in ("sqlite", "memory"):
        raise StoreMisconfigured(
            f"there is no journal at {parts.scheme}://, although there may be a store: a journal is in a file of the "
            f"machine that sends, where it can be written before each request, or in memory. {JOURNALS}"
        )
    if parts.netloc or parts.query or parts.fragment:
        raise StoreMisconfigured(f"a journal URL has no host and no options. {JOURNALS}")
    if parts.scheme == "memory" and not parts.path:
        return ""
    path = unquote(parts.path[1:])
    if parts.scheme == "sqlite" and path == ":memory:":
        raise StoreMisconfigured("a journal in memory is written memory://, and ends with its process")
    if parts.scheme == "sqlite" and path:
        return path
    raise StoreMisconfigured(f"{url!r} is not a journal URL. {JOURNALS}")


def _open(url: str, seal: Seal | None) -> IntentJournal:
    path = find_path(url)
    return SqliteJournal(path, wall_clock_ms, seal) if path else MemoryJournal(wall_clock_ms)
