"""Runs Spin on the model: `make spin`. Without a fault nothing may be found, with each fault something must be.

Three workers take seconds and are part of the tests; `make spin` also lets the retention pass under take-over, and
checks four workers.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from servers.binaries import require

MODEL = Path(__file__).with_name("protocol.pml")
TAKEOVER, KEPT = "TAKEOVER", "KEPT"
QUICK = [(), (TAKEOVER, KEPT)]
"""At-most-once with retention; at-least-once, where retention never passes."""
LONG = [(TAKEOVER,), ("WORKERS=4", KEPT), ("WORKERS=4", TAKEOVER, KEPT)]
FAULTS = {
    "UNFENCED_COMPLETE": ((KEPT,), "a result is stored for whoever asks"),
    "UNFENCED_RELEASE": ((KEPT,), "the key is given back by whoever asks"),
    "UNFENCED_RENEW": ((TAKEOVER, KEPT), "a lease is extended for whoever asks"),
    "TAKE_LIVE": ((KEPT,), "a live lease is taken over"),
    "RUN_UNKNOWN": ((KEPT,), "an unknown outcome is run again under at-most-once"),
    "OTHER_FINGERPRINT": ((KEPT,), "another request under the same key is taken for the same"),
    "ATTEMPT_STUCK": ((TAKEOVER, KEPT), "the attempt number does not grow"),
    "SEND_FIRST": ((TAKEOVER, KEPT), "the answer is sent before its record is stored"),
    "OWN_ANSWER": ((TAKEOVER, KEPT), "the superseded send their own answer"),
    "RELEASE_ON_AMBIGUITY": ((KEPT,), "a completion without an answer gives the key back"),
    "ASSUME_CLAIM": ((KEPT,), "a claim without an answer counts as granted"),
    "PURGE_OWED": ((KEPT,), "purge forgets what is owed"),
}
"""What each fault of the model breaks, and in which mode."""


BRIEF = "-O0"
"""For checks that take less time than the compiler would to make them faster."""


@dataclass(frozen=True)
class Checked:
    """What Spin found: the assertion that failed, if one did, and how many states it looked at."""

    violated: str | None
    states: int
    seconds: float


def check(*defines: str, optimise: str = "-O2") -> Checked:
    """Look at every state that the model with these definitions can reach."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="semel-spin-") as folder:
        _run(folder, str(require("spin")), "-a", *(f"-D{each}" for each in defines), str(MODEL))
        _run(folder, str(require("gcc")), optimise, "-w", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c")
        said = _run(folder, "./pan", "-m1000000", "-w22")
    errors, states = re.search(r"errors: (\d+)", said), re.search(r"(\d+) states, stored", said)
    if errors is None or states is None or "max search depth too small" in said or "out of memory" in said:
        raise RuntimeError(f"Spin did not finish:\n{said}")
    violated = re.search(r"pan:\d+: (.+?) \(at depth", said)
    if int(errors[1]) and violated is None:
        raise RuntimeError(f"Spin found something else than a failed assertion:\n{said}")
    return Checked(violated[1] if violated else None, int(states[1]), time.monotonic() - started)


def _run(folder: str, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> int:
    wrong = 0
    for defines in (*QUICK, *LONG):
        found = check(*defines)
        wrong += found.violated is not None
        name = " ".join(defines) or "at-most-once"
        print(
            f"  {name:<28} {found.violated or 'holds':<40} {found.states:>10} states {found.seconds:6.1f} s", flush=True
        )
    for fault, (mode, _) in FAULTS.items():
        found = check(*mode, fault, optimise=BRIEF)
        wrong += found.violated is None
        print(
            f"  {fault:<28} {found.violated or 'NOT FOUND':<40} {found.states:>10} states {found.seconds:6.1f} s",
            flush=True,
        )
    print(f"{len(FAULTS)} faults of the model, {wrong} surprises")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
