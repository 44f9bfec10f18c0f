"""Programs that use a journal in a process of their own, to be raced and killed: `python -m client.senders …`."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from semel.client.sqlite import SqliteJournal
from semel.core.journal import CallRequest, CloseIntent, IntentGranted, IntentId, KeptAnswer, OpenIntent

PAY = IntentId("pay:42")
REQUEST = CallRequest("POST", "https://api.example/pay", (), b"{}")
LEASE_MS, MAX_AGE_MS = 60_000, 3_600_000
CREATED, APART_S = 20, 0.02


def wall_clock() -> int:
    return time.time_ns() // 1_000_000


def open_intent(journal: SqliteJournal, name: str, key: str) -> object:
    return journal.answer(OpenIntent(IntentId(name), REQUEST, key, f"owner of {key}", LEASE_MS, MAX_AGE_MS))


def close_intent(journal: SqliteJournal, name: str, key: str) -> bool:
    return journal.answer(CloseIntent(IntentId(name), key, KeptAnswer.of(201, (), b"paid")))


def start(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "client.senders", *arguments],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        cwd="tests",
    )


def race(path: str, me: str) -> None:
    """Try to become the sender of each of many intents, with several threads; print which were granted."""
    journal = SqliteJournal(path, wall_clock)

    def work(thread: int) -> list[str]:
        return [
            f"n{number}"
            for number in range(20)
            if isinstance(open_intent(journal, f"n{number}", f"{me}-{thread}-{number}"), IntentGranted)
        ]

    print("ready", flush=True)
    sys.stdin.readline()
    with ThreadPoolExecutor(5) as threads:
        granted = [name for names in threads.map(work, range(5)) for name in names]
    print(" ".join(granted), flush=True)


def create(path: str, start_s: float) -> None:
    """Open many new journals, each at the moment when the other processes do."""
    for number in range(CREATED):
        while time.monotonic() < start_s + number * APART_S:
            pass
        open_intent(SqliteJournal(f"{path}{number}", wall_clock), "pay:42", "k1")
        print("made", flush=True)


def write_until_killed(path: str) -> None:
    """Open and close intents for ever; print each one after the journal has said that it is durable."""
    journal = SqliteJournal(path, wall_clock)
    for number in range(1_000_000):
        open_intent(journal, f"n{number}", f"k{number}")
        print(f"open n{number}", flush=True)
        close_intent(journal, f"n{number}", f"k{number}")
        print(f"answered n{number}", flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["race", path, me]:
            race(path, me)
        case ["create", path, start_s]:
            create(path, float(start_s))
        case ["write", path]:
            write_until_killed(path)
        case wrong:
            raise SystemExit(f"unknown: {wrong}")
