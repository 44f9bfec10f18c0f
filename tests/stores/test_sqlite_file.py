"""The SQLite store and its file: URLs, modes, and all that can be wrong with a file, told in words that help."""

import os
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from semel import (
    Acquired,
    Key,
    RecordUnreadable,
    Result,
    StoreMisconfigured,
    StoreUnavailable,
    open_async_store,
    open_store,
)
from semel.stores.sqlite.settings import SqliteSettings
from semel.stores.sqlite.store import SqliteStore

NOBODY_UID = 65534


def claim(store: SqliteStore, name: str = "key", owner: str = "owner") -> Acquired:
    claimed = store.claim(Key("t", "s", name), "f", owner=owner, lease_ms=30_000, retention_ms=60_000, takeover=False)
    assert isinstance(claimed, Acquired)
    return claimed


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///some.db", f"{os.getcwd()}/some.db"),
        ("sqlite:////var/some.db", "/var/some.db"),
        ("sqlite:///a%20b%23c.db", f"{os.getcwd()}/a b#c.db"),
    ],
)
def test_paths_in_urls(url: str, path: str) -> None:
    store = open_store(url)
    assert isinstance(store, SqliteStore)
    assert store._settings.path == path


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite://", "memory://"),
        ("sqlite:///", "memory://"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite://some.db", "three or four slashes"),
        ("sqlite:///a#b.db", "%23"),
        ("sqlite:///a.db?synchronous=off", "normal or full, not 'off'"),
        ("sqlite:///a.db?busy_timeout_ms=never", "number from 0 to"),
        ("sqlite:///a.db?syncronous=full", "did you mean synchronous?"),
    ],
)
def test_bad_urls_are_refused_at_once(url: str, words: str) -> None:
    for open_either in (open_store, open_async_store):
        with pytest.raises(StoreMisconfigured) as caught:
            open_either(url)
        assert words in str(caught.value)


def test_options_reach_the_connection(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/a.db?synchronous=FULL&busy_timeout_ms=7")
    assert isinstance(store, SqliteStore)
    claim(store)
    connections = store._database.get().connections
    with connections.lend("write") as writer, connections.lend("read") as reader:
        assert writer.execute("PRAGMA synchronous").fetchone() == (2,)
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert reader.execute("PRAGMA busy_timeout").fetchone() == (7,)


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "a.db"))
    claim(store)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"a.db": 0o600, "a.db-wal": 0o600, "a.db-shm": 0o600}
    store.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]


def test_the_mode_of_an_existing_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.touch()
    path.chmod(0o640)
    claim(SqliteStore(str(path)))
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_relative_path_means_the_same_file_after_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("a.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    claim(store)
    assert (tmp_path / "a.db").exists()


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreMisconfigured, match=r"folder .*none does not exist: create it"):
        claim(SqliteStore(str(tmp_path / "none" / "a.db")))


def test_a_folder_instead_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(StoreMisconfigured, match="is a folder"):
        claim(SqliteStore(str(tmp_path)))


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear Sir or Madam, " * 100)
    with pytest.raises(StoreMisconfigured, match="not an SQLite database"):
        claim(SqliteStore(str(path)))
    assert path.read_text().startswith("Dear Sir")


def test_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SqliteStore(str(path))
    claim(store)
    store.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    with pytest.raises(StoreUnavailable, match=r"is damaged.*backup"):
        claim(SqliteStore(str(path)))


def test_a_file_removed_while_in_use(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SqliteStore(str(path))
    store.migrate()
    store._database.get()
    store._database.get().connections._close_idle()
    path.unlink()
    with pytest.raises(StoreMisconfigured, match="is gone"):
        claim(store)


def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(StoreMisconfigured, match=r"needs 3\.35\.0 or later"):
        claim(SqliteStore(str(tmp_path / "a.db")))


def test_a_schema_that_only_a_newer_version_can_read(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "a.db"))
    assert list(store.migrate()) == [1, 2]
    assert list(store.migrate()) == []
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("INSERT INTO semel_schema VALUES (3, 'additions', 1)")
    claim(SqliteStore(str(tmp_path / "a.db")))
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("INSERT INTO semel_schema VALUES (4, 'another shape', 4)")
    with pytest.raises(StoreMisconfigured, match="upgrade semel"):
        claim(SqliteStore(str(tmp_path / "a.db")))


def test_what_migrations_print_makes_a_usable_file(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "a.db"))
    with sqlite3.connect(tmp_path / "a.db") as connection:
        for migration in store.migrations():
            for sql in migration.statements:
                connection.execute(sql)
    assert list(store.migrate()) == []
    claim(store)


def test_a_record_of_a_newer_version_is_never_treated_as_absent(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "a.db"))
    lease = claim(store).lease
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("UPDATE semel_records SET state = 7")
    for owner in ("owner", "other"):
        with pytest.raises(RecordUnreadable, match="upgrade semel"):
            claim(store, owner=owner)
    with pytest.raises(RecordUnreadable):
        store.get(lease.key)
    assert store.complete(lease, Result("x", b""), retention_ms=60_000) is False
    assert store.renew(lease, lease_ms=60_000) is None
    assert store.release(lease) is False


@pytest.mark.parametrize(
    "damage",
    [
        "name = CAST(x'ff00fe' AS TEXT)",
        "tenant = CAST(x'80' AS TEXT)",
        "fingerprint = CAST(x'c3' AS TEXT)",
        "name = ''",
        "attempt = 'many'",
        "state = 7",
        "state = 1, format = 5, payload = 'text'",
    ],
)
@pytest.mark.parametrize("limit", [1, 10])
def test_a_damaged_row_hides_no_other(tmp_path: Path, damage: str, limit: int) -> None:
    store = SqliteStore(str(tmp_path / "a.db"))
    for number in range(4):
        claim(store, f"{number}")
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection, connection:
        connection.execute(f"UPDATE semel_records SET {damage} WHERE name = '2'")
    names: list[str] = []
    places: list[str] = []
    page = store.scan(limit=limit)
    while True:
        names += [record.key.name for record in page.records]
        places += [each.place for each in page.unreadable]
        if page.cursor is None:
            break
        page = store.scan(cursor=page.cursor, limit=limit)
    assert (sorted(names), len(places)) == (["0", "1", "3"], 1)
    assert store.get(Key("t", "s", "1")) is not None, "the connection reads text as before"


def test_a_lock_held_by_another_program(tmp_path: Path) -> None:
    """Writes give up with a word about it; reads and replays never notice."""
    path = str(tmp_path / "a.db")
    store = SqliteStore(SqliteSettings(path, busy_timeout_ms=20))
    done, running = claim(store, "done").lease, claim(store, "running").lease
    assert store.complete(done, Result("x", b"answer"), retention_ms=60_000)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")

    for write in (
        lambda: claim(store, "new"),
        lambda: store.complete(running, Result("x", b""), retention_ms=60_000),
        lambda: store.purge(limit=1),
    ):
        with pytest.raises(StoreUnavailable, match=r"locked by another process for more than 20 ms.*busy_timeout_ms"):
            write()
    replay = store.claim(done.key, "f", owner="other", lease_ms=1, retention_ms=1, takeover=False)
    assert replay.record.result == Result("x", b"answer")  # type: ignore[union-attr]
    assert claim(store, "running").lease == running
    assert store.get(running.key) is not None
    assert store.counts().in_progress == 1
    assert len(store.scan().records) == 2

    holder.execute("COMMIT")
    claim(store, "new")


TRY_TO_CLAIM = """
import os, resource, sys
path, uid, size_max = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
from semel import Acquired, Key, Result, StoreError
from semel.stores.sqlite.store import SqliteStore
if uid:
    os.setuid(uid)
if size_max:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_max, size_max))
store = SqliteStore(path)
for name, size in (("small", 10), ("large", 1_000_000), ("after", 10)):
    try:
        claimed = store.claim(Key("t", "s", name), "f", owner="o", lease_ms=9000, retention_ms=9000, takeover=False)
        print("ok", store.complete(claimed.lease, Result("x", bytes(size)), retention_ms=9000))
    except StoreError as error:
        print(type(error).__name__, error)
"""


def in_another_process(path: Path, *, uid: int = 0, size_max: int = 0) -> list[str]:
    command = [sys.executable, "-c", TRY_TO_CLAIM, str(path), str(uid), str(size_max)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture
def open_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that another user can reach, with a used file in it."""
    if os.geteuid() != 0:
        pytest.skip("only root can try this as another user")
    folder = tmp_path / "open"
    folder.mkdir()
    store = SqliteStore(str(folder / "a.db"))
    claim(store)
    store.close()
    reached = [path for path in folder.parents if path.owner() == "root" and not path.stat().st_mode & 0o001]
    modes = [path.stat().st_mode for path in reached]
    for path in reached:
        path.chmod(path.stat().st_mode | 0o011)
    yield folder
    for path, mode in zip(reached, modes, strict=True):
        path.chmod(mode)


def test_a_file_that_this_user_may_not_write(open_folder: Path) -> None:
    open_folder.chmod(0o777)
    (open_folder / "a.db").chmod(0o644)
    told = in_another_process(open_folder / "a.db", uid=NOBODY_UID)
    assert told[0].startswith("StoreMisconfigured")
    assert "a.db must be writable for this user" in told[0]


def test_a_folder_that_this_user_may_not_write(open_folder: Path) -> None:
    open_folder.chmod(0o755)
    (open_folder / "a.db").chmod(0o666)
    told = in_another_process(open_folder / "a.db", uid=NOBODY_UID)
    assert told[0].startswith("StoreMisconfigured")
    assert "open must be writable for this user" in told[0]
    told = in_another_process(open_folder / "new.db", uid=NOBODY_UID)
    assert told[0].startswith("StoreMisconfigured this user may not create")


def test_a_limit_on_file_sizes(tmp_path: Path) -> None:
    small, large, after = in_another_process(tmp_path / "a.db", size_max=200_000)
    assert (small, after) == ("ok True", "ok True")
    assert large.startswith("StoreUnavailable")
    assert "the limit on file sizes" in large


def test_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=500k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("this user cannot mount a small disk")
    try:
        small, large, after = in_another_process(disk / "a.db")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert (small, after) == ("ok True", "ok True")
    assert large.startswith("StoreUnavailable there is no room left for")


@pytest.mark.parametrize("column", ["fingerprint", "owner", "format", "payload", "created_ms"])
def test_a_damaged_column_is_named_and_its_bytes_are_not_shown(tmp_path: Path, column: str) -> None:
    path = tmp_path / "a.db"
    store = SqliteStore(str(path))
    lease = claim(store).lease
    assert store.complete(lease, Result("x", b"answer"), retention_ms=60_000)
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE semel_records SET {column} = CAST(x'736563726574ff' AS TEXT)")  # "secret", damaged
    for call in (lambda: claim(store, owner="other"), lambda: store.get(lease.key)):
        with pytest.raises(StoreUnavailable) as caught:
            call()
        assert f"the column {column} of a record" in str(caught.value)
        assert "secret" not in "".join(traceback.format_exception(caught.value))
