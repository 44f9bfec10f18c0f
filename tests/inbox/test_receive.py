"""`inbox.receive`: a block around the handling of one message, under a lease."""

from __future__ import annotations

import asyncio
import uuid

import pytest

import semel
from semel.errors import KeyReused, Misuse, NotExecuted, OutcomeUnknown
from semel.inbox import AsyncInbox, Inbox
from semel.testing import ManualClock


@pytest.fixture
def id() -> str:
    return uuid.uuid4().hex


def test_a_message_is_handled_once(id: str) -> None:
    inbox, sent = Inbox("orders.mailer", store=semel.open_store("memory://")), []
    for _ in range(3):
        with inbox.receive(id) as receipt:
            if receipt.duplicate:
                continue
            sent.append(receipt.derive("mail"))
    assert len(sent) == 1


def test_the_same_for_tasks(id: str) -> None:
    async def main() -> list[str]:
        inbox, sent = AsyncInbox("orders.mailer", store=semel.open_async_store("memory://")), []
        for _ in range(3):
            async with inbox.receive(id) as receipt:
                if not receipt.duplicate:
                    sent.append(receipt.derive("mail"))
                    assert semel.current_operation() is receipt
        return sent

    assert len(asyncio.run(main())) == 1


def test_leaving_without_looking_is_an_error_the_first_time_already(id: str) -> None:
    inbox = Inbox("orders.mailer", store=semel.open_store("memory://"))
    for _ in range(2):
        with pytest.raises(Misuse, match=r"Write `if receipt.duplicate: return`"), inbox.receive(id):
            pass


def test_a_block_is_entered_once_and_says_what_to_write(id: str) -> None:
    block = Inbox("orders.mailer", store=semel.open_store("memory://")).receive(id)
    with block as receipt:
        assert not receipt.duplicate
    with pytest.raises(Misuse, match=r"call inbox.receive\(…\) again"):
        block.__enter__()


def test_at_most_once_a_block_that_failed_is_never_entered_again(id: str) -> None:
    inbox = Inbox("orders.mailer", store=semel.open_store("memory://"))
    with pytest.raises(ZeroDivisionError), inbox.receive(id) as receipt:
        print(receipt.duplicate or 1 / 0)
    with pytest.raises(OutcomeUnknown):
        inbox.receive(id).__enter__()


def test_at_least_once_a_block_that_failed_is_entered_again_with_the_next_attempt(id: str) -> None:
    policy = semel.Policy(guarantee="at-least-once")
    inbox = Inbox("orders.mailer", store=semel.open_store("memory://"), policy=policy)
    with pytest.raises(ZeroDivisionError), inbox.receive(id) as receipt:
        print(receipt.duplicate or 1 / 0)
    with inbox.receive(id) as receipt:
        assert not receipt.duplicate
        assert receipt.attempt == 2


def test_a_block_in_which_nothing_was_done_gives_the_message_back(id: str) -> None:
    inbox = Inbox("orders.mailer", store=semel.open_store("memory://"))
    with pytest.raises(NotExecuted), inbox.receive(id):
        raise NotExecuted("closed")
    with inbox.receive(id) as receipt:
        assert not receipt.duplicate
        receipt.nothing_done()
    with inbox.receive(id) as receipt:
        assert not receipt.duplicate


def test_the_same_id_for_another_message_is_refused(id: str) -> None:
    inbox = Inbox("orders.mailer", store=semel.open_store("memory://"))
    with inbox.receive(id, {"order": 1}) as receipt:
        assert not receipt.duplicate
    with pytest.raises(KeyReused):
        inbox.receive(id, {"order": 2}).__enter__()


def test_a_message_is_known_for_seven_days_unless_the_user_says_otherwise(id: str) -> None:
    clock, day_ms = ManualClock(), 24 * 3600 * 1000
    store = semel.open_store("memory://", clock=clock)
    for days, inbox in (
        (7, Inbox("a", store=store)),
        (30, Inbox("b", store=store, retention=30 * 24 * 3600)),
        (2, Inbox("c", store=store, policy=semel.Policy(retention=2 * 24 * 3600))),
    ):
        began_ms = clock.now_ms
        for passed_ms, known in ((0, False), (days * day_ms - 1, True), (days * day_ms, False)):
            clock.advance(began_ms + passed_ms - clock.now_ms)
            with inbox.receive(id) as receipt:
                assert receipt.duplicate is known, days
