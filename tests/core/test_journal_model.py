"""What a caller's journal does, call by call, with its boundaries. Journals in files are compared with this model."""

from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from semel.core import journal_model
from semel.core.attempts import ERROR_MAX
from semel.core.journal import (
    BODY_MAX,
    HEADERS_MAX,
    LIST_MAX,
    PURGE_MAX,
    BeginAttempt,
    CallRequest,
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
    KeptAnswer,
    LeaveIntent,
    ListIntents,
    OpenIntent,
    PurgeIntents,
    ReadIntent,
    RenewIntent,
)
from semel.core.journal_model import IntentBook
from semel.core.records import NOBODY

T = TypeVar("T")
START_MS, LEASE_MS, MAX_AGE_MS = 1_000, 30, 500
PAY = IntentId("pay:42")
REQUEST = CallRequest("POST", "https://api.example/pay", (("Content-Type", "application/json"),), b"{}")
CREATED = KeptAnswer.of(201, (("Location", "/pay/1"),), b"paid")


def opening(owner: str = "first", key: str = "k1", request: CallRequest = REQUEST, **changed: Any) -> OpenIntent:
    return OpenIntent(changed.pop("id", PAY), request, key, owner, LEASE_MS, changed.pop("max_age_ms", MAX_AGE_MS))


class Desk:
    """A journal and its time, for tests that ask one call after the other."""

    def __init__(self) -> None:
        self.book, self.now_ms = IntentBook(), START_MS

    def ask(self, call: JournalCall[T]) -> T:
        self.book, reply = journal_model.answer(self.book, call, self.now_ms)
        return reply

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    @property
    def entry(self) -> IntentEntry:
        found = self.ask(ReadIntent(PAY))
        assert found is not None
        return found


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_the_first_sender_gets_its_own_key(desk: Desk) -> None:
    assert desk.ask(ReadIntent(PAY)) is None
    reply = desk.ask(opening())
    expected = IntentEntry(PAY, "k1", REQUEST, IntentState.OPEN, START_MS, MAX_AGE_MS, 1, "first", START_MS + LEASE_MS)
    assert reply == IntentGranted(expected)
    assert desk.entry == expected


def test_another_sender_waits_while_the_lease_is_live_and_then_has_the_same_key(desk: Desk) -> None:
    desk.ask(opening())
    desk.pass_time(LEASE_MS - 1)
    assert desk.ask(opening("second", "k2")) == IntentHeld(desk.entry, desk.now_ms)
    desk.pass_time(1)
    reply = desk.ask(opening("second", "k2"))
    assert isinstance(reply, IntentGranted)
    assert (reply.entry.key, reply.entry.owner, reply.entry.attempts) == ("k1", "second", 2)
    assert reply.entry.created_ms == START_MS, "its age counts from the first time"


def test_an_answer_is_kept_and_given_without_a_request(desk: Desk) -> None:
    desk.ask(opening())
    desk.pass_time(7)
    assert desk.ask(CloseIntent(PAY, "k1", CREATED))
    kept = desk.ask(opening("second", "k2"))
    assert isinstance(kept, IntentKept)
    assert (kept.entry.answer, kept.entry.finished_ms, kept.entry.owner) == (CREATED, START_MS + 7, NOBODY)
    desk.pass_time(MAX_AGE_MS)
    assert isinstance(desk.ask(opening("second", "k2")), IntentKept), "however old it is"


def test_the_first_answer_stays(desk: Desk) -> None:
    desk.ask(opening())
    assert not desk.ask(CloseIntent(PAY, "another key", CREATED))
    assert desk.ask(CloseIntent(PAY, "k1", CREATED))
    assert not desk.ask(CloseIntent(PAY, "k1", KeptAnswer.of(500, (), b"")))
    assert not desk.ask(CloseIntent(IntentId("unknown"), "k1", CREATED))
    assert desk.entry.answer == CREATED


def test_a_sender_that_was_overtaken_may_still_close_the_intent(desk: Desk) -> None:
    desk.ask(opening())
    desk.pass_time(LEASE_MS)
    desk.ask(opening("second"))
    assert desk.ask(CloseIntent(PAY, "k1", CREATED))
    for call in (RenewIntent(PAY, "second", LEASE_MS), BeginAttempt(PAY, "second", LEASE_MS)):
        assert not desk.ask(call)
    assert not desk.ask(LeaveIntent(PAY, "second", "too late"))
    assert desk.entry.answer == CREATED


@pytest.mark.parametrize(
    "other",
    [
        replace(REQUEST, body=b"{ }"),
        replace(REQUEST, url="https://api.example/refund"),
        replace(REQUEST, method="PUT"),
        replace(REQUEST, headers=(("content-type", "text/plain"),)),
        replace(REQUEST, headers=()),
        replace(REQUEST, dialect="stripe"),
    ],
)
def test_another_request_under_the_name_is_refused(desk: Desk, other: CallRequest) -> None:
    desk.ask(opening())
    before = desk.entry
    for prepare in (None, CloseIntent(PAY, "k1", CREATED)):
        if prepare is not None:
            desk.ask(prepare)
            before = desk.entry
        assert desk.ask(opening("second", request=other)) == IntentDrifted(before, other.digest)
    assert other.digest != REQUEST.digest


def test_headers_that_differ_from_run_to_run_do_not_matter(desk: Desk) -> None:
    later = replace(REQUEST, method="post", headers=(("accept", "*/*"), *REQUEST.headers, ("User-Agent", "x/2")))
    assert later.digest == REQUEST.digest


def test_the_parts_of_a_request_do_not_run_into_each_other() -> None:
    assert CallRequest("POST", "ab", (), b"c").digest != CallRequest("POST", "a", (), b"bc").digest


def test_an_intent_that_is_too_old_is_not_sent_again(desk: Desk) -> None:
    desk.ask(opening())
    desk.pass_time(MAX_AGE_MS - 1)
    assert desk.ask(BeginAttempt(PAY, "first", LEASE_MS))
    desk.pass_time(1)
    assert not desk.ask(BeginAttempt(PAY, "first", LEASE_MS))
    desk.pass_time(LEASE_MS)
    assert desk.ask(opening("second")) == IntentStale(desk.entry)
    assert desk.entry.attempts == 2


def test_the_shortest_age_that_was_asked_for_counts(desk: Desk) -> None:
    desk.ask(opening())
    desk.pass_time(100)
    stale = desk.ask(opening("second", max_age_ms=100))
    assert isinstance(stale, IntentStale)
    assert stale.entry.max_age_ms == 100
    granted = desk.ask(opening("second", max_age_ms=101))
    assert isinstance(granted, IntentGranted)
    assert desk.entry.max_age_ms == 101
    desk.pass_time(LEASE_MS)
    assert isinstance(desk.ask(opening("third")), IntentStale), "a longer age does not make it younger"


def test_a_doubt_stops_all_sending_until_it_is_settled(desk: Desk) -> None:
    desk.ask(opening())
    assert desk.ask(LeaveIntent(PAY, "first", "outcome-unknown", in_doubt=True))
    assert (desk.entry.state, desk.entry.error) == (IntentState.DOUBTFUL, "outcome-unknown")
    assert desk.ask(opening("second")) == IntentStale(desk.entry)
    assert desk.ask(CloseIntent(PAY, "k1", CREATED)), "a late answer settles it"
    assert isinstance(desk.ask(opening("second")), IntentKept)


def test_a_sender_that_leaves_lets_the_next_one_begin_at_once(desk: Desk) -> None:
    desk.ask(opening())
    assert not desk.ask(LeaveIntent(PAY, "second", ""))
    assert desk.ask(LeaveIntent(PAY, "first", "\0" + "x" * 2 * ERROR_MAX))
    assert (desk.entry.owner, desk.entry.state, desk.entry.error) == (NOBODY, IntentState.OPEN, "x" * ERROR_MAX)
    granted = desk.ask(opening("second"))
    assert isinstance(granted, IntentGranted)
    assert granted.entry.error == ""


def test_a_lease_is_renewed_by_its_owner_alone_and_as_long_as_no_other_has_it(desk: Desk) -> None:
    assert not desk.ask(RenewIntent(PAY, "first", LEASE_MS))
    desk.ask(opening())
    desk.pass_time(LEASE_MS + 5)
    assert not desk.ask(RenewIntent(PAY, "second", LEASE_MS))
    assert desk.ask(RenewIntent(PAY, "first", LEASE_MS))
    assert desk.entry.lease_until_ms == desk.now_ms + LEASE_MS
    assert desk.entry.attempts == 1
    desk.pass_time(LEASE_MS)
    desk.ask(opening("second"))
    assert not desk.ask(RenewIntent(PAY, "first", LEASE_MS))


def test_nobody_owns_an_intent_that_was_left(desk: Desk) -> None:
    desk.ask(opening())
    desk.ask(LeaveIntent(PAY, "first", ""))
    assert not desk.ask(RenewIntent(PAY, NOBODY, LEASE_MS))


def test_a_forgotten_name_begins_a_new_operation(desk: Desk) -> None:
    assert not desk.ask(ForgetIntent(PAY, "k1"))
    desk.ask(opening())
    assert not desk.ask(ForgetIntent(PAY, "k1")), "its request is under way"
    desk.pass_time(LEASE_MS)
    assert not desk.ask(ForgetIntent(PAY, "another key"))
    assert desk.ask(ForgetIntent(PAY, "k1"))
    granted = desk.ask(opening("second", "k2"))
    assert isinstance(granted, IntentGranted)
    assert granted.entry.key == "k2"
    assert not desk.ask(CloseIntent(PAY, "k1", CREATED)), "an answer to the forgotten one is not its answer"


def test_lists_and_purges_keep_to_their_namespace_and_limit(desk: Desk) -> None:
    names = [IntentId(name, space) for space in ("", "shop") for name in ("c", "a", "b")]
    for name in names:
        desk.ask(opening(key=f"{name.name}-{name.namespace}", id=name))
    for late, name in enumerate(names[:3]):
        desk.pass_time(10 * late)
        desk.ask(CloseIntent(name, f"{name.name}-", CREATED))

    def listed(namespace: str, **rest: Any) -> list[str]:
        return [entry.id.name for entry in desk.ask(ListIntents(namespace, rest.pop("limit", 10), **rest))]

    assert (listed(""), listed("", answered=True)) == ([], ["a", "b", "c"])
    assert (listed("shop"), listed("shop", limit=2), listed("shop", after="a")) == (
        ["a", "b", "c"],
        ["a", "b"],
        ["b", "c"],
    )
    assert desk.ask(PurgeIntents("shop", 0, 10)) == 0
    assert desk.ask(PurgeIntents("", 20, 10)) == 2, "of c, a, b, which were answered at 0, 10 and 30"
    assert listed("", answered=True) == ["b"]
    assert desk.ask(PurgeIntents("", 0, 10)) == 1
    for name in names[:2]:
        desk.ask(opening(key="new", id=name))
        desk.ask(CloseIntent(name, "new", CREATED))
        desk.pass_time(1)
    assert desk.ask(PurgeIntents("", 0, 1)) == 1
    assert listed("", answered=True) == ["a"], "the oldest goes first"


def test_secrets_are_not_kept() -> None:
    headers = tuple((name, "s3cret") for name in ("Authorization", "Cookie", "X-Api-Key", "Proxy-Authorization"))
    kept = replace(REQUEST, headers=(*headers, *REQUEST.headers)).checked()
    assert kept == REQUEST
    answer = KeptAnswer.of(200, (("Set-Cookie", "s3cret"), ("ETag", '"1"')), b"")
    assert answer.headers == (("ETag", '"1"'),)


def test_the_header_with_the_callers_own_key_is_kept_as_it_was_written() -> None:
    written = ("Idempotency-Key", '"mine"')
    request = replace(REQUEST, headers=(("Authorization", "s3cret"), written, *REQUEST.headers))
    assert written in opening(key='"mine"', request=request).checked().request.headers
    assert opening(key="drawn", request=request).checked().request == REQUEST


def test_an_answer_is_kept_whatever_its_size() -> None:
    assert KeptAnswer.of(200, (), b"x" * BODY_MAX).body is not None
    large = KeptAnswer.of(200, (("x", "y" * HEADERS_MAX),), b"x" * (BODY_MAX + 1))
    assert large == KeptAnswer(200, (), None, BODY_MAX + 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (opening(request=replace(REQUEST, body=b"x" * (BODY_MAX + 1))), "body has 1048577 bytes, and a journal keeps"),
        (opening(request=replace(REQUEST, headers=(("accept", "x" * HEADERS_MAX),))), "headers have 65542 bytes"),
        (opening(request=replace(REQUEST, url="")), "url must not be empty"),
        (opening(request=replace(REQUEST, method="P" * 33)), "method has 33 bytes in UTF-8, the limit is 32"),
        (opening(id=IntentId("")), "name must not be empty"),
        (opening(id=IntentId("n" * 256)), "name has 256 bytes"),
        (opening(id=IntentId("n", "n" * 256)), "namespace has 256 bytes"),
        (opening(key=""), "key must not be empty"),
        (opening(owner=""), "owner must not be empty"),
        (opening(max_age_ms=0), "max_age_ms must be between 1 and"),
        (replace(opening(), lease_ms=0), "lease_ms must be between 1 and"),
        (RenewIntent(PAY, "first", 0), "lease_ms must be between 1 and"),
        (BeginAttempt(PAY, "first", 0), "lease_ms must be between 1 and"),
        (PurgeIntents("", -1, 1), "older_ms must be between 0 and"),
        (PurgeIntents("", 0, PURGE_MAX + 1), "limit must be a whole number between 1 and 10000, not 10001"),
        (ListIntents("", 0), "limit must be a whole number between 1 and 1000, not 0"),
        (ListIntents("", LIST_MAX + 1), "limit must be a whole number between 1 and 1000, not 1001"),
        (ListIntents("", True), "limit must be a whole number between 1 and 1000, not True"),
    ],
)
def test_bad_calls_are_refused_by_name(desk: Desk, call: JournalCall[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        desk.ask(call)


OWNERS = st.sampled_from(["a", "b", "c"])
CALLS = st.one_of(
    OWNERS.map(lambda owner: opening(owner, f"key of {owner}")),
    OWNERS.map(lambda owner: RenewIntent(PAY, owner, LEASE_MS)),
    OWNERS.map(lambda owner: BeginAttempt(PAY, owner, LEASE_MS)),
    st.builds(LeaveIntent, st.just(PAY), OWNERS, st.just("why"), st.booleans()),
    OWNERS.map(lambda owner: CloseIntent(PAY, f"key of {owner}", KeptAnswer.of(200, (), owner.encode()))),
)


@given(st.lists(st.tuples(CALLS, st.integers(0, LEASE_MS + 5)), max_size=30))
@settings(max_examples=150, deadline=None)
def test_one_key_one_sender_one_answer(calls: list[tuple[JournalCall[Any], int]]) -> None:
    desk = Desk()
    key, answered, holder, until_ms = "", None, NOBODY, 0
    for call, late_ms in calls:
        reply: IntentReply | bool = desk.ask(call)
        if isinstance(call, OpenIntent) and isinstance(reply, IntentGranted):
            assert key in ("", reply.entry.key), "a name never gets a second key"
            assert answered is None
            assert holder == NOBODY or desk.now_ms >= until_ms, "two senders at once"
            key, holder, until_ms = reply.entry.key, call.owner, reply.entry.lease_until_ms
        elif reply is True and isinstance(call, RenewIntent | BeginAttempt):
            assert call.owner == holder
            until_ms = desk.now_ms + LEASE_MS
        elif reply is True and isinstance(call, LeaveIntent):
            assert call.owner == holder
            holder, until_ms = NOBODY, 0
        elif reply is True and isinstance(call, CloseIntent):
            assert (answered, call.key) == (None, key)
            answered, holder = call.answer, NOBODY
        found = desk.ask(ReadIntent(PAY))
        assert (found.answer if found else None) == answered
        desk.pass_time(late_ms)
