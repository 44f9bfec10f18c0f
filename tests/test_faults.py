"""Every seeded fault changes the code that it names. One that has gone stale would say nothing."""

from importlib import import_module
from pathlib import Path

import pytest

import semel
from mutants.fault import Fault
from simulation.control import SEEDED

PACKAGE = Path(semel.__file__).parent
MODULES = [path.stem for path in Path(__file__).with_name("mutants").glob("*.py") if path.stem not in ("fault", "run")]
LISTS = {**SEEDED, **{f"mutants of {name}": import_module(f"mutants.{name}").FAULTS for name in MODULES}}


@pytest.mark.parametrize("name", LISTS)
def test_each_fault_can_be_seeded(name: str) -> None:
    faults: list[Fault] = LISTS[name]
    assert faults
    assert [stale for fault in faults if (stale := fault.stale(PACKAGE))] == []
