"""A journal that cannot keep an intent: the error says why, and the server has not seen a request."""

import os
import resource
import signal
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from client.api import Api, serving
from semel.client import Journal
from semel.client.httpx import IdempotentTransport
from semel.client.schema import SCHEMA_VERSION
from semel.errors import StoreError, StoreMisconfigured, StoreUnavailable

HOUR = timedelta(hours=1)
NOBODY_UID = 65_534


def pay(journal: Journal, api: Api, name: str = "pay:42", body: bytes = b"x" * 400_000) -> bytes:
    transport = IdempotentTransport(httpx.HTTPTransport(), journal=journal)
    with httpx.Client(transport=transport) as http, journal.intent(name, max_age=HOUR) as intent:
        return http.post(api.url, content=body, extensions={"semel": intent}).content


@contextmanager
def refused(kind: type[StoreError], says: str) -> Iterator[Api]:
    """What is tried in the block is refused, and nothing arrives at the server."""
    with serving() as api:
        with pytest.raises(kind, match=says):
            yield api
        assert not api.requests


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no right to mount a small disk here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path, "300k"):
        journal = Journal(url_of(tmp_path / "journal.db"))
        with refused(StoreUnavailable, "the disk of .* is full, so nothing is sent: free some space") as api:
            pay(journal, api)
        with serving() as api:
            assert pay(journal, api, body=b"{}") == b"paid", "there is room for this one"
        journal.close()


def test_a_disk_that_is_full_before_the_journal_is_made(tmp_path: Path) -> None:
    with small_disk(tmp_path, "16k"), refused(StoreUnavailable, "so nothing is sent: .*how full it is") as api:
        pay(Journal(url_of(tmp_path / "journal.db")), api)


def test_a_limit_on_the_size_of_files(path: Path) -> None:
    journal = Journal(url_of(path))
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, old[1]))
    try:
        with refused(StoreUnavailable, "so nothing is sent: .*the limit on file sizes") as api:
            pay(journal, api)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    with serving() as api:
        assert pay(journal, api) == b"paid"


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write everything, so it is another user meanwhile."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY_UID)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize(
    ("folder_mode", "file_mode"),
    [(0o777, 0o444), (0o777, 0o000), (0o555, 0o666), (0o555, 0o444), (0o555, None)],
    ids=["read-only file", "unreadable file", "read-only folder", "both", "read-only folder without a file"],
)
def test_a_read_only_file_or_folder(folder_mode: int, file_mode: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal.db")
        if file_mode is not None:
            Journal(url_of(path)).close()
            path.chmod(file_mode)
        os.chmod(folder, folder_mode)
        try:
            with refused(StoreMisconfigured, "cannot be (written to|opened)") as api, as_nobody():
                pay(Journal(url_of(path)), api)
        finally:
            os.chmod(folder, 0o700)


def test_a_disk_that_becomes_read_only_under_the_journal(tmp_path: Path) -> None:
    with small_disk(tmp_path, "1m"):
        journal = Journal(url_of(tmp_path / "journal.db"))
        journal.close()
        subprocess.run(["mount", "-o", "remount,ro", tmp_path], check=True)
        with refused(StoreMisconfigured, "cannot be (written to|opened)") as api:
            pay(journal, api)


def test_a_journal_of_a_newer_version(path: Path) -> None:
    opened = Journal(url_of(path))
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    newer = f"was written by a newer version of semel .schema {SCHEMA_VERSION + 1}, .* upgrade semel here, too"
    with refused(StoreMisconfigured, newer) as api:
        pay(Journal(url_of(path)), api)
    with refused(StoreMisconfigured, newer) as api:
        pay(opened, api)


def test_a_file_that_is_no_journal(path: Path) -> None:
    path.write_text("invoices of November\n" * 100)
    with refused(StoreMisconfigured, "is no journal, or is damaged") as api:
        pay(Journal(url_of(path)), api)
    assert path.read_text() == "invoices of November\n" * 100


def test_the_database_of_another_program(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()
    with refused(StoreMisconfigured, "is the database of another program: give the journal a file of its own") as api:
        pay(Journal(url_of(path)), api)
    assert path.read_bytes() == before


def test_a_folder_that_is_not_there_or_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for where in (tmp_path / "no" / "journal.db", tmp_path / "file" / "journal.db", tmp_path):
        with refused(StoreMisconfigured, "cannot be (opened|written to)") as api:
            pay(Journal(url_of(where)), api)
