"""Scripts for records of several slots: a cluster takes only names of one slot in a script, but any number of scripts.

So each record has a script of its own there. Two records of one slot could share one, but while the slot moves no node
would take it (TRYAGAIN), for as long as that lasts. With a single server everything is in one slot, and one script.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from semel.core.effects import Plan, do
from semel.errors import StoreError
from semel.stores.redis.commands import Lua, Together, Word

T = TypeVar("T")
SlotOf = Callable[[bytes], int]


def one_slot(name: bytes) -> int:
    return 0


def group(names: Sequence[bytes], slot_of: SlotOf) -> list[list[int]]:
    """Where the names of each script are."""
    if slot_of is one_slot:
        return [list(range(len(names)))]
    groups: dict[bytes, list[int]] = {}
    for place, name in enumerate(names):
        groups.setdefault(name, []).append(place)
    return list(groups.values())


def run(lua: Lua, names: Sequence[bytes], words: Sequence[Word], slot_of: SlotOf) -> Plan[list[tuple[list[int], Any]]]:
    """Run a script for all names: which of them, and what it said. The first failure is that of all."""
    groups = group(names, slot_of)
    if len(groups) == 1:
        return [(groups[0], (yield from lua.run(names, words)))]
    replies = yield from together([lua.run([names[place] for place in places], words) for places in groups])
    for reply in replies:
        if isinstance(reply, StoreError):
            raise reply
    return list(zip(groups, replies, strict=True))


def together(plans: Sequence[Plan[T]]) -> Plan[list[T | StoreError]]:
    """Run plans side by side: what they ask for in the same step is sent together. Each has its own end."""
    ends: list[Any] = [None] * len(plans)
    steps: dict[int, tuple[Callable[[Any], Any], Any]] = {at: (plan.send, None) for at, plan in enumerate(plans)}
    while steps:
        asked: dict[int, Any] = {}
        for at, (step, given) in steps.items():
            try:
                asked[at] = step(given)
            except StopIteration as stop:
                ends[at] = stop.value
            except StoreError as error:
                ends[at] = error
        replies = (yield from do(Together(tuple(asked.values())))) if asked else []
        steps = {
            at: (plans[at].throw if isinstance(reply, StoreError) else plans[at].send, reply)
            for at, reply in zip(asked, replies, strict=True)
        }
    return ends
