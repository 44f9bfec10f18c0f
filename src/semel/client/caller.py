"""What the calls of one adapter have in common: the journal, how to repeat, and the errors of the library."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from semel.client.arguments import check_kind, read_seconds
from semel.client.journal import Intent, Journal
from semel.client.marker import IntentMark
from semel.client.retry import Retry
from semel.core.call_values import CallerSettings, OutgoingCall
from semel.core.dialects import KeyDialect
from semel.core.journal import CallRequest
from semel.core.retries import AttemptEnd, find_header
from semel.errors import Misuse
from semel.runtime.arguments import check_function
from semel.runtime.listener import OnEvent, logged

ONCE_ONLY = (
    "the body of this request is a generator or an open file, which can be sent only once: give it as bytes, "
    'for example b"".join(chunks), so that a repeat sends the same'
)


UNAUTHORIZED = 401
CHANGES_NOTHING = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


class LibraryErrors(Struct, frozen=True):
    """The errors of one library, by what they say of the request. Any other error means that it was not sent."""

    unreached: tuple[type[Exception], ...]
    """No connection: the request cannot have arrived."""
    unsendable: tuple[type[Exception], ...]
    """The request could not be made, and repeating it would not help."""
    lost: tuple[type[Exception], ...]
    """The request may have arrived."""

    def classify(self, causes: list[BaseException]) -> AttemptEnd:
        """What an error says, with the errors that caused it."""
        if _has(causes, ssl.SSLCertVerificationError) or _has(causes, self.unsendable):
            return AttemptEnd.UNSENDABLE
        if _has(causes, self.unreached):
            return AttemptEnd.UNREACHED
        return AttemptEnd.LOST if _has(causes, self.lost) else AttemptEnd.UNSENDABLE


class Caller:
    """What the calls of one adapter have in common: the journal, how to repeat, and how the service wants the key."""

    def __init__(
        self,
        journal: Journal | None,
        retry: Retry | None,
        dialect: KeyDialect,
        lease: float,
        on_event: OnEvent,
        errors: LibraryErrors,
    ) -> None:
        check_function(on_event, "on_event=")
        if journal is not None:
            check_kind(journal, Journal, "journal=", 'a Journal, as in Journal("sqlite:///journal.db")')
        check_kind(dialect, KeyDialect, "dialect=", "a KeyDialect, for example semel.client.STRIPE")
        retry = check_kind(Retry() if retry is None else retry, Retry, "retry=", "a Retry, as in Retry(attempts=3)")
        self.journal, self.retry, self.errors, self.on_event = journal, retry, errors, logged(on_event)
        lease_ms = read_seconds(lease, "lease")
        self.settings = CallerSettings(dialect=dialect, backoff=self.retry.backoff, lease_ms=lease_ms)

    def find_intent(self, method: str, named: object) -> Intent | None:
        """What a request names as its intent. The page that a redirect leads to is not the operation."""
        if named is None or method.upper() in CHANGES_NOTHING:
            return None
        if isinstance(named, IntentMark):
            named = named.intent
        if not isinstance(named, Intent):
            raise Misuse(f"a request belongs to an intent of a journal, not to {type(named).__name__} {named!r}")
        if self.journal not in (None, named.journal):
            raise Misuse("the intent is of another journal than the transport's: open both with the same Journal")
        named.is_used = True
        return named

    def call_of(self, request: CallRequest, intent: Intent | None, earlier_key: str = "") -> OutgoingCall:
        """The call that a request asks for, with the key that the caller has put into it."""
        dialect = self.settings.dialect
        key = find_header(request.headers, dialect.header)
        sent = replace(request, dialect=dialect.name)
        return OutgoingCall(sent, key, intent.part if intent else None, earlier_key)


def find_causes(error: BaseException, handled: BaseException | None) -> Iterator[BaseException]:
    """An error and what caused it, up to the one that the caller was handling when the call began."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and cause is not handled and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _has(causes: list[BaseException], kinds: type[Exception] | tuple[type[Exception], ...]) -> bool:
    return any(isinstance(cause, kinds) for cause in causes)
