"""Looks at the table with requests that read."""

from __future__ import annotations

from collections.abc import Mapping
from math import isinf
from typing import Any

from semel.core.effects import Plan, do
from semel.core.records import Key
from semel.errors import StoreMisconfigured
from semel.store import Finding
from semel.stores.dynamodb import queries, schema
from semel.stores.dynamodb.clock import CheckedClock
from semel.stores.dynamodb.failures import MIGRATE, Missing
from semel.stores.dynamodb.layout import digest_of
from semel.stores.dynamodb.queries import Request
from semel.stores.dynamodb.settings import DynamodbSettings

LOOKS = 9
PROMISE = Finding(
    "promise",
    "info",
    "at-most-once in one region: what DynamoDB acknowledged is in several places. A restore, or a failover to another "
    "region, may miss the last writes, and their work can run a second time",
)


def examine(settings: DynamodbSettings, clock: CheckedClock) -> Plan[list[Finding]]:
    try:
        table = yield from schema.describe()
    except Missing as error:
        return [Finding("schema", "problem", str(error), MIGRATE)]
    found = [Finding("connection", "ok", f"{settings.shown} answers"), _schema(table, settings), _billing(table)]
    found += [find_replicas(table), (yield from _ttl()), (yield from _backups())]
    for _ in range(LOOKS):
        yield from do(queries.read(digest_of(Key("semel", "semel doctor", "probe"))))
    return [*found, _clock(settings, clock), PROMISE]


def _schema(table: Mapping[str, Any], settings: DynamodbSettings) -> Finding:
    try:
        schema.check(table, settings)
    except StoreMisconfigured as error:
        return Finding("schema", "problem", str(error), "name another table")
    status = table["TableStatus"]
    if status not in ("ACTIVE", "UPDATING"):
        return Finding("schema", "problem", f"the table is {status}", "wait until it is ACTIVE")
    return Finding("schema", "ok", "schema 1, nothing is missing")


def _billing(table: Mapping[str, Any]) -> Finding:
    if table.get("BillingModeSummary", {}).get("BillingMode") == "PAY_PER_REQUEST":
        return Finding("billing", "ok", "on demand: each request is paid for, and there are no units to run out of")
    units = table.get("ProvisionedThroughput", {})
    return Finding(
        "billing",
        "info",
        f"provisioned: {units.get('ReadCapacityUnits', '?')} read and {units.get('WriteCapacityUnits', '?')} write "
        "units a second. Beyond them claims are refused with 503, and nothing runs",
    )


def find_replicas(table: Mapping[str, Any]) -> Finding:
    regions = [each["RegionName"] for each in table.get("Replicas", [])]
    if not regions:
        return Finding("replicas", "ok", "a table of one region")
    if table.get("MultiRegionConsistency") == "STRONG":
        return Finding("replicas", "warning", f"strongly consistent with {', '.join(regions)}: this was not tested")
    return Finding(
        "replicas",
        "problem",
        f"a global table with {', '.join(regions)}: the last writer of two regions wins, so two callers in two regions "
        "can both be granted one key, and its work runs twice",
        "let every process name the same region, or use a table without replicas",
    )


def _ttl() -> Plan[Finding]:
    try:
        told = (yield from do(Request("describe_time_to_live", {})))["TimeToLiveDescription"]
    except StoreMisconfigured as error:
        return Finding("ttl", "info", f"TTL is not known: {error}")
    name, status = told.get("AttributeName"), told["TimeToLiveStatus"]
    if status not in ("ENABLED", "ENABLING"):
        return Finding("ttl", "warning", "TTL is off: records past retention stay until semel purge", MIGRATE)
    if name != schema.TTL:
        return Finding(
            "ttl",
            "problem",
            f"TTL goes by the attribute {name}, and not by {schema.TTL}: records may be deleted that are owed",
            f"turn it off, and on again for {schema.TTL}",
        )
    return Finding("ttl", "ok", f"TTL deletes what is past retention, by the attribute {name}")


def _backups() -> Plan[Finding]:
    try:
        told = (yield from do(Request("describe_continuous_backups", {})))["ContinuousBackupsDescription"]
    except StoreMisconfigured as error:
        return Finding("backups", "info", f"point-in-time recovery is not known: {error}")
    if told.get("PointInTimeRecoveryDescription", {}).get("PointInTimeRecoveryStatus") == "ENABLED":
        return Finding("backups", "ok", "point-in-time recovery is on")
    return Finding(
        "backups",
        "warning",
        "point-in-time recovery is off: a table that is deleted or damaged by mistake is gone, and all keys with it",
        "aws dynamodb update-continuous-backups --point-in-time-recovery-specification PointInTimeRecoveryEnabled=true",
    )


def _clock(settings: DynamodbSettings, clock: CheckedClock) -> Finding:
    if clock.is_wrong():
        return Finding("clock", "problem", str(clock.refusal()), "set this machine's clock")
    least, most = clock.bounds_ms
    if isinf(least):
        return Finding("clock", "warning", "the answers tell no time, so this machine's clock cannot be checked")
    return Finding(
        "clock",
        "ok",
        f"this machine's clock is between {least:+.0f} and {most:+.0f} ms ahead of DynamoDB's; {settings.skew_max_ms} "
        "ms are allowed",
    )
