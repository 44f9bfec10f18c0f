"""The table of the DynamoDB store, and what a table must be."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from semel.core.effects import Pause, Plan, do
from semel.errors import StoreMisconfigured, StoreUnavailable
from semel.store import Migration
from semel.stores.dynamodb.failures import MIGRATE, Exists, Invalid, Missing, Unsupported
from semel.stores.dynamodb.queries import Request
from semel.stores.dynamodb.settings import DynamodbSettings

KEY, TTL = "digest", "ttl"
TITLE = "table"
POLL_MS = 200
CREATE_S = 120
"""How long a table that was asked for may take."""


def describe() -> Plan[Mapping[str, Any]]:
    found: Mapping[str, Any] = (yield from do(Request("describe_table", {})))["Table"]
    return found


def ready(settings: DynamodbSettings) -> Plan[None]:
    """Refuse a table that cannot be used, having created it if wanted."""
    try:
        table = yield from describe()
    except Missing:
        if not settings.migrate:
            raise
        yield from migrate(settings)
        return
    check(table, settings)
    if table["TableStatus"] == "CREATING":
        if not settings.migrate:
            raise StoreUnavailable(f"{settings.shown}: the table is still being created")
        yield from _wait_until_active(settings)


def check(table: Mapping[str, Any], settings: DynamodbSettings) -> None:
    keys = [(each["AttributeName"], each["KeyType"]) for each in table["KeySchema"]]
    types = {each["AttributeName"]: each["AttributeType"] for each in table["AttributeDefinitions"]}
    if keys != [(KEY, "HASH")] or types[KEY] != "S":
        told = ", ".join(f"{name} ({types[name]}, {kind})" for name, kind in keys)
        raise StoreMisconfigured(
            f"{settings.shown}: the key of the table is {told}, and must be {KEY} (S, HASH) alone; name another table. "
            f"To create it, {MIGRATE}"
        )


def migrate(settings: DynamodbSettings) -> Plan[list[int]]:
    """Create the table unless it is there. Its TTL is looked at each time: turning it on is a request of its own."""
    try:
        yield from do(Request("create_table", _creation(settings)))
        applied = [1]
    except Exists:
        applied = []
    table = yield from _wait_until_active(settings)
    check(table, settings)
    try:
        found = yield from do(Request("describe_time_to_live", {}))
        if found["TimeToLiveDescription"]["TimeToLiveStatus"] == "DISABLED":
            yield from do(Request("update_time_to_live", {"TimeToLiveSpecification": _TTL_ON}))
    except (Unsupported, Invalid):
        pass  # an emulator cannot, or another migrator was faster; semel doctor tells
    return applied


def printable(settings: DynamodbSettings) -> list[Migration]:
    """What a person would run by hand."""
    where = f"--region {settings.region} --table-name {settings.table}"
    if settings.endpoint_url:
        where += f" --endpoint-url {settings.endpoint_url}"
    read, write = settings.units or (0, 0)
    billing = f"--billing-mode {_billing(settings)}" + (
        f" --provisioned-throughput ReadCapacityUnits={read},WriteCapacityUnits={write}" if read else ""
    )
    create = (
        f"aws dynamodb create-table {where} --attribute-definitions AttributeName={KEY},AttributeType=S "
        f"--key-schema AttributeName={KEY},KeyType=HASH {billing}"
    )
    wait = f"aws dynamodb wait table-exists {where}"
    ttl = f"aws dynamodb update-time-to-live {where} --time-to-live-specification Enabled=true,AttributeName={TTL}"
    return [Migration(1, TITLE, (create, wait, ttl))]


_TTL_ON = {"Enabled": True, "AttributeName": TTL}


def _billing(settings: DynamodbSettings) -> str:
    return "PROVISIONED" if settings.units else "PAY_PER_REQUEST"


def _creation(settings: DynamodbSettings) -> dict[str, Any]:
    creation: dict[str, Any] = {
        "AttributeDefinitions": [{"AttributeName": KEY, "AttributeType": "S"}],
        "KeySchema": [{"AttributeName": KEY, "KeyType": "HASH"}],
        "BillingMode": _billing(settings),
    }
    if settings.units:
        read, write = settings.units
        creation["ProvisionedThroughput"] = {"ReadCapacityUnits": read, "WriteCapacityUnits": write}
    return creation


def _wait_until_active(settings: DynamodbSettings) -> Plan[Mapping[str, Any]]:
    deadline = time.monotonic() + CREATE_S
    while time.monotonic() < deadline:
        try:
            table = yield from describe()
        except Missing:  # what was created a moment ago is not known everywhere at once
            table = {"TableStatus": "CREATING"}
        if table["TableStatus"] not in ("CREATING", "DELETING"):
            return table
        yield from do(Pause(POLL_MS))
    raise StoreUnavailable(f"{settings.shown}: the table was not active after {CREATE_S} s")
