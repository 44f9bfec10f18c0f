"""schemathesis against the demo: requests made from its OpenAPI document, valid and not, and answers held to it."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from urllib.error import URLError
from urllib.request import urlopen

PATIENCE_S = 60
EXAMPLES = 60
DOCUMENT = "/openapi.json"
CHECKS = ["--exclude-checks", "positive_data_acceptance,negative_data_rejection"]
"""These two know nothing of keys: a valid request under a used key is refused, as it should be."""


def main() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as folder:
        port = address.rpartition(":")[2]
        words = ["-m", "semel", "demo", "--no-open", "--port", port, "--data", folder]
        demo = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
        try:
            wait_for(address + DOCUMENT)
            command = ["-m", "schemathesis.cli", "run", address + DOCUMENT, "--max-examples", str(EXAMPLES), *CHECKS]
            return subprocess.run([sys.executable, *command, "--seed", "1", "--no-color"], check=False).returncode
        finally:
            demo.terminate()
            demo.wait(PATIENCE_S)


def wait_for(url: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            urlopen(url, timeout=5).close()
            return
        except (URLError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
