"""After a red run: what failed beside others is run once more, alone, and named.

Among thousands of tests with real servers, processes and time limits, one may fail because the machine stood still for
a moment. Who fails twice is red, and so is a run with more failures than a moment explains.
"""

import json
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
TESTS_FAILED = 1
MOST = 3


def again(code: int) -> int:
    """The exit code of it all, where `code` was that of the run."""
    if code != TESTS_FAILED or not FAILED.exists():
        return code
    failed = list(json.loads(FAILED.read_text()))
    if len(failed) > MOST:
        return code
    print(f"==> {len(failed)} failed: once more, alone", flush=True)
    code = subprocess.run([sys.executable, "-m", "pytest", "-q", *failed], check=False).returncode
    if code == 0:
        print("UNSTEADY: failed beside others and passed alone. Mend:", *failed, sep="\n  ", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(again(int(sys.argv[1])))
