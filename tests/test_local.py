"""What belongs to one process or one event loop is made again wherever the old one must not be used."""

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Callable

from semel.runtime.local import PerLoop, PerProcess


class Connection:
    """Says in which process it was made, and tells when its destructor runs."""

    def __init__(self, finalised: list[int] | None = None) -> None:
        self.pid = os.getpid()
        self._finalised = finalised

    def __del__(self) -> None:
        if self._finalised is not None:
            self._finalised.append(os.getpid())


def in_a_child(work: Callable[[], bool]) -> bool:
    """Fork, and say whether `work` returned True there within half a minute."""
    pid = os.fork()
    if pid == 0:
        threading.Timer(30, os._exit, [3]).start()
        try:
            os._exit(0 if work() else 1)
        except BaseException:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class TestPerProcess:
    def test_one_is_made_on_first_use(self) -> None:
        made: list[Connection] = []

        def make() -> Connection:
            made.append(Connection())
            return made[-1]

        local = PerProcess(make)
        assert made == []
        assert local.get() is local.get()
        assert len(made) == 1

    def test_one_for_all_threads(self) -> None:
        made: list[Connection] = []
        together = threading.Barrier(8)

        def make() -> Connection:
            made.append(Connection())
            return made[-1]

        local = PerProcess(make)

        def use() -> None:
            together.wait()
            local.get()

        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == 1

    def test_a_child_makes_its_own_and_the_parent_keeps_its_own(self) -> None:
        local = PerProcess(Connection)
        before = local.get()
        assert in_a_child(lambda: local.get().pid == os.getpid() and local.get() is local.get())
        assert local.get() is before

    def test_a_child_is_not_blocked_by_a_thread_that_was_making_one_in_the_parent(self) -> None:
        begun, go_on = threading.Event(), threading.Event()
        parent = os.getpid()

        def make() -> Connection:
            if os.getpid() == parent:
                begun.set()
                go_on.wait(10)
            return Connection()

        local = PerProcess(make)
        thread = threading.Thread(target=local.get)
        thread.start()
        begun.wait(10)
        try:
            assert in_a_child(lambda: local.get().pid == os.getpid())
        finally:
            go_on.set()
            thread.join()

    def test_threads_of_a_child_share_one(self) -> None:
        local = PerProcess(Connection)
        local.get()

        def use() -> bool:
            found: list[Connection] = []
            together = threading.Barrier(8)

            def one() -> None:
                together.wait()
                found.append(local.get())

            threads = [threading.Thread(target=one) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return len(found) == 8 and len({id(each) for each in found}) == 1

        assert in_a_child(use)

    def test_taking_it_leaves_room_for_a_new_one(self) -> None:
        local = PerProcess(Connection)
        assert local.take() is None
        before = local.get()
        assert local.take() is before
        assert local.take() is None
        assert local.get() is not before

    def test_no_destructor_of_the_parents_runs_in_a_child(self) -> None:
        finalised: list[int] = []
        local = PerProcess(lambda: Connection(finalised))
        local.get()

        def close() -> bool:
            nothing = local.take() is None
            local.get()
            gc.collect()
            return nothing and finalised == []

        assert in_a_child(close), "closing in a child must not touch what the parent still uses"


class TestPerLoop:
    def test_one_for_each_loop(self) -> None:
        local = PerLoop(Connection)

        async def twice() -> tuple[Connection, Connection]:
            return local.get(), local.get()

        first, again = asyncio.run(twice())
        assert first is again
        assert asyncio.run(twice())[0] is not first

    def test_loops_of_two_threads_do_not_meet(self) -> None:
        local = PerLoop(Connection)
        together = threading.Barrier(2)
        found: list[bool] = []

        async def use() -> None:
            mine = local.get()
            await asyncio.to_thread(together.wait)
            found.append(local.get() is mine)

        threads = [threading.Thread(target=lambda: asyncio.run(use())) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [True, True]

    def test_taking_it_leaves_room_for_a_new_one(self) -> None:
        async def main() -> None:
            local = PerLoop(Connection)
            assert local.take() is None
            before = local.get()
            assert local.take() is before
            assert local.get() is not before

        asyncio.run(main())

    def test_what_belongs_to_closed_loops_does_not_pile_up(self) -> None:
        class Holding(Connection):
            def __init__(self) -> None:
                super().__init__()
                self.loop = asyncio.get_running_loop()  # as every async connection does

        local = PerLoop(Holding)
        alive: list[weakref.ref[Holding]] = []

        async def use() -> None:
            alive.append(weakref.ref(local.get()))

        for _ in range(5):
            asyncio.run(use())
        gc.collect()
        assert sum(each() is not None for each in alive) <= 1

    def test_a_child_makes_its_own_and_the_parent_keeps_its_own(self) -> None:
        local = PerLoop(Connection)

        async def pid() -> int:
            return local.get().pid

        async def nothing_to_take() -> bool:
            return local.take() is None

        async def main() -> None:
            before = local.get()

            def child() -> bool:
                return asyncio.run(nothing_to_take()) and asyncio.run(pid()) == os.getpid()

            assert in_a_child(lambda: run_in_thread(child))
            assert local.get() is before

        asyncio.run(main())


def run_in_thread(work: Callable[[], bool]) -> bool:
    """A forked child of a running loop may start a loop of its own only where none was running."""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found == [True]
