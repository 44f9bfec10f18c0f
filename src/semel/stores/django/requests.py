"""Which requests of an asynchronous server are over: for what is asked after that, Django closes no connection.

Work that goes on when its caller has left, or was told 202, still runs in the context of its request. asgiref gives it
a new thread, whose connection would stay open until the garbage collector finds it.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.core.signals import request_finished

_over: WeakSet[ThreadSensitiveContext] = WeakSet()


def is_over() -> bool:
    """Whether this is done for a request that Django has finished already."""
    context = SyncToAsync.thread_sensitive_context.get(None)
    return context is not None and context in _over


def note_end(**_: Any) -> None:
    context = SyncToAsync.thread_sensitive_context.get(None)
    if context is not None:
        _over.add(context)


request_finished.connect(note_end, dispatch_uid="semel.stores.django.requests")
