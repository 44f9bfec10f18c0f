"""Copies of a database's records, for the tiered store: strings beside this store's own records, which no scan matches.

The scripts decide nothing but whether a ticket still stands. A copy is not owed, so Redis may evict it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semel.core.copies import NO_COPY, TICKET_MS, CopyCall, FindCopy, ForbidCopy, OpenCopy, PutCopy
from semel.core.effects import Plan, do
from semel.stores.redis.commands import Command, Lua, Word
from semel.stores.redis.layout import frame, name_of

COPIES_MAX = 64
"""Copies in one command: with the largest answers that are copied, 16 MB."""
NO_TIME: Word = 0
"""The scripts do not ask for the time: the server's own counting of lives does."""
OPEN, PUT = Lua("copy_open"), Lua("copy_put")


def answer_copies(prefix: str, calls: Sequence[CopyCall[Any]]) -> Plan[list[Any]]:
    """Answer calls of one kind, each with its reply."""
    replies: list[Any] = []
    while some := calls[len(replies) : len(replies) + COPIES_MAX]:
        replies += yield from _answer(some, [copy_name(prefix, call) for call in some])
    return replies


def copy_name(prefix: str, call: CopyCall[Any]) -> bytes:
    return name_of(f"{prefix}:copies".encode(), b"%b\0%b" % (call.place.encode(), frame(call.key)))


def _answer(calls: Sequence[CopyCall[Any]], names: list[bytes]) -> Plan[list[Any]]:
    match calls[0]:
        case FindCopy():
            return list((yield from do(Command(("MGET", *names), names[0]))))
        case OpenCopy():
            tickets = [call.ticket for call in calls if isinstance(call, OpenCopy)]
            return list(map(bool, (yield from OPEN.run(names, (NO_TIME, TICKET_MS, *tickets)))))
        case PutCopy():
            puts = [call for call in calls if isinstance(call, PutCopy)]
            words = [word for call in puts for word in (call.ticket, call.value, call.life_ms)]
            return list(map(bool, (yield from PUT.run(names, (NO_TIME, *words)))))
        case _:
            for call, name in zip(calls, names, strict=True):  # an operator changes few records at once
                assert isinstance(call, ForbidCopy)
                if call.forbid_ms:
                    yield from do(Command(("SET", name, NO_COPY, "PX", call.forbid_ms), name))
                else:
                    yield from do(Command(("DEL", name), name))
            return [True] * len(calls)
