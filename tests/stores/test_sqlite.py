"""The SQLite store, both faces, against the contract, and when the machine's clock jumps or its files go."""

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path

import pytest

from semel import Key, StoreMisconfigured
from semel.store import AsyncStore, Clock, Store
from semel.stores.sqlite.aio import AsyncSqliteStore
from semel.stores.sqlite.files import SETTLED_S, TRUSTED_S, Folder
from semel.stores.sqlite.settings import SqliteSettings
from semel.stores.sqlite.store import SqliteStore
from semel.testing import AsyncStoreContract, BlockingStore, StoreContract
from semel.testing.calls import claim, complete, granted, occupied
from semel.testing.samples import ANSWER
from stores.clock_jumps import ClockJumps
from stores.sqlite_losses import LOSSES, ask_in_a_new_process, beside


class File:
    """A new file for each test."""

    path: str

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.path = str(tmp_path / "records.db")

    def spoil(self, key: Key) -> Callable[[], object]:
        def change(sql: str) -> None:
            with closing(sqlite3.connect(self.path)) as connection, connection:
                assert connection.execute(f"{sql} WHERE tenant = ? AND name = ?", (key.tenant, key.name)).rowcount == 1

        change("UPDATE semel_records SET state = 7")
        return lambda: change("DELETE FROM semel_records")


class TestSqliteStore(File, StoreContract):
    def open(self, clock: Clock | None) -> Store:
        return SqliteStore(self.path, clock=clock)


class TestAsyncSqliteStore(File, AsyncStoreContract):
    def open(self, clock: Clock | None) -> AsyncStore:
        return AsyncSqliteStore(self.path, clock=clock)


class TestSqliteStoreOfOneDigest(File, StoreContract):
    """The digest only finds: keys that share one are told apart all the same."""

    shared = False  # another process would not have this digest

    @pytest.fixture(autouse=True)
    def one_digest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("scripts", "answers"):
            monkeypatch.setattr(f"semel.stores.sqlite.{module}.number_of", lambda key: 7)
        monkeypatch.setattr("semel.stores.sqlite.operate.numbers_of", lambda tenant: (7, 7))

    def open(self, clock: Clock | None) -> Store:
        return SqliteStore(self.path, clock=clock)


class TestSqliteStoreByScripts(File, StoreContract):
    """What is usual takes a statement of its own. Without it the scripts answer the same."""

    shared = False  # another process would not do without

    @pytest.fixture(autouse=True)
    def nothing_is_usual(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("_insert", "_finish"):
            monkeypatch.setattr(f"semel.stores.sqlite.answers.{name}", lambda *_: None)

    def open(self, clock: Clock | None) -> Store:
        return SqliteStore(self.path, clock=clock)


class TestSqliteStoreWhenTheClockJumps(File, ClockJumps):
    def handle(self, clock: Clock | None) -> Store:
        return SqliteStore(self.path, clock=clock)


class TestAsyncSqliteStoreWhenTheClockJumps(File, ClockJumps):
    def handle(self, clock: Clock | None) -> Store:
        return BlockingStore(AsyncSqliteStore(self.path, clock=clock))


class TestStoreWithoutItsFiles(File):
    """A process whose files are gone stores nothing any more, says why, and does not begin new ones."""

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        (tmp_path / "folder").mkdir()
        self.path = str(tmp_path / "folder" / "records.db")

    @pytest.fixture(params=["sync", "async", "async full"])
    def opened(self, request: pytest.FixtureRequest) -> Iterator[Store]:
        settings = SqliteSettings(self.path, synchronous="full" if request.param == "async full" else "normal")
        store: Store = SqliteStore(settings)
        if request.param != "sync":
            store = BlockingStore(AsyncSqliteStore(settings))
        yield store
        store.close()

    def refuses(self, call: Callable[[], object], words: str) -> None:
        with pytest.raises(StoreMisconfigured) as caught:
            call()
        assert words in str(caught.value)
        assert "nothing is stored any more" in str(caught.value)

    @pytest.mark.parametrize("loss", LOSSES)
    @pytest.mark.parametrize("settled", [False, True], ids=["at once", "when the folder is trusted"])
    def test_the_very_next_write_is_refused(self, opened: Store, key: Key, loss: str, settled: bool) -> None:
        running, finished = granted(claim(opened, key, "a")), granted(claim(opened, self.other(key), "a"))
        assert complete(opened, finished)
        if settled:
            time.sleep(SETTLED_S)
            assert opened.renew(running, lease_ms=60_000)
        lose, words = LOSSES[loss]
        lose(Path(self.path))
        for call in (
            lambda: claim(opened, self.other(key, "new"), "b"),
            lambda: complete(opened, running),
            lambda: opened.renew(running, lease_ms=60_000),
            lambda: opened.release(running),
            lambda: opened.purge(limit=1),
            lambda: claim(opened, self.other(key, "new"), "b"),
        ):
            self.refuses(call, words)

    @pytest.mark.parametrize("again", ["the same", "a copy", "a new one", "an empty one"])
    def test_a_file_that_is_there_again_is_not_written_to(self, opened: Store, key: Key, again: str) -> None:
        granted(claim(opened, key, "a"))
        path = Path(self.path)
        shutil.copy(path, copy := beside(path, ".copy"))
        path.rename(away := beside(path, ".away"))
        self.refuses(lambda: claim(opened, self.other(key), "b"), "is gone")
        if again == "the same":
            away.rename(path)
        else:
            for companion in ("-wal", "-shm"):
                beside(path, companion).unlink()
        if again == "a copy":
            copy.rename(path)
        elif again == "a new one":
            granted(claim(new := SqliteStore(self.path), key, "of another process"))
            new.close()
        elif again == "an empty one":
            path.touch()
        before = path.read_bytes()
        for _ in range(2):
            self.refuses(lambda: claim(opened, self.other(key), "b"), "restart every process")
        assert path.read_bytes() == before
        assert beside(path, "-wal").exists() is (again == "the same")

    def test_another_file_is_known_by_its_mark(self, key: Key) -> None:
        """Its inode may be the same: when nothing has the first file open, the number is free again."""
        store = SqliteStore(self.path)
        granted(claim(store, key, "a"))
        granted(claim(other := SqliteStore(f"{self.path}.other"), key, "of another process"))
        other.close()
        store._database.get().connections._close_idle()
        Path(self.path).write_bytes(beside(Path(self.path), ".other").read_bytes())
        self.refuses(lambda: claim(store, self.other(key), "b"), "records.db was replaced by another file")

    @pytest.mark.parametrize("loss", LOSSES)
    def test_a_folder_that_does_not_tell_is_not_trusted_for_long(
        self, opened: Store, key: Key, loss: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As on a file system that does not note when a folder was changed."""
        granted(claim(opened, key, "a"))
        monkeypatch.setattr(Folder, "look", lambda _: (1, 2))
        for name in ("other", "another"):
            time.sleep(SETTLED_S)
            granted(claim(opened, self.other(key, name), "a"))
        lose, words = LOSSES[loss]
        lose(Path(self.path))
        time.sleep(TRUSTED_S)
        self.refuses(lambda: claim(opened, self.other(key, "new"), "b"), words)

    @pytest.mark.parametrize("what", ["link", "folder", "file"])
    def test_a_link_to_the_file(self, tmp_path: Path, key: Key, what: str) -> None:
        link = tmp_path / "link.db"
        Path(self.path).touch()
        link.symlink_to(self.path)
        store = SqliteStore(str(link))
        granted(claim(store, key, "a"))
        time.sleep(SETTLED_S)
        granted(claim(store, self.other(key), "a"))
        if what == "link":
            link.unlink()
        elif what == "folder":
            shutil.rmtree(Path(self.path).parent)
        else:
            beside(Path(self.path), "-wal").unlink()
        self.refuses(lambda: claim(store, self.other(key, "new"), "b"), "is gone")

    def test_replays_go_on(self, opened: Store, key: Key) -> None:
        assert complete(opened, granted(claim(opened, key, "a")))
        Path(self.path).unlink()
        assert occupied(claim(opened, key, "b")).result == ANSWER

    def test_the_log_is_brought_back_by_the_last_one_that_ends(self, key: Key) -> None:
        store = SqliteStore(self.path)
        assert complete(store, granted(claim(store, key, "a")))
        beside(Path(self.path), "-wal").unlink()
        self.refuses(lambda: claim(store, self.other(key), "b"), "not with kill -9")
        told = ask_in_a_new_process(Path(self.path), "new")
        assert told.startswith("StoreUnavailable")
        assert "was " + self.path + "-wal removed while a process had it open?" in told
        store.close()
        assert occupied(claim(SqliteStore(self.path), key, "b")).result == ANSWER

    def test_a_process_that_starts_does_not_begin_a_new_file_beside_the_old_log(self, opened: Store, key: Key) -> None:
        granted(claim(opened, key, "a"))
        Path(self.path).unlink()
        told = ask_in_a_new_process(Path(self.path), key.name)
        assert told.startswith(f"StoreMisconfigured {self.path} is gone, but its log {self.path}-wal is there")
        assert not Path(self.path).exists()

    def test_companions_come_and_go_with_the_last_connection(self, opened: Store, key: Key) -> None:
        """Which is no loss."""
        for number in range(3):
            assert complete(opened, granted(claim(opened, self.other(key, str(number)), "a")))
            child = get_context("fork").Process(target=int)
            child.start()  # nothing stays open across a fork
            child.join()
        assert len(list(Path(self.path).parent.iterdir())) in (1, 3)

    def other(self, key: Key, name: str = "other") -> Key:
        return Key(key.tenant, key.scope, name)

    @pytest.fixture
    def key(self) -> Key:
        return Key("t", "s", "key")
