"""semel: every retry safe.

A key names an operation; it takes effect once; every repeat gets the first answer, byte for byte.
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
