"""Buyers who pay all at once, each with a key of its own. `python buyers.py PORT_FILE COUNT` says what they were told.

A second run sends the same requests with the same keys: what a client does that got no answer.
"""

import json
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen


def pay(port: str, number: int) -> str:
    order = f"order-{number}"
    request = Request(
        f"http://127.0.0.1:{port}/payments",
        data=json.dumps({"order": order}).encode(),
        headers={"idempotency-key": order, "content-type": "application/json"},
        method="POST",
    )
    try:
        with urlopen(request, timeout=10) as response:
            receipt = json.load(response)
    except HTTPError as error:
        with error:
            return f"refused with {error.code}"
    except (URLError, OSError, HTTPException):  # an answer may end in the middle, too
        return "no answer"
    return "paid" if receipt["order"] == order else f"the receipt of {receipt['order']}"


def main(port_file: Path, count: int) -> None:
    while not port_file.exists() or not port_file.read_text():
        time.sleep(0.02)
    port = port_file.read_text()
    with ThreadPoolExecutor(16) as buyers:
        told = Counter(buyers.map(lambda number: pay(port, number), range(count)))
    print(", ".join(f"{number} {what}" for what, number in sorted(told.items())))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
