"""Work that nobody waits for."""

import os
import threading
from collections.abc import Callable

import pytest

from semel.runtime.background import QUEUE_MAX, Background


def wait_for(background: Background) -> None:
    done = threading.Event()
    assert background.do(done.set)
    assert done.wait(10)


def test_one_thing_after_another_in_one_thread() -> None:
    background, threads = Background(), list[str]()
    for _ in range(20):
        background.do(lambda: threads.append(threading.current_thread().name))
    wait_for(background)
    assert threads == ["semel-background"] * 20


def test_what_fails_is_logged_and_the_rest_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    background = Background()
    background.do(lambda: 1 / 0)
    wait_for(background)
    assert "division by zero" in caplog.text


def test_what_waits_is_bounded() -> None:
    background, go = Background(), threading.Event()
    begun = threading.Event()

    def first() -> None:
        begun.set()
        go.wait(10)

    background.do(first)
    assert begun.wait(10)
    assert all(background.do(lambda: None) for _ in range(QUEUE_MAX))
    assert not background.do(lambda: None)
    go.set()


def test_a_forked_child_has_its_own() -> None:
    background = Background()
    wait_for(background)
    assert in_child(lambda: wait_for(background)) == 0
    wait_for(background)


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked child and return its exit code."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
