"""Two processes, each with 50 threads, race for one intent over HTTP. The server counts what it sees at once."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from client.racers import PROCESS_HEADER, THREADS

PROCESSES = 2
ANSWER_SIZE = 4_096
SHORT_LEASE_S = 1.5


class Bank:
    """Each effect has an answer of its own, which is given again to who sends its key again."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.answers: dict[str, bytes] = {}
        self.requests = self.under_way = self.most_under_way = 0
        self.kills = 0
        """How many of the next requests lose the process that sent them, while they are under way."""

    @contextmanager
    def counting(self) -> Iterator[int]:
        with self.lock:
            self.requests += 1
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
            number = self.requests
        try:
            yield number
        finally:
            with self.lock:
                self.under_way -= 1


class BankHandler(BaseHTTPRequestHandler):
    bank: Bank
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        with self.bank.counting() as number:
            with self.bank.lock:
                answer = self.bank.answers.setdefault(self.headers["idempotency-key"], os.urandom(ANSWER_SIZE))
            time.sleep(0.05)
            if number <= self.bank.kills:
                os.kill(int(self.headers[PROCESS_HEADER]), signal.SIGKILL)
        if number <= 2:  # it took effect, and the answer is lost
            self.close_connection = True
            return
        self.send_response(201)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class BankServer(ThreadingHTTPServer):
    request_queue_size = 2 * PROCESSES * THREADS
    daemon_threads = True


@pytest.fixture
def bank() -> Iterator[tuple[Bank, str]]:
    bank = Bank()
    server = BankServer(("127.0.0.1", 0), type("OneBank", (BankHandler,), {"bank": bank}))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield bank, f"http://127.0.0.1:{server.server_port}/pay"
    server.shutdown()
    server.server_close()
    thread.join()


def race(journal_url: str, url: str, *, processes: int = PROCESSES, lease_s: float = 30) -> list[str]:
    """What all threads were answered whose process was not killed."""
    command = [sys.executable, "-m", "client.racers", journal_url, url, str(lease_s)]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="tests")
        for _ in range(processes)
    ]
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        return [line for racer in racers for line in racer.communicate(timeout=60)[0].splitlines()]
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()


def test_one_request_is_under_way_and_all_get_the_one_answer(tmp_path: Path, bank: tuple[Bank, str]) -> None:
    counted, url = bank
    answers = race(f"sqlite:///{tmp_path}/journal.db", url)
    assert (len(counted.answers), counted.most_under_way, counted.requests) == (1, 1, 3)
    (answer,) = counted.answers.values()
    assert answers == [f"201 {hashlib.sha256(answer).hexdigest()}"] * PROCESSES * THREADS


def test_the_other_process_gets_the_answer_if_the_sender_is_killed(tmp_path: Path, bank: tuple[Bank, str]) -> None:
    counted, url = bank
    counted.kills = 1
    journal = f"sqlite:///{tmp_path}/journal.db"
    answers = race(journal, url, lease_s=SHORT_LEASE_S)
    assert (len(counted.answers), counted.most_under_way, counted.requests) == (1, 1, 3)
    answers += race(journal, url, processes=1)
    assert counted.requests == 3, "the process that took the place of the killed one has the answer of the journal"
    (answer,) = counted.answers.values()
    assert answers == [f"201 {hashlib.sha256(answer).hexdigest()}"] * PROCESSES * THREADS


def test_each_process_may_be_killed_in_turn(tmp_path: Path, bank: tuple[Bank, str]) -> None:
    counted, url = bank
    counted.kills = 2 * PROCESSES
    journal = f"sqlite:///{tmp_path}/journal.db"
    for _ in range(2):
        assert race(journal, url, lease_s=SHORT_LEASE_S) == []
    answers = race(journal, url, lease_s=SHORT_LEASE_S)
    assert (len(counted.answers), counted.most_under_way, counted.requests) == (1, 1, counted.kills + 1)
    (answer,) = counted.answers.values()
    assert answers == [f"201 {hashlib.sha256(answer).hexdigest()}"] * PROCESSES * THREADS


def test_without_a_journal_each_thread_has_an_effect_of_its_own(bank: tuple[Bank, str]) -> None:
    counted, url = bank
    assert len(set(race("", url))) == len(counted.answers) == PROCESSES * THREADS
    assert counted.most_under_way > 1
