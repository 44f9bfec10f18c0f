"""The row that is a record, the same in every SQL store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semel.core.records import Key, Record, Result, State
from semel.errors import RecordUnreadable
from semel.store import UnreadableRecord

COLUMNS = (
    "tenant",
    "scope",
    "name",
    "fingerprint",
    "state",
    "owner",
    "attempt",
    "created_ms",
    "lease_until_ms",
    "expires_ms",
    "format",
    "payload",
    "refuse_ms",
)
IN_PROGRESS, SUCCEEDED, FAILED = 0, 1, 2
CODES = {State.IN_PROGRESS: IN_PROGRESS, State.SUCCEEDED: SUCCEEDED, State.FAILED: FAILED}
STATES = {code: state for state, code in CODES.items()}
SHORT_FORMATS = {"http.1": 1, "value.1": 2, "error.1": 3, "sealed.1": 4, "sealed.2": 5}
"""Formats that a row may spell as a number: a file has one in every record."""
FORMATS = {number: format for format, number in SHORT_FORMATS.items()}


def to_record(row: tuple[Any, ...], key: Key | None = None) -> Record:
    """Read a row of `COLUMNS`. A caller that asked for the `key` of the row gives it: it need not be made again.

    What does not make sense was written by a version that knows more, and is refused, not ignored.
    """
    (
        tenant,
        scope,
        name,
        fingerprint,
        code,
        owner,
        attempt,
        created,
        lease_until,
        expires,
        format,
        payload,
        refuse,
    ) = row
    try:
        key, state = key or Key(tenant, scope, name), STATES[code]
        completed = result = None
        if code != IN_PROGRESS:
            completed = lease_until  # the end of the work is the end of its lease
            if format is not None:  # else a tombstone, whose result was purged
                result = Result(FORMATS.get(format) or format, _bytes(payload), ok=code == SUCCEEDED)
    except (KeyError, TypeError, ValueError) as error:
        raise RecordUnreadable(
            f"the record of {_shown(tenant, scope, name)} (state {code!r}, format {format!r}) was not written by a "
            f"version that this one knows: upgrade semel ({error})"
        ) from None
    return Record(key, fingerprint, state, owner, attempt, created, lease_until, expires, completed, result, refuse)


def read_rows(rows: Sequence[tuple[Any, ...]]) -> tuple[list[Record], list[UnreadableRecord]]:
    """The records of rows of `COLUMNS` with the digest behind them, and what of them cannot be read."""
    records: list[Record] = []
    unreadable: list[UnreadableRecord] = []
    for *columns, digest in rows:
        try:
            records.append(_sound(to_record(tuple(columns))))
        except RecordUnreadable as error:
            place = digest if isinstance(digest, int) else bytes(digest).hex()
            unreadable.append(UnreadableRecord(f"digest {place}", str(error)))
    return records, unreadable


def _sound(record: Record) -> Record:
    """SQLite keeps text where a number belongs, and bytes that are no text, if a damaged file has them there."""
    texts = (record.fingerprint, record.owner)
    numbers = (record.attempt, record.created_ms, record.lease_until_ms, record.expires_ms, record.refuse_ms)
    if not all(isinstance(each, str) for each in texts) or not all(isinstance(each, int) for each in numbers):
        raise RecordUnreadable(f"the record of {record.key} is damaged: a column holds another type than its own")
    return record


def _shown(tenant: Any, scope: Any, name: Any) -> str:
    """The key of a row, as logs show it; a damaged one may be no key."""
    try:
        return str(Key(tenant, scope, name))
    except (TypeError, ValueError):
        return f"a damaged key (tenant {tenant!r}, scope {scope!r})"


def checked(record: Record, key: Key) -> Record:
    """The record that was found by the digest of `key`: no caller is ever shown another key's."""
    if record.key != key:
        raise RecordUnreadable(f"the record of {record.key} has the digest of {key}: use another name for one of them")
    return record


def _bytes(payload: Any) -> bytes:
    """A damaged row may hold a number, of which `bytes` would make as many zeros."""
    if not isinstance(payload, (bytes, bytearray, memoryview)):
        raise TypeError(f"payload is {type(payload).__name__}, not bytes")
    return bytes(payload)
