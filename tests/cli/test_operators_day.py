"""The operator's day in examples/ on every store: nothing but the command line, and no order is charged twice."""

import os
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "operators-day" / "day.sh"
ORDERS = 120


def test_every_unknown_outcome_is_found_and_ended(url: str) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "SEMEL_STORE": url, "ORDERS": str(ORDERS)}
    done = subprocess.run([SCRIPT], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout
    resolved = re.findall(r"^line \d+: [0-9a-f]{16} (.*)$", said, re.MULTILINE)
    assert resolved, "the kill interrupted something"
    assert set(resolved) == {"resolved"}
    assert f"{len(resolved)} would be resolved." in said
    assert "No outcome is unknown" in said
    before, after = re.findall(r"The bank has: (\d+) orders, (\d+) charges", said)
    assert before[0] == before[1]
    assert int(before[0]) < ORDERS, "it was killed before all had paid"
    assert after == (str(ORDERS), str(ORDERS)), "every order was charged, and once"
    assert f"\n{ORDERS} paid\n" in said
    assert "no answer" in said
