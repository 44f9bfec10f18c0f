"""With a fault in the protocol the simulation fails, by name."""

from __future__ import annotations

import pytest

from simulation.control import CRASHES, apart, load
from simulation.faults import FAULTS
from simulation.invariants import INVARIANTS


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [fault.breaks for fault in FAULTS])
def test_a_fault_is_noticed(name: str) -> None:
    found = apart(name)
    assert set(found.violated) - CRASHES, f"{name} was not noticed"
    assert set(found.violated) <= set(INVARIANTS)


def test_the_docs_know_every_fault() -> None:
    assert len(FAULTS) >= 25
    assert [found.fault for found in load()] == [fault.breaks for fault in FAULTS], "run python -m simulation.control"
