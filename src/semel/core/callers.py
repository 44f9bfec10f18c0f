"""The plan of one call to another service's API: when to send, with which key, how long to wait, and when to stop.

It runs with a journal or without one. With one, nothing is sent before the intent is stored. Without a key, a request
whose method is not idempotent is sent once, whatever happens to it.

An error of the journal before the first attempt goes to the caller, and nothing was sent. Later ones end the repeats,
because a sender that cannot prove that it holds the intent does not send. The answer that is there by then is returned.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from semel.core.body_keys import put_key, read_body_key
from semel.core.call_values import (
    AnswerOrigin,
    AwaitIntent,
    CallAnswered,
    CallerSettings,
    CallRefusal,
    CallRefused,
    CallResult,
    CallUnanswered,
    DrawNumber,
    IntentOf,
    IntentOvertaken,
    NewKey,
    OutgoingCall,
    ReadDate,
    ReportAttempt,
    SendFailure,
    SendRequest,
    SpendRetry,
)
from semel.core.dialects import KeyFormat, check_age, check_key, quote_key
from semel.core.effects import Pause, Plan, do
from semel.core.journal import (
    BeginAttempt,
    CloseIntent,
    IntentDrifted,
    IntentEntry,
    IntentGranted,
    IntentHeld,
    IntentId,
    IntentKept,
    IntentStale,
    IntentState,
    KeptAnswer,
    LeaveIntent,
    OpenIntent,
    ReadIntent,
    RenewIntent,
    TextHeaders,
)
from semel.core.relay import NewOwner, ReadClock
from semel.core.retries import (
    NEXT_STEPS,
    AttemptEnd,
    CallAnswer,
    NextStep,
    RepeatLimit,
    find_header,
    is_replay,
    may_repeat,
    read_answer,
    read_retry_after,
    wait_ms,
)
from semel.errors import StoreError

LEASE_MS = 30_000


LOOK_MS, LOOK_MS_MAX = 20, 320
"""How long to wait before looking at another sender's intent: at first, and at most."""


class _Sender(Struct, frozen=True):
    """What stays the same from attempt to attempt."""

    call: OutgoingCall
    settings: CallerSettings
    began_ms: int
    key: str
    headers: TextHeaders
    body: bytes
    owner: str = ""

    @property
    def intent(self) -> IntentId:
        assert self.call.intent is not None
        return self.call.intent.id


def run_call(call: OutgoingCall, settings: CallerSettings) -> Plan[CallResult]:
    """Send a request until there is nothing more to do for it."""
    dialect = settings.dialect
    began_ms = yield from do(ReadClock())
    call = replace(call, key=call.key or read_body_key(call.request, dialect))
    if call.key:
        check_key(call.key, dialect)
    if call.intent is not None:
        put_key(call.request, "", dialect)  # a body that cannot take a key is refused before an intent is opened
        check_age(call.intent.max_age_ms, dialect)
        return (yield from _run_intent(call, call.intent, settings, began_ms))
    key = call.key
    if not key and settings.makes_keys and not may_repeat(call.request.method, keyed=False):
        is_derived = dialect.format is KeyFormat.DERIVED  # from the name of an intent, and there is none
        new_key = NewKey(KeyFormat.UUID4 if is_derived else dialect.format, "")
        key = call.earlier_key or (yield from do(new_key))
    sent_ms = (yield from do(ReadDate())) if key and dialect.first_sent_header else 0
    result = yield from _send(_sender(call, settings, began_ms, key, sent_ms, ""), 0)
    assert not isinstance(result, IntentOvertaken)
    return result


def _run_intent(call: OutgoingCall, intent: IntentOf, settings: CallerSettings, began_ms: int) -> Plan[CallResult]:
    """Become the sender of an intent, or wait for another sender's answer."""
    owner = yield from do(NewOwner())
    name, namespace = intent.id.name, intent.id.namespace
    unique = f"{namespace}\0{name}" if namespace else name  # else applications would derive each other's keys
    proposed = call.key or (yield from do(NewKey(settings.dialect.format, unique)))
    last: CallAnswered | CallUnanswered | None = None
    attempts = 0
    digest = call.request.digest
    while True:
        try:
            reply = yield from do(
                OpenIntent(intent.id, call.request, proposed, owner, settings.lease_ms, intent.max_age_ms)
            )
        except StoreError as error:
            if last is None:
                raise
            return _unkept(last, str(error))
        entry = reply.entry
        if call.key and call.key != entry.key and not isinstance(reply, IntentDrifted):
            if isinstance(reply, IntentGranted):
                yield from _leave(intent.id, owner, CallRefusal.OTHER_KEY.value)
            return CallRefused(CallRefusal.OTHER_KEY, entry, digest)
        match reply:
            case IntentGranted():
                written = find_header(entry.request.headers, settings.dialect.header)
                sender = _sender(call, settings, began_ms, entry.key, entry.created_ms, owner, written)
                result = yield from _send(sender, attempts)
                if not isinstance(result, IntentOvertaken):
                    return result
                last, attempts = result.result, result.result.attempts
                proposed = entry.key  # if people have forgotten the intent meanwhile, it begins anew with this key
            case IntentHeld(_, now_ms):
                left_ms = began_ms + settings.backoff.deadline_ms - (yield from do(ReadClock()))
                if left_ms <= 0:
                    return CallRefused(CallRefusal.BUSY, entry, digest)
                yield from _await_sender(entry, max(1, min(left_ms, entry.lease_until_ms - now_ms)))
            case IntentKept():
                assert entry.answer is not None
                return CallAnswered(entry.answer, AttemptEnd.ANSWERED, AnswerOrigin.JOURNAL, entry.key, attempts)
            case IntentDrifted():
                return CallRefused(CallRefusal.DRIFTED, entry, digest)
            case IntentStale():
                doubtful = entry.state is IntentState.DOUBTFUL
                return CallRefused(CallRefusal.DOUBTFUL if doubtful else CallRefusal.TOO_OLD, entry, digest)
            case _:
                assert_never(reply)


def _await_sender(held: IntentEntry, timeout_ms: int) -> Plan[None]:
    """Wait until the sender that holds an intent is done. Looking takes no lock of the journal; opening does."""
    pause_ms = LOOK_MS
    while timeout_ms > 0:
        pause_ms = min(pause_ms, timeout_ms)
        yield from do(AwaitIntent(held.id, pause_ms))
        try:
            entry = yield from do(ReadIntent(held.id))
        except StoreError:  # opening it tells what is wrong
            return
        if entry is None or (entry.state, entry.owner) != (held.state, held.owner):
            return
        timeout_ms -= pause_ms
        pause_ms = min(2 * pause_ms, LOOK_MS_MAX)


def _send(sender: _Sender, attempts: int) -> Plan[CallResult | IntentOvertaken]:
    """Send until there is an answer that ends the call, or no reason to go on."""
    settings, backoff = sender.settings, sender.settings.backoff
    renew = RenewIntent(sender.intent, sender.owner, settings.lease_ms) if sender.owner else None
    while True:
        attempts += 1
        reply = yield from do(SendRequest(sender.headers, sender.body, attempts, renew))
        end = reply.end if isinstance(reply, SendFailure) else read_answer(reply, settings.dialect)
        step, limit = NEXT_STEPS[end], None
        pause_ms = 0
        if step is NextStep.REPEAT:
            number = yield from do(DrawNumber())
            asked_ms = yield from _asked_ms(reply)
            pause_ms = wait_ms(backoff, attempts, number, asked_ms)
            limit = yield from _find_limit(sender, end, attempts, pause_ms)
            if limit is not None:
                step, pause_ms = NextStep.LEAVE_OPEN, 0
        yield from do(ReportAttempt(attempts, end, step, pause_ms, limit, sender.key))
        if step is not NextStep.REPEAT:
            sent = attempts - 1 if end is AttemptEnd.HELD_BACK else attempts
            return (yield from _end(sender, reply, end, step, sent, limit))
        if not sender.owner:
            yield from do(Pause(pause_ms))
            continue
        try:
            is_held = yield from _pause_holding(sender, pause_ms)
        except StoreError as error:
            return _unkept(_result(sender, reply, end, attempts), str(error))
        if not is_held:
            # Either another sender has it, or it has become too old while we held it: opening it anew tells which.
            yield from _leave(sender.intent, sender.owner, end.value)
            return IntentOvertaken(_result(sender, reply, end, attempts))


def _pause_holding(sender: _Sender, pause_ms: int) -> Plan[bool]:
    """Pause, and begin the next attempt; False if this sender may not. Meanwhile no other sender takes the intent."""
    lease_ms = sender.settings.lease_ms
    is_held = yield from do(RenewIntent(sender.intent, sender.owner, pause_ms + lease_ms))
    if not is_held:
        return False
    yield from do(Pause(pause_ms))
    return (yield from do(BeginAttempt(sender.intent, sender.owner, lease_ms)))


def _asked_ms(reply: CallAnswer | SendFailure) -> Plan[int | None]:
    """How long the server asks to wait."""
    asked = "" if isinstance(reply, SendFailure) else find_header(reply.headers, "retry-after")
    return read_retry_after(asked, (yield from do(ReadDate()))) if asked else None


def _find_limit(sender: _Sender, end: AttemptEnd, attempts: int, pause_ms: int) -> Plan[RepeatLimit | None]:
    """Why the request is not sent again. None if that is safe, in time, and within the budget of the process."""
    backoff = sender.settings.backoff
    if not may_repeat(sender.call.request.method, keyed=bool(sender.key)):
        return RepeatLimit.UNSAFE
    if attempts >= backoff.attempts:
        return RepeatLimit.ATTEMPTS
    now_ms = yield from do(ReadClock())
    if now_ms + pause_ms >= sender.began_ms + backoff.deadline_ms:
        return RepeatLimit.DEADLINE
    if end is AttemptEnd.IN_PROGRESS or (yield from do(SpendRetry())):
        return None
    return RepeatLimit.BUDGET


def _end(
    sender: _Sender,
    reply: CallAnswer | SendFailure,
    end: AttemptEnd,
    step: NextStep,
    attempts: int,
    limit: RepeatLimit | None,
) -> Plan[CallResult]:
    """Close the intent, or leave it open, and return what there is."""
    result = replace(_result(sender, reply, end, attempts), limit=limit)
    if sender.owner and step is NextStep.CLOSE and isinstance(reply, CallAnswer):
        kept = KeptAnswer.of(reply.status, reply.headers, reply.body)
        try:
            yield from do(CloseIntent(sender.intent, sender.key, kept))
        except StoreError as error:
            return _unkept(result, str(error))
    elif sender.owner:
        reason = _reason(reply, end, limit)
        yield from _leave(sender.intent, sender.owner, reason, in_doubt=step is NextStep.DOUBT)
    return result


def _result(
    sender: _Sender, reply: CallAnswer | SendFailure, end: AttemptEnd, attempts: int
) -> CallAnswered | CallUnanswered:
    if isinstance(reply, SendFailure):
        return CallUnanswered(reply, sender.key, attempts)
    replayed = is_replay(reply, sender.settings.dialect)
    origin = AnswerOrigin.REPLAYED if replayed else AnswerOrigin.FRESH
    return CallAnswered(reply, end, origin, sender.key, attempts)


def _unkept(result: CallAnswered | CallUnanswered, error: str) -> CallResult:
    """What there is, with the reason why the journal does not have it."""
    return replace(result, unkept=error) if isinstance(result, CallAnswered) else result


def _leave(intent: IntentId, owner: str, error: str, *, in_doubt: bool = False) -> Plan[None]:
    """Say that this sender is done. If the journal cannot be told, the lease ends by itself."""
    try:
        yield from do(LeaveIntent(intent, owner, error, in_doubt))
    except StoreError:
        return


def _reason(reply: CallAnswer | SendFailure, end: AttemptEnd, limit: RepeatLimit | None) -> str:
    said = f"{end.value}; {limit.value}" if limit else end.value
    return f"{said}: {reply.error}" if isinstance(reply, SendFailure) else f"{reply.status}: {said}"


def _sender(
    call: OutgoingCall,
    settings: CallerSettings,
    began_ms: int,
    key: str,
    first_sent_ms: int,
    owner: str,
    written: str = "",
) -> _Sender:
    """The same headers and bytes for every attempt.

    `written` is the header that the caller wrote itself when the intent began. Quoted anew it could be another key.
    """
    dialect = settings.dialect
    headers: list[tuple[str, str]] = []
    body = call.request.body
    if key and not call.key:
        check_key(key, dialect)
        body = put_key(call.request, key, dialect)
        if dialect.header:
            headers.append((dialect.header, written or quote_key(key, dialect.quoting)))
    if key and dialect.first_sent_header:
        date = datetime.fromtimestamp(first_sent_ms // 1_000, UTC)
        headers.append((dialect.first_sent_header, format_datetime(date, usegmt=True)))
    return _Sender(call, settings, began_ms, key, tuple(headers), body, owner)
