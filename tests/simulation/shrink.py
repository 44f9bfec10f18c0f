"""Makes a failing history smaller: leaves out faults, callers, tries and processes for as long as it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from simulation.profiles import Profile


def violated_by(profile: Profile, scenario: Any) -> set[str]:
    return {name for name, _ in profile.run(scenario).violations}


def shrink(scenario: Any, violated: Callable[[Any], set[str]]) -> Any:
    """The smallest scenario on the way that still violates one of the same invariants."""
    wanted = violated(scenario)
    shrunk = True
    while shrunk:
        shrunk = False
        for smaller in _smaller(scenario):
            if violated(smaller) & wanted:
                scenario, shrunk = smaller, True
                break
    return scenario


def _smaller(scenario: Any) -> Iterator[Any]:
    """Everything that is one part smaller, the large parts first."""
    for index, caller in enumerate(scenario.callers):
        others = scenario.callers[:index] + scenario.callers[index + 1 :]
        yield replace(scenario, callers=others)
        for number in range(len(caller.tries)):
            fewer = replace(caller, tries=caller.tries[:number] + caller.tries[number + 1 :])
            if fewer.tries:
                yield replace(scenario, callers=(*scenario.callers[:index], fewer, *scenario.callers[index + 1 :]))
    for name in (
        "process_faults",
        "message_faults",
        "store_faults",
        "lease_faults",
        "way_faults",
        "operator_faults",
        "addings",
        "asks",
    ):
        faults = getattr(scenario, name, ())
        for index in range(len(faults)):
            yield replace(scenario, **{name: faults[:index] + faults[index + 1 :]})
    used = max((caller.operation for caller in scenario.callers), default=0) + 1
    if used < len(scenario.operations):
        yield replace(scenario, operations=scenario.operations[:used])
    if scenario.step_ms:
        yield replace(scenario, step_ms=0.0)
