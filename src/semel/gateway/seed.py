"""The imports of the process that workers are forked from, so that a dead worker is replaced quickly.

It imports and nothing else: no loop, no thread, no connection, so it may be forked at any moment.
"""

from __future__ import annotations

import signal
from importlib.util import find_spec

import semel.gateway.worker
import semel.telemetry.prometheus  # noqa: F401

if find_spec("uvloop"):
    import uvloop  # noqa: F401

# A service manager may signal all processes of a group. Workers finish what has begun; this one has to outlive them.
for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, signal.SIG_IGN)
