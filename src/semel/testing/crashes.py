"""Crash points: the process dies right before, or right after, a function that you name.

    crash.after("shop.payments.charge")     # the card is charged, and nothing else happens

Nothing has to be prepared in the code under test. `Killed` unwinds the work without being caught by `except Exception`,
as close to a kill as one process gets; with `kill=True`, in `in_child`, it is a real SIGKILL.
"""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import os
import pkgutil
import signal
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

PATIENCE_S = 60


class Killed(BaseException):
    """The process died here. Not an `Exception`: no handler may recover from it."""


class CrashPoints:
    """Kills the process right before, or right after, a function that you name. Undone at the end of the test.

    The fixture `crash` of the pytest plugin gives one: `crash.after("shop.payments.charge")`.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.crashes: list[str] = []

    def before(self, target: str, *, kill: bool = False) -> None:
        """Die when `target` ("package.module.function") is called, before it does anything."""
        self._arm(target, kill, work_first=False)

    def after(self, target: str, *, kill: bool = False) -> None:
        """Die when `target` has done its work, before its caller learns of it."""
        self._arm(target, kill, work_first=True)

    def disarm(self) -> None:
        """No crash from here on: the next attempt lives."""
        self._patch.undo()

    def in_child(self, work: Callable[[], object]) -> bool:
        """Run `work` in a forked process; True when it was killed there, False when it lived to its end."""
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join(PATIENCE_S)
        if process.is_alive():
            process.kill()
            raise TimeoutError(f"the forked process was still running after {PATIENCE_S} s")
        if process.exitcode not in (0, -signal.SIGKILL):
            raise RuntimeError(f"the forked process failed with exit code {process.exitcode}: its output says why")
        return process.exitcode == -signal.SIGKILL

    def _arm(self, target: str, kill: bool, *, work_first: bool) -> None:
        holder, name = _resolve(target)
        original: Callable[..., Any] = getattr(holder, name)

        def die() -> NoReturn:
            self.crashes.append(target)
            if kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise Killed(f"{'after' if work_first else 'before'} {target}")

        @functools.wraps(original)
        def crashing(*args: Any, **kwargs: Any) -> Any:
            if work_first:
                original(*args, **kwargs)
            die()

        @functools.wraps(original)
        async def crashing_async(*args: Any, **kwargs: Any) -> Any:
            if work_first:
                await original(*args, **kwargs)
            die()

        self._patch.setattr(holder, name, crashing_async if inspect.iscoroutinefunction(original) else crashing)


def _resolve(target: str) -> tuple[Any, str]:
    """The module or class that holds the function, and the function's name there."""
    place, _, name = target.rpartition(".")
    try:
        holder = pkgutil.resolve_name(place)
        getattr(holder, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise LookupError(f"no function {target!r} to crash at: write it like 'package.module.function'") from error
    return holder, name
