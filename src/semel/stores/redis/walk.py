"""How operators walk through all records: over the nodes one after the other, each with SCAN.

Slots may move meanwhile, and a failover puts another node in the place of one. So a walk remembers the slots that it
has walked through, not the nodes. A slot that left its node during a pass is walked through again where it is now: a
record may be shown twice, and is not missed because of that.
"""

from __future__ import annotations

import re
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace

from semel.stores.redis.commands import Node

BYTES = 2_048
"""Of a number with a bit for each slot."""


@dataclass(frozen=True, slots=True)
class Walk:
    """Where a walk is."""

    done: int = 0
    """The slots that it has walked through, bit by bit."""
    node: str = ""
    slots: int = 0
    """The slots that this pass over `node` will have walked through."""
    place: int = 0
    """The cursor of SCAN."""

    def turn(self, nodes: Sequence[Node]) -> tuple[Walk, Node]:
        """The pass that is under way, or the next one if its node has lost all of its slots."""
        here = next((node for node in nodes if node.name == self.node and node.slots & self.slots), None)
        if here is not None:
            return replace(self, slots=self.slots & here.slots), here
        rest = _all(nodes) & ~self.done
        lowest = rest & -rest
        here = next(node for node in nodes if node.slots & (lowest or node.slots))
        return Walk(self.done, here.name, here.slots & ~self.done), here

    def after(self, place: int, nodes: Sequence[Node]) -> Walk | None:
        """Where to go on when SCAN has answered `place`; None at the end."""
        if place:
            return replace(self, place=place)
        done = self.done | self.slots
        return Walk(done) if _all(nodes) & ~done else None


def _all(nodes: Sequence[Node]) -> int:
    slots = 0
    for node in nodes:
        slots |= node.slots
    return slots


def write_cursor(walk: Walk, passed: bytes) -> str:
    """With a single server it says no more than it has to."""
    end = f"{walk.place}.{passed.decode()}"
    if not walk.node:
        return end
    slots = b"".join(each.to_bytes(BYTES) for each in (walk.done, walk.slots))
    return f"{walk.node}~{urlsafe_b64encode(zlib.compress(slots)).decode()}~{end}"


def read_cursor(cursor: str | None) -> tuple[Walk, bytes]:
    """A walk, and the last name on its page that was shown."""
    if cursor is None:
        return Walk(), b""
    match = re.fullmatch(r"(?:([\w.:-]{1,300})~([\w=-]{1,8000})~)?(\d{1,20})\.([\x21-\x7e]*)", cursor)
    try:
        if match is None:
            raise ValueError
        node, slots, place, passed = match.groups()
        if node is None:
            return Walk(slots=1, place=int(place)), passed.encode()
        both = zlib.decompressobj().decompress(urlsafe_b64decode(slots), 2 * BYTES)
        walk = Walk(int.from_bytes(both[:BYTES]), node, int.from_bytes(both[BYTES:]), int(place))
        return walk, passed.encode()
    except (ValueError, zlib.error):
        raise ValueError(f"{cursor!r} is not a cursor that scan returned") from None
