"""Finds requests that a framework refused as invalid before it ran the endpoint, by the exception's traceback.

A framework raises the same exceptions that an endpoint may raise. The traceback tells the two apart: it holds every
frame between the framework's handler and the place where the exception was raised.
"""

from __future__ import annotations

from traceback import walk_tb
from types import FrameType

from semel.runtime.operation import current_operation


def frames_of(error: BaseException) -> list[FrameType]:
    """The frames that an exception came through; the one that raised it is the last."""
    return [frame for frame, _ in walk_tb(error.__traceback__)]


def is_in(frame: FrameType, package: str) -> bool:
    """Whether the code of a frame is the package's own."""
    module: str = frame.f_globals.get("__name__", "")
    return module == package or module.startswith(f"{package}.")


def tell_invalid() -> None:
    """Tell the current operation, if there is one, that its endpoint never ran because the request is invalid."""
    operation = current_operation()
    if operation is not None:
        operation.refused_invalid = True
