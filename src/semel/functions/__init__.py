"""Functions and blocks that take effect once for each key, sync and async.

`@idempotent(…)` on a function, `operation(…)` around a block, `run(…)` for a single call. Settings belong to the call,
or to the decorated function; functions share only the store.
"""

from semel.codecs.values import derived_key
from semel.functions.blocks import operation
from semel.functions.decorator import arun, idempotent, run
from semel.runtime.blocks import Block
from semel.runtime.options import NotDone, Options, StillUnknown

__all__ = ["Block", "NotDone", "Options", "StillUnknown", "arun", "derived_key", "idempotent", "operation", "run"]
