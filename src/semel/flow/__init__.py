"""Operations of several steps: each step is recorded as it finishes, and a crash resumes at the next one.

A final error makes the flow go back: every step that started is undone, the last one first, and each undo is recorded
as well. This is not a workflow engine: there are no timers, signals, queues or versions.
"""

from semel.flow.flows import AsyncFlow, Flow
from semel.flow.recovery import Recovered
from semel.flow.steps import FlowOperation, Step, keyed, tx, unsafe
from semel.runtime.options import NotDone

__all__ = ["AsyncFlow", "Flow", "FlowOperation", "NotDone", "Recovered", "Step", "keyed", "tx", "unsafe"]
