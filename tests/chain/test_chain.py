"""The chain, short; and its judge, which must see what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chain.judge import Evidence, judge_run
from chain.run import SHORT, run
from chain.setting import BARE, INBOX, MARK_FIRST
from servers import binaries
from servers.needing import needed


def message(name: str, customer: str, number: int) -> tuple[str, dict[str, object]]:
    return f"id of {name}", {"name": name, "customer": customer, "number": number}


A1, A2, B1 = message("a1", "a", 1), message("a2", "a", 2), message("b1", "b", 1)
GOOD = Evidence(
    answered={"a1", "b1"},
    refusals=[],
    orders={"a1": ("a", 1), "a2": ("a", 2), "b1": ("b", 1)},
    ledger={INBOX: ["a1", "b1", "a2"], MARK_FIRST: ["a1", "b1"], BARE: ["a1", "a1", "a2", "b1"]},
    audit=[A1, A1, B1, A2, A1, A2, B1],
    direct=[("r1", {"name": "d1", "run": "r1"}), ("r2", {"name": "d1", "run": "r2"})],
    direct_runs={"r2"},
    waiting=0,
    dead=0,
    letters=0,
)
WRONG = {
    "a caller got an answer that no order may get": replace(GOOD, refusals=["orders: 500 oops"]),
    "answered, and no order": replace(GOOD, answered={"a1", "lost"}),
    "an order that took no effect": replace(GOOD, ledger={**GOOD.ledger, INBOX: ["a1", "b1"]}),
    "an effect of no order": replace(GOOD, ledger={**GOOD.ledger, INBOX: ["a1", "b1", "a2", "ghost"]}),
    "more than one effect": replace(GOOD, ledger={**GOOD.ledger, INBOX: ["a1", "b1", "a2", "a2"]}),
    "messages are left": replace(GOOD, dead=1),
    "published under several ids": replace(GOOD, audit=[*GOOD.audit, ("another id", A1[1]), ("another id", A1[1])]),
    "two orders share an id": replace(GOOD, audit=[*GOOD.audit, ("id of a1", A2[1])]),
    "published and not committed": replace(GOOD, audit=[*GOOD.audit, *[message("ghost", "a", 3)] * 2]),
    "committed and not published": replace(GOOD, audit=[A1, A1, A2, A2]),
    "published only once": replace(GOOD, audit=[A1, A1, B1, A2, A1, A2]),
    "out of order": replace(GOOD, audit=[A2, A1, A1, B1, A2, B1]),
}
HARMLESS = {
    "mark-first": replace(GOOD, ledger={**GOOD.ledger, MARK_FIRST: ["a1", "a2", "b1"]}),
    "no inbox": replace(GOOD, ledger={**GOOD.ledger, BARE: ["a1", "a2", "b1"]}),
    "publish, then commit": replace(GOOD, direct=[("r2", {"name": "d1", "run": "r2"})]),
}


def test_a_good_run_is_good() -> None:
    found = judge_run(GOOD)
    assert (found.violations, found.void) == ([], [])


@pytest.mark.parametrize("what", WRONG)
def test_the_judge_sees(what: str) -> None:
    assert [found for found in judge_run(WRONG[what]).violations if found.startswith(what)]


@pytest.mark.parametrize("control", HARMLESS)
def test_a_run_whose_control_shows_no_harm_proves_nothing(control: str) -> None:
    found = judge_run(HARMLESS[control])
    assert [void for void in found.void if control in void]
    assert not judge_run(replace(HARMLESS[control], has_controls=False)).void


@pytest.mark.timeout(300)
def test_each_operation_has_one_effect_at_the_end_of_the_chain() -> None:
    needed("rabbitmq", lambda: binaries.require("rabbitmq"))
    needed("postgres", lambda: binaries.require("postgres"))
    outcome = run(SHORT, "rabbitmq", seed=7)
    assert outcome.orders > 50, "too little happened"
    assert sum(outcome.faults.values()) >= SHORT.kills
    assert not outcome.judgement.violations
    assert not outcome.judgement.void
