"""Requests as effects, and the conditions under which DynamoDB carries them out.

Each expression is text with `#attribute` and `:value`. The names are found in the text, and none can be a reserved
word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from semel.core.effects import Effect
from semel.core.records import Record, State
from semel.stores.dynamodb.layout import CHANGING, COUNTED, VERSION, Item, item_of, number, text, ttl_of

NAME = re.compile(r"#(\w+)")
VERSIONED = re.compile(r":version\b")
IS_HELD = "#version = :version AND #owner = :owner AND #state = :held"
IS_FREE = "attribute_not_exists(#digest) OR (#version = :version AND #forget_ms <= :now AND #lease_until_ms <= :lapsed)"
IS_FORGOTTEN = "#forget_ms <= :now"
PAGE = 1_000
"""How many items a page of a scan looks at."""


class Request(Effect[Any], frozen=True):
    """One request on the table; the reply is the server's, or `ConditionFailed`."""

    operation: str
    arguments: Mapping[str, Any]


class Requests(Effect[list[Any]], frozen=True):
    """Independent requests, under way at once."""

    all: Sequence[Request]


class ConditionFailed(Struct, frozen=True):
    """The condition of a write did not hold, so nothing was done. `item` is what was there, if the server tells it."""

    item: Item | None


def read(digest: str) -> Request:
    return Request("get_item", {"Key": {"digest": text(digest)}, "ConsistentRead": True})


def put(item: Item) -> Request:
    return Request("put_item", {"Item": item})


def put_if_free(record: Record, now_ms: int, margin_ms: int) -> Request:
    """A claim: granted if there is nothing, or nothing that counts."""
    values = {":now": number(now_ms), ":lapsed": number(now_ms - margin_ms)}
    return Request("put_item", {"Item": item_of(record), **_if(IS_FREE, values)})


def put_if_unchanged(item: Item, seen: Item) -> Request:
    return Request("put_item", {"Item": item, **_if_unchanged(seen)})


def delete_if_unchanged(digest: str, seen: Item) -> Request:
    return Request("delete_item", {"Key": {"digest": text(digest)}, **_if_unchanged(seen)})


def delete_if_first(digest: str, owner: str) -> Request:
    """A release of the first attempt."""
    condition = _if_held(f"{IS_HELD} AND #attempt = :first", owner, {":first": number(1)})
    return Request("delete_item", {"Key": {"digest": text(digest)}, **condition})


def delete_if_forgotten(digest: str, now_ms: int) -> Request:
    condition = _if(IS_FORGOTTEN, {":now": number(now_ms)})
    return Request("delete_item", {"Key": {"digest": text(digest)}, **condition})


def extend(digest: str, owner: str, until_ms: int) -> Request:
    """A renewal, if DynamoDB will not delete the item before the new end."""
    values = {":until": number(until_ms), ":ttl": ttl_of(until_ms)}
    return Request(
        "update_item",
        {
            "Key": {"digest": text(digest)},
            "UpdateExpression": "SET #lease_until_ms = :until",
            "ReturnValues": "ALL_NEW",
            **_if_held(f"{IS_HELD} AND #ttl >= :ttl", owner, values, "#lease_until_ms"),
        },
    )


def finish(digest: str, owner: str, attributes: Item) -> Request:
    """A completion by the owner of the lease."""
    update = "SET " + ", ".join(f"#{name} = :{name}_new" for name in attributes)
    values = {f":{name}_new": value for name, value in attributes.items()}
    condition = _if_held(IS_HELD, owner, values, update)
    return Request("update_item", {"Key": {"digest": text(digest)}, "UpdateExpression": update, **condition})


def count_on(digest: str, error: str, now_ms: int, forget_ms: int) -> Request:
    update = "SET #count = #count + :one, #forget_ms = :forget_ms, #ttl = :ttl, #error = :error"
    values = {":one": number(1), ":now": number(now_ms), **_count_values(error, forget_ms)}
    return Request(
        "update_item",
        {
            "Key": {"digest": text(digest)},
            "UpdateExpression": update,
            "ReturnValues": "ALL_NEW",
            **_if("#forget_ms > :now", values, update),
        },
    )


def count_first(digest: str, error: str, now_ms: int, forget_ms: int) -> Request:
    counted = {name.removeprefix(":"): value for name, value in _count_values(error, forget_ms).items()}
    item = {"digest": text(digest), "count": number(1), **counted}
    condition = _if(f"attribute_not_exists(#digest) OR {IS_FORGOTTEN}", {":now": number(now_ms)})
    return Request("put_item", {"Item": item, **condition})


def _count_values(error: str, forget_ms: int) -> dict[str, Any]:
    """An empty error is a blank: not every server takes an empty text."""
    return {":forget_ms": number(forget_ms), ":ttl": ttl_of(forget_ms), ":error": text(error or " ")}


def scan(after: str | None, limit: int = PAGE, *, with_results: bool = True) -> Request:
    arguments: dict[str, Any] = {"Limit": limit}
    if after is not None:
        arguments["ExclusiveStartKey"] = {"digest": text(after)}
    if not with_results:
        wanted = ", ".join(f"#{name}" for name in COUNTED)
        arguments |= {"ProjectionExpression": wanted, "ExpressionAttributeNames": names_in(wanted)}
    return Request("scan", arguments)


def names_in(*expressions: str) -> dict[str, str]:
    return {f"#{name}": name for expression in expressions for name in NAME.findall(expression)}


def _if(condition: str, values: Mapping[str, Any], *others: str) -> dict[str, Any]:
    if VERSIONED.search(condition):
        values = {**values, ":version": number(VERSION)}
    return {
        "ConditionExpression": condition,
        "ExpressionAttributeNames": names_in(condition, *others),
        "ExpressionAttributeValues": values,
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def _if_held(condition: str, owner: str, values: Mapping[str, Any], *others: str) -> dict[str, Any]:
    held = {":owner": text(owner), ":held": text(State.IN_PROGRESS.value)}
    return _if(condition, {**values, **held}, *others)


def _if_unchanged(seen: Item) -> dict[str, Any]:
    """Nothing that matters happened since it was read. An empty item stands for none."""
    if not seen:
        condition = "attribute_not_exists(#digest)"
        arguments = _if(condition, {})
        del arguments["ExpressionAttributeValues"]
        return arguments
    terms = [f"#{name} = :{name}_seen" if name in seen else f"attribute_not_exists(#{name})" for name in CHANGING]
    return _if(" AND ".join(terms), {f":{name}_seen": seen[name] for name in CHANGING if name in seen})
