"""semel makes retries safe: the operation behind a key takes effect once, and every repeat gets the first answer.

```python
import semel

charged = []

@semel.idempotent(store="sqlite:///semel.db", key="order")
def pay(order: str, amount: int) -> str:
    charged.append(amount)  # the work: it runs once for each order
    return f"{amount} paid for {order}"

assert pay("order-1", 10) == pay("order-1", 10)  # the second call gets the stored result
assert charged == [10]
```

A repeat with other arguments raises `KeyReused`. A repeat after a crash raises `OutcomeUnknown`: nothing runs again
unless you choose `Policy(guarantee="at-least-once")`.

Where to go on:

- HTTP APIs with an `Idempotency-Key`: `semel.fastapi` (also for Starlette), `semel.litestar`, `semel.quart`,
  `semel.flask`, `semel.django`, or `semel.asgi` and `semel.wsgi` for any application. `Rule` and `Policy` say what is
  protected, and how.
- Functions and blocks: `semel.idempotent`, `semel.operation`, `semel.run`, `semel.arun`.
- The record and your rows in one database transaction, which is exactly-once: `semel.transaction`.
- Several steps that resume after a crash: `semel.flow`.
- Messages that come in: `semel.inbox`. Messages to publish: `semel.outbox`.
- Calls to another API, with one key that survives a crash: `semel.client`.
- Rows by natural key, optimistic locking, event sequences: `semel.database`, `semel.watermark`, `semel.conditional`.
- Tests of your service: `semel.testing`. Metrics and traces: `semel.telemetry`. Encryption: `semel.codecs.sealed`.
- In any language, in front of a service: `semel gateway`. `semel --help` lists the other commands.

Stores are opened by URL: `memory://`, `sqlite:///file.db`, `postgresql://…`, `mariadb://…`, `redis://…`.
`semel.open_store` says more. Errors are subclasses of `SemelError`.
"""

from typing import TYPE_CHECKING

from semel.core.fingerprint import Fingerprint, RequestParts
from semel.core.policy import Policy
from semel.core.records import Acquired, Key, Lease, Occupied, Record, Result, State
from semel.core.rules import Rule
from semel.errors import (
    InProgress,
    KeyExpired,
    KeyReused,
    Misuse,
    NotExecuted,
    OutcomeUnknown,
    RecordUnreadable,
    ResultNotKept,
    SemelError,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
    Superseded,
    Unstorable,
)
from semel.functions import Block, NotDone, StillUnknown, arun, derived_key, idempotent, operation, run
from semel.runtime.operation import BlockOperation, Operation, current_operation
from semel.store import AsyncStore, Counts, Filter, Page, Store
from semel.stores.open import open_async_store, open_store

__all__ = [
    "Acquired",
    "AsyncStore",
    "Block",
    "BlockOperation",
    "Counts",
    "Filter",
    "Fingerprint",
    "InProgress",
    "Key",
    "KeyExpired",
    "KeyReused",
    "Lease",
    "Misuse",
    "NotDone",
    "NotExecuted",
    "Occupied",
    "Operation",
    "OutcomeUnknown",
    "Page",
    "Policy",
    "Record",
    "RecordUnreadable",
    "RequestParts",
    "Result",
    "ResultNotKept",
    "Rule",
    "SemelError",
    "State",
    "StillUnknown",
    "Store",
    "StoreError",
    "StoreMisconfigured",
    "StoreUnavailable",
    "Superseded",
    "Unstorable",
    "arun",
    "current_operation",
    "derived_key",
    "idempotent",
    "open_async_store",
    "open_store",
    "operation",
    "run",
]

if TYPE_CHECKING:
    __version__: str
else:  # type checkers would take every misspelt name for one that it gives

    def __getattr__(name):
        """Give `semel.__version__`. The metadata is read when you ask for it, not with every import of semel."""
        if name != "__version__":
            raise AttributeError(f"module 'semel' has no attribute {name!r}")
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("semel")
        except PackageNotFoundError:  # it runs from its source folder
            return "0+unknown"
