"""Run an application of the wire suite behind `semel gateway`: `python -m apps.on_gateway PORT APP`."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from servers.process import free_port

POLICIES = {"default": "result_max = 100000\nbody_max = 10000", "quota": 'quota = "2/hour"'}
RULES = """
[policy]
{policy}

[tenant]
header = "Caller"

[[rules]]
match = "POST /required"
required = true

[[rules]]
match = "POST /exempt"
exempt = true

[[rules]]
match = "POST /json"
fingerprint = "json"

[[rules]]
match = "POST /strict"
required = true
headers = ["Idempotency-Key"]
methods = ["POST", "PATCH"]
key_format = "strict"
"""


def main(port: str, app: str) -> None:
    """The upstream is a child of the gateway's process, and is stopped with it."""
    behind = free_port()
    subprocess.Popen([sys.executable, "-m", "uvicorn", "--log-level", "warning", "--port", str(behind), app])
    while True:
        try:
            socket.create_connection(("127.0.0.1", behind), timeout=1).close()
            break
        except OSError:
            time.sleep(0.02)
    policy = os.environ.get("SEMEL_TEST_POLICY", "default")
    rules = Path(os.environ["SEMEL_TEST_FOLDER"]) / f"rules-{port}.toml"
    rules.write_text(RULES.format(policy=POLICIES[policy]))
    settings = {
        "upstream": f"http://127.0.0.1:{behind}",
        "listen": f"127.0.0.1:{port}",
        "store": os.environ["SEMEL_TEST_STORE"],
        "rules": str(rules),
        "workers": "1" if policy == "quota" else "2",  # each worker counts for itself
        "downstream_key": "caller",  # which is what the ledger is kept by
        "secret": "the same for every process",
    }
    named = {f"SEMEL_GATEWAY_{name.upper()}": value for name, value in settings.items()}
    os.execve(sys.executable, [sys.executable, "-m", "semel", "gateway"], os.environ | named)


if __name__ == "__main__":
    main(*sys.argv[1:])
