"""An engine whose results are sealed: the one place where a transaction of yours seals and opens them.

The records are those of a sealed store of the same database (`semel.codecs.sealed`): each reads what the other wrote.
"""

from __future__ import annotations

from msgspec.structs import replace

from semel.codecs.origins import Origin
from semel.codecs.seal import Seal
from semel.core.attempts import CountAttempt
from semel.core.effects import Claim, Complete
from semel.core.outbox import AddMessage
from semel.core.records import Key, Occupied, Record
from semel.stores.sql.engine import Claimed, Engine, Granted
from semel.stores.sql.statements import Script


class SealedEngine:
    """The scripts of `engine`, between which results are in the clear only in this process.

    The mark of a grant carries the attempt and the fingerprint: the result is bound to them, and a lease does not tell.
    """

    def __init__(self, engine: Engine, seal: Seal) -> None:
        self._engine = engine
        self._seal = seal

    @property
    def tells_twins(self) -> bool:
        return self._engine.tells_twins

    def claim(self, call: Claim, wait_ms: int | None) -> Script[Claimed]:
        claimed = yield from self._engine.claim(call, wait_ms)
        if isinstance(claimed, Occupied):
            return replace(claimed, record=self._seal.opened(claimed.record))
        return Granted(claimed.lease, "\0".join((claimed.mark, str(claimed.lease.attempt), call.fingerprint)))

    def complete(self, call: Complete, mark: str) -> Script[None]:
        mark, attempt, fingerprint = mark.split("\0")  # none of them contains one
        origin = Origin(call.lease.key, fingerprint, int(attempt), call.lease.owner)
        yield from self._engine.complete(replace(call, result=self._seal.seal(origin, call.result)), mark)

    def read(self, key: Key) -> Script[Record | None]:
        record = yield from self._engine.read(key)
        return None if record is None else self._seal.opened(record)

    def count_attempt(self, call: CountAttempt) -> Script[int]:
        return self._engine.count_attempt(call)

    def add_message(self, call: AddMessage) -> Script[bool]:
        """A message is for a broker: only results are sealed."""
        return self._engine.add_message(call)


def sealed_engine(engine: Engine, seal: Seal | None) -> Engine:
    """The engine itself where nothing is to be sealed."""
    return engine if seal is None else SealedEngine(engine, seal)
