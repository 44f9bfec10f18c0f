"""Every interleaving of three workers keeps the promises, and every fault of the model breaks one."""

from __future__ import annotations

import os

import pytest

from servers.binaries import MissingServer
from spin.check import BRIEF, FAULTS, QUICK, Checked, check


def checked(*defines: str, optimise: str = "-O1") -> Checked:
    try:
        return check(*defines, optimise=optimise)
    except MissingServer as error:
        if os.environ.get("CI"):
            pytest.fail(f"missing server: spin: {error}", pytrace=False)
        pytest.skip(f"missing server: spin: {error}")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("defines", QUICK, ids=lambda defines: "+".join(defines) or "at-most-once")
def test_three_workers_keep_every_promise(defines: tuple[str, ...]) -> None:
    found = checked(*defines)
    assert found.violated is None
    assert found.states > 100_000, "a model that hardly moves proves nothing"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_model_is_found(fault: str) -> None:
    mode, _ = FAULTS[fault]
    assert checked(*mode, fault, optimise=BRIEF).violated, f"{fault} was not found"
