"""However many wait, and however much is streamed, memory stays within a bound. Each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROBE = Path(__file__).parent / "memory_probe.py"
MIB = 1024


def probe(what: str) -> tuple[int, list[str]]:
    """How many KiB it took, and what was seen."""
    done = subprocess.run([sys.executable, str(PROBE), what], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    peak_kib, *seen = done.stdout.split()
    return int(peak_kib), seen


def test_ten_thousand_waiters() -> None:
    peak_kib, (effects, answered, one_too_many) = probe("waiters")
    assert (effects, answered, one_too_many) == ("1", "10000", "409")
    assert peak_kib < 500 * MIB, "50 KiB for each of them"


@pytest.mark.parametrize("front", ["streamed", "streamed_by_wsgi"])
def test_an_answer_of_a_gibibyte_streams_through(front: str) -> None:
    peak_kib, (status, size, again) = probe(front)
    assert (status, size, again) == ("200", str(2**30), "409"), "and its repeat is told that it was not kept"
    assert peak_kib < 100 * MIB


def test_a_body_that_drips_is_refused_at_its_limit_and_costs_little_more() -> None:
    peak_kib, seen = probe("dripping")
    assert seen == ["413"]
    assert peak_kib < 60 * MIB
