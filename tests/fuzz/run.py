"""Coverage-guided fuzzing: `python tests/fuzz/run.py [--seconds N] [target …]`. What is new joins the corpus.

Each target runs in a process of its own, because the fuzzer ends its process. A crash leaves its input in `crashes/`:
fix the code, then move the input into the corpus, where it is tried in every test run.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CORPUS, CRASHES = HERE / "corpus", HERE / "crashes"
INPUT_MAX = 2_000


def fuzz(name: str, seconds: int, found: str) -> None:
    """In the child: instrument what is imported from here on, then never return."""
    import atheris  # type: ignore[import-untyped]

    with atheris.instrument_imports(include=["semel"]):
        from fuzz.targets import TARGETS
    CRASHES.mkdir(exist_ok=True)
    limits = [f"-max_total_time={seconds}", f"-max_len={INPUT_MAX}", "-timeout=5", "-print_final_stats=1"]
    atheris.Setup(
        [sys.argv[0], *limits, f"-artifact_prefix={CRASHES}/{name}-", found, str(CORPUS / name)], TARGETS[name]
    )
    atheris.Fuzz()


def keep(name: str, found: str, most: int) -> int:
    """Take over the smallest of the new inputs; a corpus that nobody can read through is not kept by hand."""
    new = sorted((path.read_bytes() for path in Path(found).iterdir()), key=len)
    known = {path.read_bytes() for path in (CORPUS / name).iterdir()}
    added = [data for data in new if data not in known][: max(0, most - len(known))]
    for number, data in enumerate(added, len(known)):
        (CORPUS / name / f"found-{number:03d}").write_bytes(data)
    return len(added)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=int, default=20, help="for each target")
    parser.add_argument("--keep", type=int, default=0, metavar="N", help="let the corpus of a target grow to N inputs")
    parser.add_argument("--in-child", metavar="FOLDER", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    sys.path.insert(0, str(HERE.parent))
    if chosen.in_child:
        fuzz(chosen.targets[0], chosen.seconds, chosen.in_child)
    failed = []
    for name in chosen.targets or sorted(path.name for path in CORPUS.iterdir()):
        with tempfile.TemporaryDirectory() as found:
            command = [sys.executable, __file__, name, "--seconds", str(chosen.seconds), "--in-child", found]
            done = subprocess.run(command, capture_output=True, text=True)
            runs = re.search(r"number_of_executed_units: *(\d+)", done.stderr)
            added = keep(name, found, chosen.keep)
        verdict = "ok" if done.returncode == 0 else "FAILED"
        print(f"{name:15} {runs[1] if runs else '?':>10} runs, {added} inputs kept: {verdict}", flush=True)
        if done.returncode != 0:
            failed.append(name)
            print(done.stdout[-3000:], done.stderr[-3000:], sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
