"""The pytest plugin: fixtures for testing that a service is idempotent.

pytest loads it by itself where semel is installed, so it imports nothing until a fixture is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from semel.stores.memory import AsyncMemoryStore, MemoryStore
    from semel.testing.clock import ManualClock
    from semel.testing.crashes import CrashPoints
    from semel.testing.duplicates import Duplicates
    from semel.testing.proxy import FaultProxy


@pytest.fixture
def semel_clock() -> ManualClock:
    """A clock that stands still until `advance(by_ms)`: leases lapse and retention ends when the test says so."""
    from semel.runtime.clock import wall_ms
    from semel.testing.clock import ManualClock

    return ManualClock(wall_ms())


@pytest.fixture
def semel_store(semel_clock: ManualClock) -> MemoryStore:
    """A store of its own for this test, for threads, which goes by `semel_clock`."""
    from semel.stores.memory import MemoryStore

    return MemoryStore(clock=semel_clock)


@pytest.fixture
def semel_async_store(semel_clock: ManualClock) -> AsyncMemoryStore:
    """The same for async code."""
    from semel.stores.memory import AsyncMemoryStore

    return AsyncMemoryStore(clock=semel_clock)


@pytest.fixture
def semel_crash() -> Iterator[CrashPoints]:
    """Crash points: `semel_crash.after("shop.charge")` kills the work right after that function."""
    from semel.testing.crashes import CrashPoints

    with pytest.MonkeyPatch.context() as patch:
        yield CrashPoints(patch)


@pytest.fixture
def semel_fault_proxy() -> Iterator[Callable[[str], FaultProxy]]:
    """A proxy that breaks connections: `semel_fault_proxy("redis://127.0.0.1:6379/0").url` goes through it."""
    from semel.testing.proxy import FaultProxy

    with ExitStack() as proxies:
        yield lambda url: proxies.enter_context(FaultProxy(url))


@pytest.fixture
def semel_duplicates() -> Iterator[Duplicates]:
    """While the test runs, every httpx client (Starlette's test client, too) sends each unsafe request twice."""
    from semel.testing.duplicates import Duplicates

    with pytest.MonkeyPatch.context() as patch:
        yield Duplicates(patch)
