"""A process whose threads all want the same: `python -m client.racers JOURNAL URL LEASE_S`.

An empty JOURNAL means none. Each request says which process sends it.
"""

import hashlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import httpx

from semel.client import Journal, Retry
from semel.client.httpx import IdempotentTransport

THREADS = 50
PROCESS_HEADER = "x-process"


def race(journal_url: str, url: str, lease_s: str) -> None:
    """Print the digest of each thread's answer."""
    journal = Journal(journal_url) if journal_url else None
    retry = Retry(pause_max=0.05, deadline=60)
    transport = IdempotentTransport(httpx.HTTPTransport(), journal=journal, retry=retry, lease=float(lease_s))

    def pay(_: int) -> str:
        extensions = {"semel": journal.intent("pay:42", max_age=timedelta(hours=1))} if journal else {}
        headers = {PROCESS_HEADER: str(os.getpid())}
        response = http.post(url, json={"amount": 5}, headers=headers, extensions=extensions, timeout=60)
        return f"{response.status_code} {hashlib.sha256(response.content).hexdigest()}"

    print("ready", flush=True)
    sys.stdin.readline()
    with httpx.Client(transport=transport) as http, ThreadPoolExecutor(THREADS) as threads:
        print("\n".join(threads.map(pay, range(THREADS))), flush=True)


if __name__ == "__main__":
    race(*sys.argv[1:])
