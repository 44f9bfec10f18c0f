"""The short form of the long runs."""

import pytest

from fire.long.run import run
from servers import binaries
from servers.needing import needed


@pytest.mark.timeout(200)
def test_masters_of_a_cluster_are_killed_under_three_service_processes() -> None:
    """Every write is confirmed by a replica, so no failover loses one: no key has two effects, no answer is lost."""
    needed("redis", lambda: binaries.require("redis"))
    outcome = run("redis-cluster", seconds=7.0, seed=1)
    assert sum(outcome.faults.values()) >= 1
    assert outcome.keys > 50
    assert outcome.violations == []
