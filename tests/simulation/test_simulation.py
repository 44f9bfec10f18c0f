"""The quick profile, the corpus, and that a seed is a history: the same one in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from simulation import corpus
from simulation.invariants import INVARIANTS, MUST_REACH
from simulation.runs import run_scenarios
from simulation.scenario import Scenario, draw
from simulation.shrink import shrink
from simulation.world import run

TESTS = Path(__file__).parents[1]
PART = 2_600


@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", [0, PART])
def test_every_history_keeps_every_promise(first: int) -> None:
    """In a process of its own, as `make sim` runs them: nobody measures, and little else is in memory."""
    options = ["--check", "--processes", "1", "--first", str(first), "--count", str(PART)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "SEMEL_SEED"))}
    done = subprocess.run(
        [sys.executable, "-m", "simulation", *options], cwd=TESTS, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-4_000:]
    assert f"{PART} histories" in done.stdout


def test_there_is_enough_to_violate_and_to_reach() -> None:
    assert len(INVARIANTS) >= 12
    assert len(MUST_REACH) >= 40
    assert {guarantee for guarantee, _ in INVARIANTS.values()} >= {f"G{n}" for n in (1, 3, 4, 5, 6, 7, 8, 9, 10)}


@pytest.mark.timeout(300)
def test_what_once_found_something_finds_nothing_now() -> None:
    known = corpus.load()
    assert known
    tally = run_scenarios(scenario for each in known for scenario in each.schedules())
    assert not tally.failed
    assert tally.histories == len(known) * corpus.SCHEDULES


DIGESTS = """
from simulation.scenario import draw
from simulation.world import run
for seed in range(60):
    print(seed, run(draw(seed), trace=True).digest())
"""


def digests(hash_seed: str) -> list[str]:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", DIGESTS], cwd=TESTS, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_the_same_seed_is_the_same_history_whatever_the_hash_seed() -> None:
    first, second = digests("1"), digests("4242")
    assert first == second
    assert len({line.split()[1] for line in first}) == 60, "different seeds are different histories"


def test_a_history_is_told_step_by_step() -> None:
    trace = "\n".join(run(draw(0), trace=True).trace or ())
    for said in ("r0 to p", "claim ann POST /pay k by r0", "granted, attempt 1", "ENTERS", "is answered"):
        assert said in trace


def test_a_failing_history_is_made_smaller() -> None:
    """Whatever does not matter for the failure is left out: here, all but one crash and one try of one caller."""
    large = next(
        scenario
        for scenario in map(draw, range(10_000))
        if len(scenario.callers) == 4 and len(scenario.process_faults) == 2 and len(scenario.message_faults) == 3
        and any(fault.kind == "crash" for fault in scenario.process_faults)
    )  # fmt: skip

    def violated(scenario: Scenario) -> set[str]:
        crashes = any(fault.kind == "crash" for fault in scenario.process_faults)
        return {"no-hang"} if crashes and scenario.callers else set()

    small = shrink(large, violated)
    assert [fault.kind for fault in small.process_faults] == ["crash"]
    assert not small.message_faults
    assert not small.store_faults
    assert [len(caller.tries) for caller in small.callers] == [1]


def test_what_is_kept_in_the_corpus_is_read_back_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "FILE", tmp_path / "corpus.jsonl")
    corpus.save([])
    known = [corpus.Known(f"seed {seed}", ("no-hang",), draw(seed)) for seed in range(50)]
    for each in (*known, known[0]):
        corpus.join(each)
    assert corpus.load() == known
    assert next(known[0].schedules()) == draw(0)
    assert replace(list(known[0].schedules())[1], seed=0) == draw(0)
