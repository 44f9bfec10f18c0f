"""The row of an intent: what a file keeps of it, and what of that is sealed.

With a seal, the request (method, URL, headers and body), the answer and the last error are sealed. The names, the key,
the state, the times and the counts are not.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from semel.codecs.origins import Origin
from semel.codecs.seal import Seal
from semel.core.journal import CallRequest, IntentEntry, IntentId, IntentState, KeptAnswer
from semel.core.records import NOBODY, Key, Result
from semel.errors import RecordUnreadable

PLAIN = "intent.1"


class IntentRow(Struct, frozen=True, array_like=True):
    """The columns, in their order."""

    namespace: str
    name: str
    key: str
    state: str
    created_ms: int
    max_age_ms: int
    attempts: int
    owner: str
    lease_until_ms: int
    finished_ms: int
    request: bytes
    outcome: bytes | None


class IntentOutcome(Struct, frozen=True, array_like=True):
    """How it ended, or why it did not."""

    answer: KeptAnswer | None = None
    error: str = ""


class KeptPart(Struct, frozen=True, array_like=True):
    """Bytes of a column, with the name of their format."""

    format: str
    payload: bytes


class IntentRows:
    """Entries as rows, and back.

    What is sealed is bound to its intent: a copy of it does not open under another name, or in a later intent of the
    same name.
    """

    def __init__(self, path: str, seal: Seal | None) -> None:
        self._path, self._seal = path, seal

    def read(self, columns: tuple[object, ...]) -> IntentEntry:
        try:
            row = msgspec.convert(columns, IntentRow)
            name = IntentId(row.name, row.namespace)
            request = self._open(row.request, _origin("request", name, row.key, row.created_ms))
            outcome = IntentOutcome()
            if row.outcome is not None:
                opened = self._open(row.outcome, _origin("outcome", name, row.key, row.created_ms))
                outcome = msgspec.msgpack.decode(opened, type=IntentOutcome)
            return IntentEntry(
                id=name,
                key=row.key,
                request=msgspec.msgpack.decode(request, type=CallRequest),
                state=IntentState(row.state),
                created_ms=row.created_ms,
                max_age_ms=row.max_age_ms,
                attempts=row.attempts,
                owner=row.owner,
                lease_until_ms=row.lease_until_ms,
                finished_ms=row.finished_ms,
                answer=outcome.answer,
                error=outcome.error,
            )
        except RecordUnreadable as error:
            raise RecordUnreadable(
                f"the intent {columns[1]!r} in {self._path} does not open, so nothing is sent for it: {error}"
            ) from error
        except (msgspec.MsgspecError, ValueError) as error:
            raise RecordUnreadable(
                f"the intent {columns[1]!r} in {self._path} cannot be read by this version, so nothing is sent for it: "
                "restore the file from a backup, or upgrade semel"
            ) from error

    def changes(self, entry: IntentEntry) -> dict[str, object]:
        """The columns that change, and those that find the row. An intent never gets another key or request."""
        outcome = None
        if entry.answer is not None or entry.error:
            plain = msgspec.msgpack.encode(IntentOutcome(entry.answer, entry.error))
            outcome = self._close(plain, _origin("outcome", entry.id, entry.key, entry.created_ms))
        return {
            "namespace": entry.id.namespace,
            "name": entry.id.name,
            "state": entry.state.value,
            "max_age_ms": entry.max_age_ms,
            "attempts": entry.attempts,
            "owner": entry.owner,
            "lease_until_ms": entry.lease_until_ms,
            "finished_ms": entry.finished_ms,
            "outcome": outcome,
        }

    def columns(self, entry: IntentEntry) -> dict[str, object]:
        """All columns, for a new row."""
        plain = msgspec.msgpack.encode(entry.request)
        request = self._close(plain, _origin("request", entry.id, entry.key, entry.created_ms))
        return self.changes(entry) | {"key": entry.key, "created_ms": entry.created_ms, "request": request}

    def _close(self, plain: bytes, origin: Origin) -> bytes:
        part = Result(PLAIN, plain)
        if self._seal is not None:
            part = self._seal.seal(origin, part)
        return msgspec.msgpack.encode(KeptPart(part.format, part.payload))

    def _open(self, column: bytes, origin: Origin) -> bytes:
        found = msgspec.msgpack.decode(column, type=KeptPart)
        part = Result(found.format, found.payload)
        if self._seal is not None:
            part = self._seal.open(origin, part)
        if part.format != PLAIN:
            raise ValueError(f"its format is {part.format!r}")
        return part.payload


def _origin(part: str, name: IntentId, key: str, created_ms: int) -> Origin:
    return Origin(Key(name.namespace, f"journal: {part}", name.name), key, 0, NOBODY, created_ms)
