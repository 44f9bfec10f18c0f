"""The quick profile, the corpus, and that a seed is a history: the same one in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from simulation import corpus
from simulation.profiles import CALLERS, EXACTLY_ONCE, MESSAGES, PROFILES, Profile
from simulation.runs import run_scenarios
from simulation.scenario import Scenario, draw
from simulation.shrink import shrink
from simulation.world import run

TESTS = Path(__file__).parents[1]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("of", PROFILES)
def test_every_history_keeps_every_promise(of: str) -> None:
    """In a process of its own, as `make sim` runs them: nobody measures, and little else is in memory."""
    count = PROFILES[of].brief
    options = ["--only", of, "--check", "--processes", "1", "--count", str(count)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "SEMEL_SEED"))}
    done = subprocess.run(
        [sys.executable, "-m", "simulation", *options], cwd=TESTS, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-4_000:]
    assert f"{count} histories" in done.stdout


def test_there_is_enough_to_violate_and_to_reach() -> None:
    for profile in PROFILES.values():
        assert len(profile.invariants) >= 12
        assert len(profile.must_reach) >= 40
    names = {guarantee for profile in PROFILES.values() for guarantee, _ in profile.invariants.values()}
    assert names >= {f"G{n}" for n in range(1, 11)}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_what_once_found_something_finds_nothing_now(profile: Profile) -> None:
    known = corpus.load(profile)
    assert known
    tally = run_scenarios((scenario for each in known for scenario in each.schedules()), profile)
    assert not tally.failed
    assert tally.histories == len(known) * corpus.SCHEDULES


DIGESTS = """
import sys
from simulation.profiles import PROFILES
profile = PROFILES[sys.argv[1]]
for seed in range(60):
    print(seed, profile.run(profile.draw(seed), trace=True).digest())
"""


def digests(of: str, hash_seed: str) -> list[str]:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", DIGESTS, of], cwd=TESTS, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("of", PROFILES)
def test_the_same_seed_is_the_same_history_whatever_the_hash_seed(of: str) -> None:
    first, second = digests(of, "1"), digests(of, "4242")
    assert first == second
    assert len({line.split()[1] for line in first}) == 60, "different seeds are different histories"


def test_a_history_is_told_step_by_step() -> None:
    trace = "\n".join(run(draw(0), trace=True).trace or ())
    for said in ("r0 to p", "claim ann POST /pay k by r0", "granted, attempt 1", "ENTERS", "is answered"):
        assert said in trace


def test_a_history_with_transactions_is_told_statement_by_statement() -> None:
    trace = "\n".join(EXACTLY_ONCE.run(EXACTLY_ONCE.draw(0), trace=True).trace or ())
    for said in ("r0 to p", "BEGIN", "claim ->", "ENTERS", "write ->", "complete ->", "COMMITTED", "is answered"):
        assert said in trace


def test_a_history_of_callers_is_told_from_the_intent_to_the_answer() -> None:
    trace = "\n".join(CALLERS.run(CALLERS.draw(0), trace=True).trace or ())
    for said in ("asks for op0", "OpenIntent", "sends", "arrives at p", "ENTERS", "EFFECT of op0", "ends with"):
        assert said in trace


def test_without_a_journal_some_operations_take_effect_twice() -> None:
    """A program asks for one operation, and asks again when it died: under the key of the journal, or a new one."""
    histories = [replace(each, asks=each.asks[:1]) for each in map(CALLERS.draw, range(300)) if each.promised]
    bare = [replace(each, settings=replace(each.settings, journal=False)) for each in histories]
    assert sum(CALLERS.run(each).oracle.doubled for each in histories) == 0
    assert sum(CALLERS.run(each).oracle.doubled for each in bare) >= 5


def test_a_history_of_messages_is_told_from_the_outbox_to_the_effect() -> None:
    trace = "\n".join(MESSAGES.run(MESSAGES.draw(3), trace=True).trace or ())
    for said in ("with number", "TakeMessages", "publishes m", "SettleMessages", "write ->", "COMMIT", "is HANDLED"):
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


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_what_is_kept_in_the_corpus_is_read_back_as_it_was(profile: Profile, tmp_path: Path) -> None:
    profile = replace(profile, corpus=tmp_path / "corpus.jsonl")
    corpus.save([], profile)
    known = [corpus.Known(f"seed {seed}", ("no-hang",), profile.draw(seed)) for seed in range(50)]
    for each in (*known, known[0]):
        corpus.join(each, profile)
    assert corpus.load(profile) == known
    assert next(known[0].schedules()) == profile.draw(0)
    assert replace(list(known[0].schedules())[1], seed=0) == profile.draw(0)
