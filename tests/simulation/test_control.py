"""With a fault in the protocol the simulation fails, by name."""

from __future__ import annotations

import pytest

from simulation.control import CRASHES, SEEDED, apart, load
from simulation.profiles import PROFILES

EVERY = [(of, fault.breaks) for of, faults in SEEDED.items() for fault in faults]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("of", "name"), EVERY)
def test_a_fault_is_noticed(of: str, name: str) -> None:
    found = apart(of, name)
    assert set(found.violated) - CRASHES, f"{name} was not noticed"
    assert set(found.violated) <= set(PROFILES[of].invariants)


@pytest.mark.parametrize(("of", "count"), [("leases", 25), ("exactly-once", 10), ("messages", 20), ("callers", 25)])
def test_the_docs_know_every_fault(of: str, count: int) -> None:
    assert len(SEEDED[of]) >= count
    names = [fault.breaks for fault in SEEDED[of]]
    assert [found.fault for found in load(of)] == names, "run python -m simulation.control"
