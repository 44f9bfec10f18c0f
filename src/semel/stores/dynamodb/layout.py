"""What is stored for a record: one item, whose partition key is a digest of the whole key.

A digest spreads keys evenly over the partitions, whatever tenants and names look like, and two different keys never
share one. The item names its key in full, so a damaged table is found, not replayed. Empty texts are left out, because
not every server of this protocol takes them.

A result that is too large for one item is in items of its own (`part:…`), which are written before the record names
them. How often a handler failed on a message is in an item of its own, too (`attempts:…`).
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from semel.core.records import Key, Record, Result, State
from semel.errors import RecordUnreadable

Item = Mapping[str, Mapping[str, Any]]
"""An item in DynamoDB's own words: {attribute: {type: value}}."""
VERSION = 1
TTL_SLACK_MS = 3_600_000
"""DynamoDB deletes an item this long after its end, or later. Until then the times in the item decide."""
PAYLOAD_MAX = 400_000
"""Bytes of a result in one item. An item may have 409,600, and the rest of it never has 9,600."""
ATTEMPTS, PART = "attempts:", "part:"
TEXTS = ("tenant", "scope", "name", "fingerprint", "owner")
NUMBERS = ("attempt", "created_ms", "lease_until_ms", "expires_ms", "refuse_ms")
RESULT = ("format", "payload", "parts", "parts_id")
CHANGING = ("version", "state", "owner", *NUMBERS)
"""If these are as they were, nothing happened to the record that matters."""
COUNTED = ("digest", "version", "state", *TEXTS, *NUMBERS, "forget_ms")
"""Everything but the result."""


def digest_of(key: Key) -> str:
    """43 letters. No part of a key contains NUL, so none can imitate the end of one and the start of another."""
    framed = f"{key.tenant}\0{key.scope}\0{key.name}".encode()
    return urlsafe_b64encode(sha256(framed).digest()).decode().rstrip("=")


def text(value: str) -> Mapping[str, str]:
    return {"S": value}


def number(value: int) -> Mapping[str, str]:
    return {"N": str(value)}


def number_in(item: Item, name: str) -> int:
    return int(item[name]["N"])


def ttl_of(end_ms: int) -> Mapping[str, str]:
    """In seconds, rounded up."""
    return number(-(-(end_ms + TTL_SLACK_MS) // 1000))


def item_of(record: Record) -> dict[str, Mapping[str, Any]]:
    """Everything but the result."""
    forget_ms = record.expires_ms + record.refuse_ms
    item: dict[str, Mapping[str, Any]] = {
        "digest": text(digest_of(record.key)),
        "version": number(VERSION),
        "state": text(record.state.value),
        "forget_ms": number(forget_ms),
        "ttl": ttl_of(max(forget_ms, record.lease_until_ms)),
    }
    for name in TEXTS:
        if value := getattr(record.key if name in ("tenant", "scope", "name") else record, name):
            item[name] = text(value)
    for name in NUMBERS:
        item[name] = number(getattr(record, name))
    return item


def result_item(digest: str, owner: str, result: Result) -> dict[str, Mapping[str, Any]]:
    """The attributes of a result. Those of a large one name its parts."""
    found: dict[str, Mapping[str, Any]] = {"format": text(result.format)}
    if len(result.payload) > PAYLOAD_MAX:
        found["parts"] = number(-(-len(result.payload) // PAYLOAD_MAX))
        found["parts_id"] = text(parts_id(digest, owner, result))
    elif result.payload:
        found["payload"] = {"B": result.payload}
    return found


def parts_id(digest: str, owner: str, result: Result) -> str:
    """By content and owner: parts of another result, or of a superseded owner, have other names."""
    named = sha256(f"{digest}\0{owner}\0".encode() + result.payload).digest()
    return PART + urlsafe_b64encode(named).decode().rstrip("=")


def parts_of(digest: str, owner: str, result: Result, forget_ms: int) -> Iterator[dict[str, Mapping[str, Any]]]:
    """The items that hold a large result. A small one has none."""
    if len(result.payload) <= PAYLOAD_MAX:
        return
    named = parts_id(digest, owner, result)
    for at in range(0, len(result.payload), PAYLOAD_MAX):
        yield {
            "digest": text(f"{named}:{at // PAYLOAD_MAX}"),
            "payload": {"B": result.payload[at : at + PAYLOAD_MAX]},
            "forget_ms": number(forget_ms),
            "ttl": ttl_of(forget_ms),
        }


def part_names(item: Item) -> list[str]:
    """The items that hold the rest of the result, in order."""
    if "parts" not in item:
        return []
    return [f"{item['parts_id']['S']}:{part}" for part in range(number_in(item, "parts"))]


def to_record(item: Item, key: Key | None = None) -> Record:
    """Read an item; the payload of a result in parts is empty.

    What does not make sense, or is not `key`'s if one is given, is refused, never taken as absent.
    """
    try:
        return _decode(item, key)
    except (KeyError, ValueError, TypeError) as error:
        whose = f"the record of {key}" if key else "a record"
        raise RecordUnreadable(
            f"{whose} is stored in a form that this version of semel does not know ({error!r}): it was written by a "
            "newer semel, or something else writes to the same table"
        ) from None


def _decode(item: Item, key: Key | None) -> Record:
    if number_in(item, "version") != VERSION:
        raise ValueError(f"version {item['version']['N']}")
    tenant, scope, name, fingerprint, owner = (item[each]["S"] if each in item else "" for each in TEXTS)
    found = Key(tenant, scope, name)
    if key is None:
        key = found
    if found != key or item["digest"]["S"] != digest_of(key):
        raise ValueError(f"it belongs to {found}")
    attempt, created_ms, lease_until_ms, expires_ms, refuse_ms = (number_in(item, each) for each in NUMBERS)
    state = State(item["state"]["S"])
    finished = state is not State.IN_PROGRESS
    result = _result(item, state) if finished and "format" in item else None
    # The lease of a finished record ended when it was completed.
    completed_ms = lease_until_ms if finished else None
    times_ms = created_ms, lease_until_ms, expires_ms, completed_ms
    return Record(key, fingerprint, state, owner, attempt, *times_ms, result, refuse_ms)


def _result(item: Item, state: State) -> Result:
    payload: bytes = item["payload"]["B"] if "payload" in item else b""
    return Result(item["format"]["S"], payload, state is State.SUCCEEDED)
