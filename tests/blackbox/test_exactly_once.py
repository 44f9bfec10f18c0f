"""The exactly-once arm of the black box, short; and its judge, which must see what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blackbox.clients import Reply
from blackbox.exactly_once.callers import OVERDUE, Asked
from blackbox.exactly_once.journal import Ran
from blackbox.exactly_once.judge import Evidence, findings
from blackbox.exactly_once.orders import Kind, Order
from blackbox.exactly_once.run import SHORT, run, run_seeded
from blackbox.exactly_once.seeded import FAULTS
from servers import binaries
from servers.needing import needed

PAID = Order("asyncpg", "key-1")
DECLINED = Order("asyncpg", "key-2", Kind.DECLINES)
LARGE = Order("asyncpg", "key-3", Kind.LARGE)
ROWS = [("r1", position) for position in (1, 2, 3, 4)]
REPLY = Reply(201, (("content-type", "application/json"),), b'{"key": "key-1", "run": "r1"}')


def told(order: Order, reply: Reply, sent_s: float = 1.0) -> Asked:
    return Asked(order, sent_s, sent_s + 0.1, reply, reply.said)


def problem(status: int, kind: str) -> Reply:
    return Reply(status, (), f'{{"type":"/x#{kind}"}}'.encode())


GOOD = Evidence(
    rows={("asyncpg", "key-1"): ROWS, ("asyncpg", "key-3"): ROWS, ("none", "key-9"): [("a", 1), ("b", 1)]},
    asked=[
        told(PAID, problem(409, "in-progress")),
        told(PAID, REPLY),
        told(PAID, REPLY),
        told(DECLINED, Reply(402, (), b'{"key": "key-2", "run": "r2"}')),
        told(LARGE, problem(409, "result-not-kept")),
    ],
    polled=[told(PAID, problem(410, "key-expired"), sent_s=3.0), told(PAID, Reply(202, (), b""), sent_s=5.1)],
    runs={("asyncpg", "key-1"): [Ran("r0", 2.0, 2.9), Ran("r1", 5.0, 6.0), Ran("r2", 7.0, 8.0)]},
    last={PAID: "201", DECLINED: "402", LARGE: "409 result-not-kept"},
    beside_twins=[("asyncpg", True)],
    far_twins=[("asyncpg", True)],
    late=[("asyncpg", True)],
    after_cuts=[("asyncpg", True)],
)
WITH_ANOTHER = replace(REPLY, body=b'{"key": "key-1", "run": "r2"}')
WRONG = {
    "no key has committed rows of two runs": replace(GOOD, rows={("asyncpg", "key-1"): [*ROWS, ("r2", 1)]}),
    "a run is committed as a whole, or not at all": replace(GOOD, rows={("asyncpg", "key-1"): ROWS[2:]}),
    "every success names the one run that is committed": replace(GOOD, asked=[told(PAID, WITH_ANOTHER)]),
    "what is answered as failed has no committed row": replace(
        GOOD, asked=[told(PAID, problem(500, "internal-error"))]
    ),
    "all final answers for a key are identical": replace(GOOD, asked=[told(PAID, REPLY), told(PAID, WITH_ANOTHER)]),
    "no caller gets another key's answer": replace(GOOD, asked=[told(DECLINED, replace(REPLY, status=402))]),
    "an answer is the order's own end, or says that a repeat runs": replace(
        GOOD, asked=[told(PAID, problem(500, "internal-error"))]
    ),
    "no monitor says that an operation did not run which runs or is committed": replace(
        GOOD, polled=[told(PAID, problem(410, "key-expired"), sent_s=7.1)]
    ),
    "when all is quiet, every order ends as it should": replace(GOOD, last={PAID: "409 outcome-unknown"}),
    "no request is left without an answer": replace(GOOD, asked=[Asked(PAID, 1.0, 16.0, None, OVERDUE)]),
    "no transaction is left open, and all connections are back in their pools": replace(GOOD, left_open=["asyncpg: 1"]),
    "twins that wait take no connection from other keys": replace(GOOD, beside_twins=[("asyncpg", False)]),
    "a twin waits no longer than `wait`, also on a slow network": replace(GOOD, far_twins=[("asyncpg", False)]),
    "a request that outlasts the lease succeeds all the same": replace(GOOD, late=[("asyncpg", False)]),
    "after a handler was cut off its key and its connection are free": replace(GOOD, after_cuts=[("asyncpg", False)]),
}


@pytest.mark.timeout(300)
def test_rows_and_record_are_one_under_a_nemesis() -> None:
    needed("postgres", lambda: binaries.require("postgres"))
    outcome = run(SHORT, seed=1)
    assert outcome.requests >= SHORT.requests_least
    assert sum(outcome.faults.values()) >= SHORT.faults_least
    kinds = " ".join(outcome.faults)
    assert all(kind in kinds for kind in ("event loop blocked", "SIGSTOP", "SIGKILL", "cut", "left", "cancelled"))
    assert outcome.violations == []
    assert not outcome.void, "the faults made no duplicates without protection, so the run shows nothing"


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", FAULTS)
def test_a_seeded_fault_is_noticed(name: str) -> None:
    """Each restores a mistake that was once made. A second seed is for a machine that stood still during the first."""
    needed("postgres", lambda: binaries.require("postgres"))
    fault = FAULTS[name]
    for seed in (1, 2):
        found = {finding.invariant: finding.violations for finding in run_seeded(fault, seed).violations}
        if fault.noticed_by in found:
            break
    assert fault.noticed_by in found


def test_a_monitor_must_not_deny_what_is_committed_later() -> None:
    said = [told(PAID, problem(410, "key-expired"), sent_s=6.1)]  # after its last statement, before its commit
    assert any(found.violations for found in findings(replace(GOOD, polled=said)) if "monitor" in found.invariant)


def test_the_judge_has_nothing_against_a_good_run() -> None:
    found = findings(GOOD)
    assert [finding.violations for finding in found] == [0] * len(WRONG)
    assert all(finding.checked for finding in found)


@pytest.mark.parametrize("invariant", WRONG)
def test_the_judge_sees_what_is_wrong(invariant: str) -> None:
    assert invariant in {finding.invariant for finding in findings(WRONG[invariant]) if finding.violations}
