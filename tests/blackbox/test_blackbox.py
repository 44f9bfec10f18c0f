"""The black box, quick: 40 seconds, 6 000 requests, 40 faults; and the judge, who must see what is wrong."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from blackbox.clients import Operation, Reply, Told
from blackbox.judge import Evidence, findings
from blackbox.report import as_json, write_page
from blackbox.run import QUICK, Outcome, run
from servers import binaries
from servers.needing import needed

PAID = Operation("redis", "key-1")
REPLY = Reply(201, (("content-type", "application/json"),), b'{"key": "key-1", "effect": "e1"}')
GOOD = Evidence(
    told={PAID: Told([REPLY, REPLY], [Reply(422, (), b'{"type":"/x#key-reused"}')])},
    last={PAID: "201"},
    last_others={PAID: "422 key-reused"},
    effects={("redis", "key-1"): [("amount=10", "e1")], ("none", "key-2"): [("amount=10", "a"), ("amount=10", "b")]},
    stuck=0,
)
OTHER_KEYS = replace(REPLY, body=b'{"key": "key-2", "effect": "e1"}')
WRONG = {
    "no key has two effects": replace(GOOD, effects={("redis", "key-1"): [("amount=10", "e1"), ("amount=10", "e2")]}),
    "every success reply has exactly one effect, and names it": replace(GOOD, effects={}),
    "all success replies for a key are identical": replace(
        GOOD, told={PAID: Told([REPLY, replace(REPLY, headers=())])}
    ),
    "no caller gets another key's answer": replace(GOOD, told={PAID: Told([OTHER_KEYS])}),
    "no key is in progress beyond its lease": replace(GOOD, stuck=1),
    "an answer that was sent as stored is replayed": replace(GOOD, last={PAID: "409 outcome-unknown"}),
    "when all is quiet, every key replays, runs, or is unknown": replace(GOOD, last={PAID: "500"}),
    "another request under the same key is refused with 422 and has no effect": replace(
        GOOD, last_others={PAID: "201"}
    ),
}


@pytest.mark.timeout(500)
def test_three_processes_three_stores_and_a_nemesis(tmp_path: Path) -> None:
    for server in ("postgres", "redis"):
        needed(server, lambda server=server: binaries.require(server))  # type: ignore[misc]
    outcome = run(QUICK, seed=1)
    assert outcome.requests >= 6_000
    assert sum(outcome.faults.values()) >= 40
    kinds = " ".join(outcome.faults)
    assert all(kind in kinds for kind in ("server killed", "past the lease", "restarted", "out of reach", "cut after"))
    assert outcome.violations == []
    assert not outcome.void, "the faults made no duplicates without protection, so the run shows nothing"
    check_report([outcome], tmp_path)


def check_report(outcomes: list[Outcome], folder: Path) -> None:
    total = json.loads(as_json(outcomes))["total"]
    assert total["requests"] == outcomes[0].requests
    page = folder / "page.md"
    page.write_text("before\n<!-- black box -->\nold\n<!-- end of black box -->\nafter\n")
    write_page(page, outcomes)
    assert "old" not in page.read_text()
    assert "| no key has two effects |" in page.read_text()


def test_the_judge_has_nothing_against_a_good_run() -> None:
    found = findings(GOOD)
    assert [finding.violations for finding in found] == [0] * len(WRONG)
    assert all(finding.checked for finding in found)


@pytest.mark.parametrize("invariant", WRONG)
def test_the_judge_sees_what_is_wrong(invariant: str) -> None:
    assert invariant in {finding.invariant for finding in findings(WRONG[invariant]) if finding.violations}
