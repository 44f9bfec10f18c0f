"""A full disk: a small one is mounted under a server, filled, and emptied again. Nothing acknowledged is lost.

SQLite's is in tests/stores/test_sqlite_file.py.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fire.cases import FACES, RETENTION_MS, Opened, claim, granted, migrated, opened, persist
from semel import Acquired, Key, Occupied, Result, StoreUnavailable
from servers.needing import needed
from servers.postgres import PostgresServer
from servers.process import Server
from servers.redis import RedisServer

LARGE = 200_000


@contextmanager
def on_a_small_disk(server: Server, megabytes: int) -> Iterator[None]:
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(server.folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        server.stop()
        message = "missing server: a small disk: only root can mount one"
        if os.environ.get("CI"):
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    try:
        with server:
            yield
            server.kill()
            subprocess.run(["umount", str(server.folder)], check=True)
    except BaseException:
        server.kill()
        subprocess.run(["umount", "--lazy", str(server.folder)], check=True)
        raise


@contextmanager
def no_room(server: Server) -> Iterator[None]:
    """Somebody else's file takes all that is left."""
    ballast = server.folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1_000_000, 1_000):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                pass
    yield
    ballast.unlink()


def store(one: Opened, key: Key) -> Key:
    lease = granted(claim(one.store, key, "a"))
    assert one.store.complete(lease, result_of(key), retention_ms=RETENTION_MS)
    return key


def fill(one: Opened, stored: list[Key], scope: str) -> str:
    """Store large results until one is refused; says in which words. What was acknowledged is added to `stored`."""
    for number in range(1_000):
        try:
            stored.append(store(one, Key("disk", scope, str(number))))
        except StoreUnavailable as error:
            return str(error)
    raise AssertionError("the disk did not become full")


def result_of(key: Key) -> Result:
    """Different bytes for each key, which do not compress."""
    return Result("text", key.name.encode() + os.urandom(LARGE))


def check_all_there(one: Opened, keys: list[Key]) -> None:
    for key in keys:
        found = persist(lambda key=key: claim(one.store, key, "b"))  # type: ignore[misc]
        assert isinstance(found, Occupied)
        assert found.record.result is not None
        assert found.record.result.payload[:-LARGE] == key.name.encode()


def check_a_full_disk(server: PostgresServer | RedisServer, megabytes: int, said: str) -> None:
    with on_a_small_disk(server, megabytes):
        url = migrated(server.url)
        with opened(FACES[0], url) as threads, opened(FACES[1], url) as tasks:
            faces = dict(zip(FACES, (threads, tasks), strict=True))
            stored = [store(one, Key("disk", face, "while there is room")) for face, one in faces.items()]
            with no_room(server):
                refusals = [fill(one, stored, face) for face, one in faces.items()]
                assert said in refusals[0]
            if not server._answers():  # PostgreSQL may have stopped itself rather than lie
                server.restart()
            for face, one in faces.items():
                new = Key("disk", face, "when there is room again")
                assert isinstance(persist(lambda one=one, new=new: claim(one.store, new, "a")), Acquired)  # type: ignore[misc]
                check_all_there(one, stored)
            server.kill()
            server.restart()
            check_all_there(threads, stored)


def test_postgres_on_a_full_disk() -> None:
    check_a_full_disk(needed("postgres", lambda: PostgresServer("max_wal_size=32MB")), 150, "No space left on device")


def test_redis_on_a_full_disk() -> None:
    check_a_full_disk(needed("redis", RedisServer), 5, "cannot write to its disk")
