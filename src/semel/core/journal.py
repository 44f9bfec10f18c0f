"""What is asked of a caller's journal: calls as values, and their replies. `core.journal_model` says what each does.

A journal keeps an intent for each logical operation: its key, its request, and in the end its answer. The key is stored
before the first byte of the request is sent, so the same name gives the same key after a crash.

One sender at a time holds an intent, by a lease under a random name (`owner`). When the lease of a dead sender has
ended, another sender takes the intent over, with the same key. A sender that was only slow may still have its request
under way then. The key is what makes one operation of the two at the server.
"""

from __future__ import annotations

import hashlib
from typing import Generic, Literal, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from semel.core.attempts import kept_error
from semel.core.effects import Effect
from semel.core.records import NAME_MAX, NOBODY, OWNER_MAX, Member, check_duration, check_text

T_co = TypeVar("T_co", covariant=True)
BODY_MAX = 1_048_576
"""How many bytes of a request are kept, and of an answer. A larger request is refused before it is sent."""
HEADERS_MAX = 65_536
URL_MAX = 16_384
METHOD_MAX = 32
LIST_MAX, PURGE_MAX = 1_000, 10_000
REQUEST_HEADERS = frozenset({"accept", "content-type", "content-encoding", "content-language", "if-match", "prefer"})
"""The headers of a request that are kept. Any other may hold a secret (`Authorization`, `Cookie`, `X-Api-Key`)."""
SECRET_HEADERS = frozenset({"set-cookie", "www-authenticate", "proxy-authenticate", "authentication-info"})
"""The headers of an answer that are not kept."""

TextHeaders = tuple[tuple[str, str], ...]


class IntentState(Member):
    """States as stored."""

    value: Literal["open", "doubtful", "answered"]  # pyright: ignore[reportIncompatibleMethodOverride]

    OPEN = "open"
    DOUBTFUL = "doubtful"
    """The server cannot say how the operation ended. Nothing is sent again until a person has decided."""
    ANSWERED = "answered"


class IntentId(Struct, frozen=True, order=True):
    """The caller's name for one logical operation. Namespaces keep applications apart that share a journal."""

    name: str
    namespace: str = ""

    def checked(self) -> IntentId:
        return IntentId(
            check_text("name", self.name, NAME_MAX), check_text("namespace", self.namespace, NAME_MAX, empty=True)
        )


class CallRequest(Struct, frozen=True):
    """A request as it is kept: every attempt sends these bytes."""

    method: str
    url: str
    headers: TextHeaders = ()
    """Those that belong to the operation. Those that name the caller are added anew to each attempt."""
    body: bytes = b""
    dialect: str = ""
    """The name of the dialect in which the service is told the key. In another one it would be another operation."""

    @property
    def digest(self) -> str:
        """Tells requests apart: method, URL, content type, body and dialect.

        Other headers may differ from run to run.
        """
        content_type = next((value for name, value in self.headers if name.lower() == "content-type"), "")
        texts = (self.method.upper(), self.url, content_type, self.dialect)
        parts = (*(text.encode() for text in texts), self.body)
        return hashlib.sha256(b"".join(len(part).to_bytes(8) + part for part in parts)).hexdigest()

    def checked(self, key: str = "") -> CallRequest:
        """Itself, as a journal keeps it. A header that holds the intent's `key` is kept, as the caller wrote it."""
        if len(self.body) > BODY_MAX:
            raise ValueError(
                f"body has {len(self.body)} bytes, and a journal keeps at most {BODY_MAX}: "
                "upload it first, and send a reference to it with the intent"
            )
        return CallRequest(
            check_text("method", self.method, METHOD_MAX),
            check_text("url", self.url, URL_MAX),
            self._kept_headers(key),
            self.body,
            check_text("dialect", self.dialect, NAME_MAX, empty=True),
        )

    def _kept_headers(self, key: str) -> TextHeaders:
        kept = tuple(
            (name, value)
            for name, value in self.headers
            if name.lower() in REQUEST_HEADERS or (key and value.strip() == key)
        )
        if (size := _size_of(kept)) > HEADERS_MAX:
            raise ValueError(f"headers have {size} bytes, and a journal keeps at most {HEADERS_MAX}")
        return kept


class KeptAnswer(Struct, frozen=True):
    """An answer as it is kept. `body` is None if it was too large to be kept; `body_size` says how large."""

    status: int
    headers: TextHeaders = ()
    body: bytes | None = b""
    body_size: int = 0

    @classmethod
    def of(cls, status: int, headers: TextHeaders, body: bytes) -> KeptAnswer:
        """An answer without its secrets, and without what is too large: keeping an answer never fails for its size."""
        kept = tuple((name, value) for name, value in headers if name.lower() not in SECRET_HEADERS)
        if _size_of(kept) > HEADERS_MAX:
            kept = ()
        return cls(status, kept, body if len(body) <= BODY_MAX else None, len(body))


class IntentEntry(Struct, frozen=True):
    """An intent as a journal keeps it."""

    id: IntentId
    key: str
    request: CallRequest
    state: IntentState
    created_ms: int
    """When it was granted for the first time. Its age counts from here: a byte may have left just afterwards."""
    max_age_ms: int
    """When it is older, the server may have forgotten its key. The shortest that a sender has asked for."""
    attempts: int
    owner: str = NOBODY
    lease_until_ms: int = 0
    finished_ms: int = 0
    answer: KeptAnswer | None = None
    error: str = ""
    """Why the last attempt did not close it."""

    def is_held(self, now_ms: int) -> bool:
        """Whether a sender holds it."""
        return self.owner != NOBODY and now_ms < self.lease_until_ms

    def is_too_old(self, now_ms: int) -> bool:
        """Whether the server may have forgotten its key: sending it again could do it twice."""
        return now_ms - self.created_ms >= self.max_age_ms


class IntentGranted(Struct, frozen=True):
    """The caller is the sender. The attempt that begins now is counted."""

    entry: IntentEntry


class IntentHeld(Struct, frozen=True):
    """Another sender holds it: wait for its answer."""

    entry: IntentEntry
    now_ms: int


class IntentKept(Struct, frozen=True):
    """It is answered: nothing is sent."""

    entry: IntentEntry


class IntentDrifted(Struct, frozen=True):
    """The name belongs to another request: nothing is sent."""

    entry: IntentEntry
    digest: str
    """Of the request that was asked for. `entry.request.digest` is the one that the journal has."""


class IntentStale(Struct, frozen=True):
    """It is too old, or in doubt: nothing is sent until the caller has decided."""

    entry: IntentEntry


IntentReply = IntentGranted | IntentHeld | IntentKept | IntentDrifted | IntentStale


class JournalCall(Effect[T_co], Generic[T_co], frozen=True):
    """A call that a journal answers."""

    def checked(self) -> Self:
        """Itself, within the limits of every journal; the error names the field."""
        return self


class OfIntent(JournalCall[T_co], Generic[T_co], frozen=True):
    """A call that is about one intent."""

    id: IntentId


class OpenIntent(OfIntent[IntentReply], frozen=True):
    """Become the sender of an intent. The reply is durable before it is given."""

    request: CallRequest
    key: str
    """A new key, for an intent that the journal does not know yet."""
    owner: str
    lease_ms: int
    max_age_ms: int

    def checked(self) -> Self:
        return replace(
            self,
            id=self.id.checked(),
            request=self.request.checked(self.key),
            key=check_text("key", self.key, NAME_MAX),
            owner=check_text("owner", self.owner, OWNER_MAX),
            lease_ms=check_duration("lease_ms", self.lease_ms),
            max_age_ms=check_duration("max_age_ms", self.max_age_ms),
        )


class RenewIntent(OfIntent[bool], frozen=True):
    """Hold on to an intent while its request is under way. False if another sender has it, or it is closed."""

    owner: str
    lease_ms: int

    def checked(self) -> Self:
        return replace(self, lease_ms=check_duration("lease_ms", self.lease_ms))


class BeginAttempt(OfIntent[bool], frozen=True):
    """Count one more attempt and renew the lease, before the request is sent again.

    False if another sender has the intent, if it is closed, or if it has become too old to be sent.
    """

    owner: str
    lease_ms: int

    def checked(self) -> Self:
        return replace(self, lease_ms=check_duration("lease_ms", self.lease_ms))


class CloseIntent(OfIntent[bool], frozen=True):
    """Keep the answer of an intent, for good: a later one changes nothing, and False says so.

    Every sender that had this key may close it. The answer of a sender whose lease has ended is as true as another's.
    """

    key: str
    answer: KeptAnswer


class LeaveIntent(OfIntent[bool], frozen=True):
    """Stop sending an intent that stays open, and say why. Another sender need not wait for the lease to end.

    With `in_doubt` nothing is sent again until a person has decided.
    """

    owner: str
    error: str
    in_doubt: bool = False

    def checked(self) -> Self:
        return replace(self, error=kept_error(self.error))


class ReadIntent(OfIntent[IntentEntry | None], frozen=True):
    """The intent as it is now."""


class ForgetIntent(OfIntent[bool], frozen=True):
    """Delete an intent, so that its name begins a new operation under a new key. Not while a sender holds it.

    The key says which one the caller has read.
    """

    key: str


class PurgeIntents(JournalCall[int], frozen=True):
    """Delete up to `limit` intents that were answered at least `older_ms` ago, oldest first; says how many.

    Open intents stay: without its key, an operation could be done twice.
    """

    namespace: str
    older_ms: int
    limit: int

    def checked(self) -> Self:
        check_duration("older_ms", self.older_ms, least_ms=0)
        _check_limit(self.limit, PURGE_MAX)
        return self


class ListIntents(JournalCall[tuple[IntentEntry, ...]], frozen=True):
    """Intents of a namespace by name, from after `after`. Those that are not answered, unless `answered` says so."""

    namespace: str
    limit: int
    after: str = ""
    answered: bool = False

    def checked(self) -> Self:
        _check_limit(self.limit, LIST_MAX)
        return self


def _size_of(headers: TextHeaders) -> int:
    return sum(len(name.encode()) + len(value.encode()) for name, value in headers)


def _check_limit(limit: int, most: int) -> None:
    if type(limit) is not int or not 1 <= limit <= most:
        raise ValueError(f"limit must be a whole number between 1 and {most}, not {limit!r}")
