"""The contract suite: what every store must do, as tests that a third party can run (`pip install 'semel[testing]'`).

Subclass one contract for each face, implement `open`, and let pytest collect it:

    from semel.testing import AsyncStoreContract, StoreContract

    class TestMyStore(StoreContract):
        def open(self, clock):
            return MyStore("my://server/database", clock=clock)

    class TestMyAsyncStore(AsyncStoreContract):
        def open(self, clock):
            return MyAsyncStore("my://server/database", clock=clock)

`open` returns a *new handle* on the *same records* each time it is called within a test. With a `clock` the store
must go by it exactly, in every call; with None it goes by its own. The suite migrates a `Migratable` store before
it uses it. Tests keep to tenants of their own, so they may share a database, but two runs at once may not: some
tests count all that is there.

Where `open` needs a fixture, keep its value on the test instance:

    @pytest.fixture(autouse=True)
    def place(self, tmp_path):
        self.path = tmp_path / "records.db"

The instance is sent to other processes, which call `open` there. So everything that is kept on it must survive
pickling, and the test module must be importable. A store that lives in one object says `shared = False` instead, and
the tests with a second handle or process are skipped.

Abilities (`Watchable`, `Inspectable`, `Resolvable`, `Removable`, `AttemptCounting`, `Migratable`) are found with
`isinstance` and tested when they are there. The number of random histories that are compared with the model is
`parity_examples`, or SEMEL_PARITY_EXAMPLES in the environment.

For a service there are `assert_idempotent`, `assert_handled_once` for consumers of messages, crash points, a proxy that
breaks connections and clients that send everything twice; the fixtures of `semel.testing.plugin` hand them out. Each
name is imported when it is asked for: the plugin is loaded by every pytest run, also where Hypothesis and httpx are not
installed.
"""

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from semel.testing.assertions import aassert_idempotent, assert_idempotent
    from semel.testing.clock import ManualClock
    from semel.testing.contract import AsyncStoreContract, StoreContract
    from semel.testing.crashes import CrashPoints, Killed
    from semel.testing.deliveries import aassert_handled_once, assert_handled_once
    from semel.testing.loop_thread import BlockingStore
    from semel.testing.proxy import Fault, FaultProxy
    from semel.testing.transport import (
        AsyncDuplicatingTransport,
        AsyncLosingTransport,
        DuplicatingTransport,
        LosingTransport,
    )

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))

WHERE = {
    "assertions": "aassert_idempotent assert_idempotent",
    "loop_thread": "BlockingStore",
    "clock": "ManualClock",
    "contract": "AsyncStoreContract StoreContract",
    "crashes": "CrashPoints Killed",
    "deliveries": "aassert_handled_once assert_handled_once",
    "proxy": "Fault FaultProxy",
    "transport": "AsyncDuplicatingTransport AsyncLosingTransport DuplicatingTransport LosingTransport",
}

__all__ = [
    "AsyncDuplicatingTransport",
    "AsyncLosingTransport",
    "AsyncStoreContract",
    "BlockingStore",
    "CrashPoints",
    "DuplicatingTransport",
    "Fault",
    "FaultProxy",
    "Killed",
    "LosingTransport",
    "ManualClock",
    "StoreContract",
    "aassert_handled_once",
    "aassert_idempotent",
    "assert_handled_once",
    "assert_idempotent",
]


def __getattr__(name: str) -> object:
    for module, names in WHERE.items():
        if name in names.split():
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
